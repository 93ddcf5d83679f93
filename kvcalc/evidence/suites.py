"""The suites, the report on all of them, and the answer for each row of a file.

A suite is a module with a function ``outcomes(name, records)``: it holds the given records of its kind against the
prediction, or its own where none are given (none at all where its records do not come from such files).
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from itertools import groupby
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, get_args

from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.core.reports.validate import (
    Book,
    BookFigures,
    Figures,
    Outcome,
    RowAnswer,
    SourceFigures,
    ValidateReport,
    ValidateSummary,
)
from kvcalc.core.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvcalc.core.reports.validate import Outcome
    from kvcalc.evidence.record import Record

__all__ = ["SUITES", "figures", "run_suites"]

SUITES = {
    "bytes": "kvcalc.evidence.exact",
    "kernels": "kvcalc.evidence.speeds",
    "decode": "kvcalc.evidence.speeds",
    "prefill": "kvcalc.evidence.speeds",
    "serving": "kvcalc.evidence.speeds",
    "logs": "kvcalc.evidence.exact",
    "speculative": "kvcalc.evidence.speculative",
}
_COUNTS = ("records", "held", "scored", "fitted", "without_profile", "without_calibration", "excluded", "explained",
           "bound_violations")  # fmt: skip


def run_suites(
    names: Sequence[str] = (),
    *,
    records: Sequence[Record] | None = None,
    records_file: str | None = None,
    rows: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ValidateReport:
    """Return the report on the suites of those names, or on all.

    Args:
        names: suites; all of them if empty.
        records: records to take in place of the shipped ones.
        records_file: the file they were read from.
        rows: whether the prediction for each row is wanted.
        progress: told how many records are done; 0 of how many, which is not known.

    Raises:
        InputError: no such suite.
    """
    for name in names:
        if name not in SUITES:
            hint = did_you_mean(name, SUITES) or f"suites: {', '.join(SUITES)}"
            raise InputError(f"unknown suite {name!r}", hint=hint)
    suites: dict[str, tuple[Outcome, ...]] = {}
    count = 0
    for name in names or SUITES:
        outcomes: list[Outcome] = []
        for outcome in import_module(SUITES[name]).outcomes(name, records):
            outcomes.append(outcome)
            count += 1
            progress(count, 0)
        if outcomes or names:
            suites[name] = tuple(outcomes)
    every = tuple(outcome for outcomes in suites.values() for outcome in outcomes)
    whole = figures(every)
    return ValidateReport(
        records_file=records_file,
        summary=ValidateSummary(**{name: getattr(whole, name) for name in _COUNTS}),
        suites={name: figures(outcomes) for name, outcomes in suites.items()},
        sources=tuple(_by_source(every)),
        outcomes=every,
        rows=_row_answers(every) if rows else (),
        notes=_repeated(every),
    )


def _repeated(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    more = len(outcomes) - len({(outcome.suite, outcome.id) for outcome in outcomes})
    return (f"{counted(more, 'record')} {'has' if more == 1 else 'have'} the id of another",) if more else ()


def _by_source(outcomes: Iterable[Outcome]) -> Iterable[SourceFigures]:
    def key(outcome: Outcome) -> tuple[str, str, bool, str]:
        return outcome.suite, outcome.source, outcome.first_hand, outcome.quantity

    order = {name: index for index, name in enumerate(SUITES)}
    for (suite, source, first_hand, quantity), group in groupby(
        sorted(outcomes, key=lambda outcome: (order[outcome.suite], *key(outcome))), key=key
    ):
        yield SourceFigures(
            suite=suite, source=source, first_hand=first_hand, quantity=quantity, figures=figures(tuple(group))
        )


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """Sum up a group of records."""
    compared = [outcome for outcome in outcomes if outcome.status in ("holds", "explained", "violates")]
    estimated = [outcome for outcome in compared if outcome.error is not None and outcome.scored]
    scored = [outcome for outcome in estimated if not outcome.fitted]
    errors = [outcome.error for outcome in scored if outcome.error is not None]
    shares = [outcome.share for outcome in compared if outcome.share is not None]
    covered = [outcome.covered for outcome in scored if outcome.covered is not None]
    count = {status: sum(outcome.status == status for outcome in outcomes) for status in
             ("explained", "violates", "no profile", "excluded")}  # fmt: skip
    return Figures(
        records=len(outcomes),
        held=len(compared),
        scored=len(scored),
        without_profile=count["no profile"],
        fitted=len(estimated) - len(scored),
        without_calibration=len(compared) - len(estimated),
        excluded=count["excluded"],
        explained=count["explained"],
        bound_violations=count["violates"],
        median_share=median(shares) if shares else None,
        least_share=min(shares, default=None),
        most_share=max(shares, default=None),
        median_error=median(errors) if errors else None,
        p90_error=_p90(errors),
        median_abs_error=median(abs(error) for error in errors) if errors else None,
        interval_coverage=sum(covered) / len(covered) if covered else None,
        books={book: _book(estimated, book) for book in get_args(Book)},
    )


def _book(estimated: Sequence[Outcome], book: Book) -> BookFigures:
    """Sum up the estimates of one book; a group that a fit used counts as fitted."""
    own = [outcome for outcome in estimated if ("fitted" if outcome.fitted else outcome.book) == book]
    sizes = [abs(outcome.error) for outcome in own if outcome.error is not None]
    inside = [outcome.covered for outcome in own if outcome.covered is not None]
    return BookFigures(
        records=len(own),
        median_abs_error=median(sizes) if sizes else None,
        p90_abs_error=_p90(sizes),
        interval_coverage=sum(inside) / len(inside) if inside else None,
    )


def _p90(values: Sequence[float]) -> float | None:
    if not values:
        return None
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


# Times of a token after the first, and of what comes before it.
_TPOT, _TTFT = ("tpot", "decode", "end_to_end"), ("ttft", "prefill")


def _row_answers(outcomes: Iterable[Outcome]) -> tuple[RowAnswer, ...]:
    """Return an answer for each row, in the order of the first of its records."""
    rows: dict[str, list[Outcome]] = {}
    repeats = 0
    for name, group in groupby(outcomes, key=lambda outcome: outcome.row or outcome.id):
        key, records = name, list(group)
        # a name that comes again after others is another row
        while key in rows and {one.quantity for one in rows[key]} & {one.quantity for one in records}:
            repeats += 1
            key = f"{name}\0{repeats}"
        rows.setdefault(key, []).extend(records)
    return tuple(map(_answer, rows.values()))


def _answer(outcomes: Sequence[Outcome]) -> RowAnswer:
    first = outcomes[0]
    answer = RowAnswer(id=first.row or first.id, suite=first.suite)
    for outcome in outcomes:
        answer = _with(answer, outcome)
    reasons = (reason for outcome in outcomes for reason in (outcome.reason, outcome.unscored_reason))
    reasons_given = dict.fromkeys(filter(None, reasons))
    books = {"fitted" if outcome.fitted else outcome.book for outcome in outcomes}
    return replace(
        answer,
        fitted="fitted" in books,
        book=next(book for book in ("fitted", "shipped", "unseen") if book in books),
        calibration=next((outcome.calibration for outcome in outcomes if outcome.calibration), ""),
        reason="; ".join(reasons_given),
    )


def _with(answer: RowAnswer, outcome: Outcome) -> RowAnswer:
    times = (outcome.estimate, outcome.estimate_least, outcome.estimate_most)
    # a rate over all sequences is held as the time of a step: a token of each
    names = ("tpot" if outcome.quantity in _TPOT else "ttft") if outcome.quantity in (*_TPOT, *_TTFT) else ""
    if not names:
        return answer
    fields = (f"predicted_{names}_s", f"low_{names}_s", f"high_{names}_s", f"measured_{names}_s")
    if outcome.quantity == "prefill" and answer.predicted_ttft_s is not None:
        return answer
    times_of: dict[str, Any] = dict(zip(fields, (*times, outcome.measured), strict=True))
    return replace(answer, **times_of)
