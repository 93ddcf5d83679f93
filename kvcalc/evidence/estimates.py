"""Estimates of records: with which calibration, of which passes, and whether its fit has seen them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from kvcalc.core.calibration import Interval
from kvcalc.cost.estimate import estimate_time, pass_kind
from kvcalc.cost.roofline import step_time
from kvcalc.evidence.books import book_of, group_of
from kvcalc.evidence.campaigns import campaign, engine_of
from kvcalc.evidence.serving import served_kind
from kvcalc.plan.estimates import best_calibration
from kvcalc.sources import shipped_calibrations

if TYPE_CHECKING:
    from kvcalc.core.calibration import Calibration
    from kvcalc.core.cost_types import StepCost
    from kvcalc.evidence.cases import Case, FirstToken, Pass

__all__ = ["CaseEstimate", "case_seconds", "estimate_case", "estimated_passes", "own_or_near",
           "predict_case"]  # fmt: skip


# Where nothing was measured of an engine on such accelerators: what another engine reaches there, or reaches elsewhere.
_ANY = ("vllm", "tensorrt-llm", "sglang", "llama.cpp", "gpt-fast")
_ELSEWHERE = "vllm-hopper"
_BORROWED = Interval(low=0.4, high=3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseEstimate:
    """The estimated time of a case.

    Args:
        estimate_s: the estimate.
        low_s: lower end of its interval.
        high_s: upper end.
        calibration: the name of the calibration.
        fitted: whether the calibration was fitted to this measurement or its group, so that they cannot judge it.
        borrowed: whether the calibration is of another engine or of other accelerators.
    """

    estimate_s: float
    low_s: float
    high_s: float
    calibration: str
    fitted: bool
    borrowed: bool = False


def estimate_case(case: Case) -> CaseEstimate | None:
    """Return the estimate of a case, or none where no calibration applies or its time holds more than passes."""
    calibration = best_calibration(_calibrations(), case.hardware, engines=(engine_of(case.record),))
    if calibration is None or not estimated_passes(case):
        return None
    return _estimated(case, calibration)


def predict_case(case: Case) -> CaseEstimate:
    """Return the estimate of any case, by a borrowed calibration with a wide interval where none applies."""
    own = best_calibration(_calibrations(), case.hardware, engines=(engine_of(case.record),))
    if own is not None:
        return _estimated(case, own)
    calibration = own_or_near(case)
    wide = replace(calibration, memory_interval=_BORROWED, compute_interval=_BORROWED, intervals={})
    return replace(_estimated(case, wide), fitted=False, borrowed=True)


def own_or_near(case: Case) -> Calibration:
    """Return the calibration of a case's engine on its accelerator, else that of another engine or accelerator."""
    own = best_calibration(_calibrations(), case.hardware, engines=(engine_of(case.record),))
    near = own or best_calibration(_calibrations(), case.hardware, engines=_ANY)
    return near or next(each for each in _calibrations() if each.name == _ELSEWHERE)


def _estimated(case: Case, calibration: Calibration) -> CaseEstimate:
    seconds = case_seconds(case, calibration)
    is_compute = step_time(case.passes[0].cost, case.hardware).limiter == "compute"
    spread = calibration.spread(served_kind(case), is_compute=is_compute)
    if case.first is None and not case.likely:
        spread = calibration.spread(pass_kind(case.passes[0].cost), is_compute=is_compute)
    known = {group_of(case.record), campaign(case.record)}
    return CaseEstimate(
        estimate_s=seconds,
        low_s=seconds * spread.low,
        high_s=seconds * spread.high,
        calibration=calibration.name,
        fitted=not known.isdisjoint(calibration.measured.trained_on) or book_of(case.record) == "fitted",
    )


def case_seconds(case: Case, calibration: Calibration) -> float:
    """Return the estimated time of a case with a calibration: of its passes, or of a request's first token."""
    return _steps_s(case, calibration) if case.first is None else _first_token_s(case.first, case, calibration)


def _pass_s(cost: StepCost, case: Case, calibration: Calibration) -> float:
    return estimate_time(cost, case.hardware, calibration).estimate_s


def _steps_s(case: Case, calibration: Calibration) -> float:
    return sum(
        each.times * (calibration.prompt_share if each.is_beside else 1.0) * _pass_s(each.cost, case, calibration)
        for each in case.likely or case.passes
    )


def _first_token_s(first: FirstToken, case: Case, calibration: Calibration) -> float:
    prompt = _pass_s(first.prompt.cost, case, calibration)
    waited = prompt * calibration.queue_share * first.others
    if calibration.request_steps:
        waited += calibration.request_steps * _pass_s(first.step.cost, case, calibration)
    return calibration.request_s + waited + prompt


@cache
def _calibrations() -> tuple[Calibration, ...]:
    return tuple(shipped_calibrations())


def estimated_passes(case: Case) -> tuple[Pass, ...]:
    """Return the passes that a case is estimated from; none where its time is not theirs one after another."""
    pipelined = case.deployment is not None and case.deployment.parallel.pipeline > 1 and case.timing != "one by one"
    return () if case.bound_only or pipelined else case.likely or case.passes
