"""Explaining the estimate of a pass: each operator at the rates reached, and what passes, layers and calls take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.reports.common import ExplainedStep
from kvcalc.cost.estimate import estimate_time, pass_terms
from kvcalc.plan.explain.text import number, total
from kvcalc.plan.steps import required_hardware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.calibration import Calibration
    from kvcalc.cost.estimate import PassTerms
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.steps import TimedStep

__all__ = ["estimate_steps"]


def estimate_steps(deployment: Deployment, step: TimedStep, calibration: Calibration) -> Iterator[ExplainedStep]:
    """Return the steps from the terms of a pass to its estimate and interval."""
    hardware = required_hardware(deployment)
    found = estimate_time(step.cost, hardware, calibration)
    sources = (f"calibration {calibration.name}",)
    reached = total(_terms(pass_terms(step.cost, hardware), calibration))
    bound = number(step.time.latency_s)
    yield ExplainedStep(
        quantity="estimate_s",
        formula="max(bound, step_s + layers x layer_s + sum over the operators of calls x call_s + max(FLOP / peak / "
        "flop_share, bytes / bandwidth / bandwidth_share) + collectives x collective_s + bytes / rate / link_share)",
        expression=f"max({bound}, {reached})",
        value=found.estimate_s,
        unit="s",
        sources=sources,
    )
    limited = "compute" if step.time.limiter == "compute" else "memory"
    spread = calibration.compute_interval if limited == "compute" else calibration.memory_interval
    for name, multiple, value in (("low", spread.low, found.low_s), ("high", spread.high, found.high_s)):
        yield ExplainedStep(
            quantity=f"estimate_{name}_s",
            formula=f"max(bound, {limited}_interval.{name} x the estimate before the bound is regarded)",
            expression=f"max({bound}, {number(multiple)} * ({reached}))",
            value=value,
            unit="s",
            sources=sources,
        )


def _terms(terms: PassTerms, calibration: Calibration) -> Iterator[str]:
    """Return what a pass takes at the rates reached, without what is zero."""
    if calibration.step_s:
        yield number(calibration.step_s)
    if calibration.layer_s:
        yield f"{terms.layers} * {number(calibration.layer_s)}"
    for (kind, unit), operators in terms.operators.items():
        reach = calibration.reach_of(kind, unit)
        for compute, memory, calls in operators:
            if reach.call_s:
                yield f"{calls} * {number(reach.call_s)}"
            if compute or memory:
                yield (
                    f"max({number(compute)} / {number(reach.flop_share)}, "
                    f"{number(memory)} / {number(reach.bandwidth_share)})"
                )
    if terms.collectives:
        yield f"{terms.collectives} * {number(calibration.collective_s)}"
        yield f"{number(terms.link_s)} / {number(calibration.link_share)}"
