"""A calibration from a few measurements of one deployment, with the errors that say what it is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.calibration import Interval
from kvcalc.cost.estimate import pass_kind
from kvcalc.evidence.estimates import case_seconds
from kvcalc.evidence.own.fitting import factors_of, identified
from kvcalc.evidence.own.terms import slowed, timed
from kvcalc.evidence.serving import served_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.evidence.cases import Case

__all__ = ["Calibrated", "calibrated", "started"]

# Beginnings for what a first token takes besides its passes, of calibrations that know nothing of it.
_REQUEST_S, _REQUEST_STEPS, _QUEUE_SHARE = 0.02, 1.0, 0.1
_MAX_FOLDS = 20
# The deviation of errors before any is seen, counted as so many points; half of an interval is never narrower than so.
_USUAL, _USUAL_POINTS, _MIN_HALF = 0.08, 3, 0.03
# Deviations that hold four of five of a normal distribution.
_FOUR_OF_FIVE = 1.2816


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A fit to measurements.

    Args:
        calibration: with the interval that rows left out show.
        factors: by term.
        told: share of what was unknown of each factor that the measurements tell.
        left_out_s: for each case the estimate of a fit without its row; none where there is one row.
    """

    calibration: Calibration
    factors: dict[str, float]
    told: dict[str, float]
    left_out_s: tuple[float | None, ...]


def started(calibration: Calibration, cases: Sequence[Case]) -> Calibration:
    """Return a calibration with a beginning for first tokens, where it has none and they were measured."""
    if calibration.request_s or all(case.first is None for case in cases):
        return calibration
    return replace(calibration, request_s=_REQUEST_S, request_steps=_REQUEST_STEPS, queue_share=_QUEUE_SHARE)


def calibrated(start: Calibration, cases: Sequence[Case]) -> Calibrated:
    """Return the fit to some measurements, and each measurement by a fit without its row.

    Of more than 20 rows, a twentieth is left out at a time.
    """
    samples = [timed(case, start) for case in cases]
    factors = factors_of(samples, start)
    rows = list(dict.fromkeys(case.record.row or case.record.id for case in cases))
    fold = {row: index % _MAX_FOLDS for index, row in enumerate(rows)}
    left: list[float | None] = [None] * len(cases)
    for each in sorted(set(fold.values())) if len(rows) > 1 else ():
        outside = [fold[case.record.row or case.record.id] != each for case in cases]
        others = [sample for sample, is_outside in zip(samples, outside, strict=True) if is_outside]
        fitted = slowed(start, factors_of(others, start))
        for index, (case, is_outside) in enumerate(zip(cases, outside, strict=True)):
            if not is_outside:
                left[index] = case_seconds(case, fitted)
    fitted_calibration = slowed(start, factors)
    return Calibrated(
        calibration=_with_intervals(fitted_calibration, cases, left),
        factors=factors,
        told=identified(samples, factors),
        left_out_s=tuple(left),
    )


def _with_intervals(calibration: Calibration, cases: Sequence[Case], left: Sequence[float | None]) -> Calibration:
    """Return a calibration with the intervals that rows left out show, for the kinds of times that were measured."""
    errors: dict[str, list[float]] = {}
    for case, seconds in zip(cases, left, strict=True):
        for kind in dict.fromkeys((pass_kind(case.passes[0].cost), served_kind(case))):
            own = errors.setdefault(kind, [])
            if seconds is not None:
                own.append(math.log(case.measured_s / seconds))
    intervals = {kind: _interval(own) for kind, own in errors.items()}
    steps = [each for kind, each in intervals.items() if not kind.startswith(("prefill", "first", "queued"))]
    prompts = [each for kind, each in intervals.items() if kind.startswith(("prefill", "first"))]
    return replace(
        calibration,
        intervals={**calibration.intervals, **intervals},
        memory_interval=steps[0] if steps else calibration.memory_interval,
        compute_interval=prompts[0] if prompts else calibration.compute_interval,
    )


def _interval(errors: Sequence[float]) -> Interval:
    """Return the interval of some logarithms of measured / estimate, around 1, with the usual spread as a beginning.

    Source: the posterior of a normal deviation with a conjugate prior, Gelman et al. 2013, Bayesian Data Analysis, 2.6.
    """
    squares = _USUAL_POINTS * _USUAL**2
    for error in errors:
        squares += error**2
    half = max(_MIN_HALF, _FOUR_OF_FIVE * math.sqrt(squares / (_USUAL_POINTS + len(errors))))
    return Interval(low=round(math.exp(-half), 4), high=round(math.exp(half), 4), records=len(errors))
