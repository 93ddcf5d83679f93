"""The table of ``kvcalc reconcile``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, counted, number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import facts, grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.reconcile import MemoryPart, ReconcileReport, ReconcileRow
    from kvcalc.render.layout import Part

__all__ = ["parts"]


def parts(report: ReconcileReport) -> list[Part]:
    """Return the numbers, what took the memory, and what to change."""
    title = f"{report.engine} {report.version}: {report.model or 'model not named'}"
    several = len({row.start_up for row in report.rows}) > 1
    columns = ["quantity", "", "printed", "predicted", "difference", "why"]
    rows = [_cells(row, several=several) for row in report.rows]
    table = grid(columns, rows, left=2)
    table.columns[-1].justify = "left"
    wrong = sum(not row.agrees for row in report.rows)
    shown: list[Part] = [heading(title)]
    if report.refusal is not None:
        shown += [Text(f"did not start (line {report.refusal.line}): {report.refusal.reason}"), Text()]
    shown += [table, Text()] if report.rows else []
    disagree = f"{wrong} of {counted(len(report.rows), 'number')} disagree{'s' * (wrong == 1)}"
    if report.rows or report.refusal is None:
        shown.append(Text(disagree if wrong else _all(len(report.rows))))
    if report.memory:
        shown += [Text()] if report.rows else []
        shown += [heading("What took the memory of a rank")]
        shown.append(facts((part.part, _taken(part)) for part in report.memory))
    if report.advice:
        shown += [Text(), heading("What to change"), *(Text(f"  {line}") for line in report.advice)]
    shown += note_lines(report.notes)
    return [*shown, *([Text(), Text(f"start it with: {report.start_with}")] if report.start_with else [])]


def _taken(part: MemoryPart) -> str:
    return bytes_text(part.taken_bytes) + (" computed" if part.source == "computed" else "")


def _all(count: int) -> str:
    if count == 1:
        return "the one number that was computed again agrees within its printed digits"
    if count == 0:
        return "no number could be computed again"
    return f"{'both numbers' if count == 2 else f'all {count} numbers'} agree within their printed digits"  # noqa: PLR2004


def _predicted(row: ReconcileRow) -> str:
    """Return the predicted number, or the interval where its ends are shown differently."""
    ends = dict.fromkeys(number_text(end) for end in (row.predicted_least, row.predicted_most))
    return " to ".join(ends)


def _cells(row: ReconcileRow, *, several: bool) -> list[str]:
    name = f"{row.start_up}: {row.quantity}" if several else row.quantity
    return [
        name,
        "ok" if row.agrees else "DIFFERS",
        number_text(row.printed),
        _predicted(row),
        number_text(row.difference),
        row.reason,
    ]
