"""The prediction for each row of a file: its records put together again."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kvcalc.core.reports.validate import RowAnswer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.core.reports.validate import Outcome

__all__ = ["row_answers"]

# Times of a token after the first, and of what comes before it.
_TPOT, _TTFT = ("tpot", "decode", "end_to_end"), ("ttft", "prefill")


def row_answers(outcomes: Iterable[Outcome]) -> tuple[RowAnswer, ...]:
    """Return an answer for each row, in the order of the first of its records."""
    rows: dict[str, list[Outcome]] = {}
    place = 0
    for name, group in groupby(outcomes, key=lambda outcome: outcome.row or outcome.id):
        key, found = name, list(group)
        # a name that comes again after others is another row
        while key in rows and {one.quantity for one in rows[key]} & {one.quantity for one in found}:
            place += 1
            key = f"{name}\0{place}"
        rows.setdefault(key, []).extend(found)
    return tuple(map(_answer, rows.values()))


def _answer(outcomes: Sequence[Outcome]) -> RowAnswer:
    first = outcomes[0]
    answer = RowAnswer(id=first.row or first.id, suite=first.suite)
    for outcome in outcomes:
        answer = _with(answer, outcome)
    reasons = (reason for outcome in outcomes for reason in (outcome.reason, outcome.unscored_reason))
    told = dict.fromkeys(filter(None, reasons))
    books = {"fitted" if outcome.fitted else outcome.book for outcome in outcomes}
    return replace(
        answer,
        fitted="fitted" in books,
        book=next(book for book in ("fitted", "shipped", "unseen") if book in books),
        calibration=next((outcome.calibration for outcome in outcomes if outcome.calibration), ""),
        reason="; ".join(told),
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
    told: dict[str, Any] = dict(zip(fields, (*times, outcome.measured), strict=True))
    return replace(answer, **told)
