"""The table of ``kvcalc reconcile``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, counted, number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import facts, grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.reconcile import MemoryPart, ReconcileReport, ReconcileRow
    from kvcalc.render.layout import Part

__all__ = ["parts", "sentence"]


def sentence(report: ReconcileReport) -> str:
    """Return whether the log agrees, or why the engine did not start and with which flags it would."""
    who = f"{report.engine} {report.version}".replace(" unknown", "")
    refusal = report.refusal
    if refusal is not None:
        remedy = f" It would start with {report.start_with}." if report.start_with else ""
        return f"{who} did not start: {refusal.reason} (line {refusal.line} of the log).{remedy}"
    wrong, count = sum(not row.agrees for row in report.rows), len(report.rows)
    model = f" for {report.model}" if report.model else ""
    if not count:
        return f"{who}: no number of the log could be recomputed{model}."
    if wrong:
        disagree = f"disagree{'s' * (wrong == 1)} with the prediction{model}"
        return f"{who}: {wrong} of {counted(count, 'number')} in the log {disagree}."
    numbers = {1: "the one number", 2: "both numbers"}.get(count, f"all {count} numbers")
    return f"{who}: {numbers} in the log agree{'s' * (count == 1)} with the prediction{model}."


def parts(report: ReconcileReport) -> list[Part]:
    """Return the numbers, what took the memory, and what to change."""
    title = f"{report.engine} {report.version}: {report.model or 'model not named'}"
    several = len({row.start_up for row in report.rows}) > 1
    columns = ["quantity", "", "printed", "predicted", "difference", "why"]
    rows = [_cells(row, several=several) for row in report.rows]
    table = grid(columns, rows, left=2)
    table.columns[-1].justify = "left"
    shown: list[Part] = [heading(title)]
    shown += [table] if report.rows else []
    if report.memory:
        shown += [Text()] if report.rows else []
        # llama.cpp prints its buffers by place: the parts are sums over them, host memory included
        shown += [heading("Memory of all GPUs and the host" if report.engine == "llama.cpp" else "Memory per GPU")]
        shown.append(facts((part.part, _taken(part)) for part in report.memory))
    if report.advice:
        shown += [Text(), heading("What to change"), *(Text(f"  {line}") for line in report.advice)]
    shown += note_lines(report.notes)
    return [*shown, *([Text(), Text(f"start it with: {report.start_with}", wraps=False)] if report.start_with else [])]


def _taken(part: MemoryPart) -> str:
    return bytes_text(part.taken_bytes) + (" computed" if part.source == "computed" else "")


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
