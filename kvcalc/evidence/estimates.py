"""Estimates of records: with which calibration, of which passes, and whether its fit has seen them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from kvcalc.cost.estimate import estimate_time
from kvcalc.evidence.campaigns import campaign, engine_of
from kvcalc.plan.estimates import best_calibration
from kvcalc.sources import shipped_calibrations

if TYPE_CHECKING:
    from kvcalc.core.calibration import Calibration
    from kvcalc.evidence.cases import Case, Pass

__all__ = ["CaseEstimate", "estimate_case", "estimated_passes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseEstimate:
    """The estimated time of a case.

    Args:
        estimate_s: the estimate.
        low_s: lower end of its interval.
        high_s: upper end.
        calibration: the name of the calibration.
        fitted: whether the calibration was fitted to this campaign's records, so that they cannot judge it.
    """

    estimate_s: float
    low_s: float
    high_s: float
    calibration: str
    fitted: bool


def estimate_case(case: Case) -> CaseEstimate | None:
    """Return the estimate of a case, or none where no calibration applies or its time holds more than passes."""
    record = case.record
    found = best_calibration(_calibrations(), case.hardware, engines=(engine_of(record),))
    passes = estimated_passes(case)
    if found is None or not passes:
        return None
    parts = [(step.times, estimate_time(step.cost, case.hardware, found)) for step in passes]
    return CaseEstimate(
        estimate_s=sum(times * part.estimate_s for times, part in parts),
        low_s=sum(times * part.low_s for times, part in parts),
        high_s=sum(times * part.high_s for times, part in parts),
        calibration=found.name,
        fitted=campaign(record) in found.measured.trained_on,
    )


@cache
def _calibrations() -> tuple[Calibration, ...]:
    return tuple(shipped_calibrations())


def estimated_passes(case: Case) -> tuple[Pass, ...]:
    """Return the passes that a case is estimated from; none where its time is not theirs one after another."""
    pipelined = case.deployment is not None and case.deployment.parallel.pipeline > 1 and case.timing != "one by one"
    return () if case.bound_only or pipelined else case.likely or case.passes
