"""Explaining the estimate of a pass: each operator at the rates reached, and what passes, layers and calls take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.calibration import LEAST_SUM_SHARE
from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.traced import digits
from kvcalc.cost.estimate import estimate_time, pass_terms, reached_seconds
from kvcalc.plan.explain.text import total
from kvcalc.plan.steps import required_hardware

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.calibration import Calibration, Reach
    from kvcalc.cost.estimate import PassTerms
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.steps import TimedStep

__all__ = ["estimate_steps"]


def estimate_steps(deployment: Deployment, step: TimedStep, calibration: Calibration) -> Iterator[ExplainedStep]:
    """Return the steps from the terms of a pass to its estimate and interval."""
    hardware = required_hardware(deployment)
    found, terms = estimate_time(step.cost, hardware, calibration), pass_terms(step.cost, hardware)
    reached_s, sources = reached_seconds(terms, calibration), (f"calibration {calibration.name}",)
    yield ExplainedStep(
        quantity="reached_s",
        formula="step_s + layers x layer_s + sum over the operators of calls x call_s + max(c, m, sum_share x (c + m)) "
        "+ collectives x collective_s + bytes / rate / link_share, "
        "with c = FLOP / peak / flop_share and m = bytes / bandwidth / bandwidth_share",
        expression=total(_terms(terms, calibration)),
        value=reached_s,
        unit="s",
        sources=sources,
    )
    limited = "compute" if step.time.limiter == "compute" else "memory"
    spread = calibration.compute_interval if limited == "compute" else calibration.memory_interval
    values = (
        ("estimate_s", "reached_s", 1, found.estimate_s),
        ("estimate_low_s", f"{limited}_interval.low x reached_s", spread.low, found.low_s),
        ("estimate_high_s", f"{limited}_interval.high x reached_s", spread.high, found.high_s),
    )
    for quantity, words, multiple, value in values:
        yield ExplainedStep(
            quantity=quantity,
            formula=f"max(bound, {words})",
            expression=f"max({digits(step.time.latency_s)}, {digits(multiple)} * {digits(reached_s)})",
            value=value,
            unit="s",
            sources=sources,
        )


def _terms(terms: PassTerms, calibration: Calibration) -> Iterator[str]:
    """Return the terms of a pass at the rates reached, without those that are zero."""
    if calibration.step_s:
        yield digits(calibration.step_s)
    if calibration.layer_s:
        yield f"{terms.layers} * {digits(calibration.layer_s)}"
    for (kind, unit), operators in terms.operators.items():
        reach = calibration.reach_of(kind, unit)
        for compute, memory, calls in operators:
            if reach.call_s:
                yield f"{calls} * {digits(reach.call_s)}"
            if compute or memory:
                yield _operator(compute, memory, reach)
    if terms.collectives:
        yield f"{terms.collectives} * {digits(calibration.collective_s)}"
        yield f"{digits(terms.link_s)} / {digits(calibration.link_share)}"


def _operator(compute_s: float, memory_s: float, reach: Reach) -> str:
    compute = f"{digits(compute_s)} / {digits(reach.flop_share)}"
    memory = f"{digits(memory_s)} / {digits(reach.bandwidth_share)}"
    if reach.sum_share > LEAST_SUM_SHARE:
        return f"max({compute}, {memory}, {digits(reach.sum_share)} * ({compute} + {memory}))"
    return f"max({compute}, {memory})"
