"""The table of ``kvcalc models quants``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, counted, number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables.pieces import grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.quants import QuantRow, QuantsReport
    from kvcalc.render.layout import Part

__all__ = ["parts"]


def parts(report: QuantsReport) -> list[Part]:
    """Return a row for each recipe, the largest file first."""
    memory = report.memory_bytes
    columns = ["recipe", "size", "bits a weight"]
    title = f"{report.model} by llama-quantize"
    if memory is not None:
        columns += ["fits", "longest context"]
        title += f", {counted(report.context, 'token')} in {bytes_text(memory)}"
    table = grid([*columns, "matrices in"], [_cells(row, with_memory=memory is not None) for row in report.rows])
    table.columns[-1].justify = "left"
    needed = [row.recipe for row in report.rows if row.needs_imatrix]
    imatrix = (f"made only with an importance matrix: {', '.join(needed)}",) if needed else ()
    return [heading(title), table, Text(), *note_lines([*imatrix, *report.notes])]


def _cells(row: QuantRow, *, with_memory: bool) -> list[str]:
    room = ["yes" if row.fits else "no", number_text(row.max_context or 0)] if with_memory else []
    return [row.recipe, bytes_text(row.total_bytes), f"{row.bits_per_weight:.2f}", *room, row.mixture]
