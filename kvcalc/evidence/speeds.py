"""The suites of measured times: kernels, decode, prefill and serving."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.reports.validate import Outcome
from kvcalc.evidence.books import book_of
from kvcalc.evidence.campaigns import engine_of
from kvcalc.evidence.cases import Unusable
from kvcalc.evidence.estimates import estimated_passes, predict_case
from kvcalc.evidence.gate import judge
from kvcalc.evidence.kernels import kernel_case
from kvcalc.evidence.names import slowness
from kvcalc.evidence.passes import case_of
from kvcalc.evidence.read import shipped_records
from kvcalc.evidence.record import short_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.core.reports.validate import Status
    from kvcalc.evidence.cases import Case
    from kvcalc.evidence.record import Record

__all__ = ["outcomes"]


def outcomes(suite: str, records: Sequence[Record] | None) -> Iterator[Outcome]:
    """Yield the outcome of each record of a suite: the given ones, or those that kvcalc ships."""
    for record in shipped_records() if records is None else records:
        if record.suite == suite:
            yield _outcome(record)


def _outcome(record: Record) -> Outcome:
    case = kernel_case(record) if record.suite == "kernels" else case_of(record)
    outcome = Outcome(
        id=record.id,
        suite=record.suite,
        source=short_source(record.source),
        first_hand=record.first_hand,
        quantity=record.phase,
        unit="s",
        status="excluded",
        model=record.model,
        hardware=record.hardware,
        engine=record.engine,
        gpus=record.devices,
        batch=record.batch,
        book=book_of(record),
        row=record.row,
    )
    if isinstance(case, Unusable):
        outcome = replace(outcome, status=case.status, reason=case.reason)
        return outcome if case.guess is None else replace(_predicted(outcome, case.guess), scored=False)
    return _held(outcome, case)


def _predicted(outcome: Outcome, case: Case) -> Outcome:
    """Return an outcome with its estimate; what nothing is held against gets one too."""
    estimate = predict_case(case)
    return replace(
        outcome,
        estimate=estimate.estimate_s,
        estimate_least=estimate.low_s,
        estimate_most=estimate.high_s,
        calibration=f"{estimate.calibration} (borrowed)" if estimate.borrowed else estimate.calibration,
        fitted=estimate.fitted,
        scored=not estimate.borrowed,
    )


def _held(outcome: Outcome, case: Case) -> Outcome:
    verdict = judge(case)
    beaten: Status = "explained" if verdict.cause else "violates"
    outcome = _predicted(outcome, case)
    # the measurement that beats its bound for a cause says nothing of the estimate, which is never below the bound
    scored = outcome.scored and bool(estimated_passes(case)) and not verdict.beaten
    borrowed = f"nothing was measured of {engine_of(case.record)} there: {outcome.calibration}"
    return replace(
        outcome,
        scored=scored,
        status=beaten if verdict.beaten else "holds",
        reason=verdict.cause or slowness(case.record) or "",
        unscored_reason=case.bound_only or ("" if outcome.scored else borrowed),
        model=case.deployment.model.name if case.deployment is not None else outcome.model,
        hardware=case.hardware.name,
        measured=case.measured_s,
        bound=verdict.bound_s,
    )
