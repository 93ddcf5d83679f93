"""Explaining the estimate of a pass: each operator at the rates reached, and what passes, layers and calls take."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.traced import digits, named, term_of
from kvcalc.cost.estimate import OperatorTerms, SumTerms, estimate_time, pass_kind, pass_terms, reached_seconds
from kvcalc.plan.explain.named import named_calibration
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
    estimate, terms = estimate_time(step.cost, hardware, calibration), pass_terms(step.cost, hardware)
    reached_s, sources = reached_seconds(terms, calibration), (f"calibration {calibration.name}",)
    yield ExplainedStep(
        quantity="reached_s",
        formula="step_s + logits x sample_s + layers x layer_s "
        "+ sum over the operators of calls x call_s + max(c, m, sum_share x (c + m)) "
        "+ collectives x collective_s + bytes / rate / link_share "
        "(of sums over ranks, min(direct bytes / rate / direct_share, staged_s + bytes / rate / link_share)), "
        "with c = (FLOP + padding_rows x FLOP of a row) / peak / flop_share "
        "and m = bytes / bandwidth / bandwidth_share, activations at activation_share",
        expression=term_of(reached_seconds(_named_terms(terms), named_calibration(calibration))).expression,
        value=reached_s,
        unit="s",
        sources=sources,
    )
    kind = pass_kind(step.cost)
    is_compute = step.time.limiter == "compute"
    spread = calibration.spread(kind, is_compute=is_compute)
    limited = (
        f"intervals[{kind}]" if kind in calibration.intervals else f"{'compute' if is_compute else 'memory'}_interval"
    )
    values = (
        ("estimate_s", "reached_s", 1, estimate.estimate_s),
        ("estimate_low_s", f"{limited}.low x reached_s", spread.low, estimate.low_s),
        ("estimate_high_s", f"{limited}.high x reached_s", spread.high, estimate.high_s),
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


def _named_terms(terms: PassTerms) -> PassTerms:
    """Return the terms of a pass as numbers with names; zeros drop out."""

    def sized(op: OperatorTerms) -> OperatorTerms:
        parts = ((op.compute_s, "c"), (op.memory_s, "m"), (op.row_s, "row"), (op.activation_s, "activations"))
        c, m, row, activations = (seconds and named(seconds, name) for seconds, name in parts)
        return OperatorTerms(c, m, named(op.calls, "calls"), row, activations, op.is_joined)

    return replace(
        terms,
        operators={kind: tuple(map(sized, operators)) for kind, operators in terms.operators.items()},
        layers=named(terms.layers, "layers"),
        collectives=terms.collectives and named(terms.collectives, "collectives"),
        logits=terms.logits and named(terms.logits, "logits"),
        sums=tuple(
            SumTerms(
                named(each.calls, "calls"),
                named(each.ring_s, "bytes / rate"),
                named(each.direct_s, "direct bytes / rate"),
            )
            for each in terms.sums
        ),
        link_s=terms.link_s and named(terms.link_s, "bytes / rate"),
    )
