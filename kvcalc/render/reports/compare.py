"""The table of ``kvcalc compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import figure_text, grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.compare import CompareReport, CompareRow, CompareValue
    from kvcalc.render.layout import Part

__all__ = ["parts"]


def parts(report: CompareReport) -> list[Part]:
    """Return quantities by line and sides by column; ratios are to the first, * marks the best."""
    columns = ["", *(side.label for side in report.sides)]
    shown = [row for row in report.rows if any(value is not None for value in row.values)]
    warnings: list[Part] = [
        *_warnings(report),
        heading(_title(report)),
        grid(columns, [[row.label, *_cells(row)] for row in shown]),
    ]
    return [
        *warnings,
        Text("* the best of its line; ratios are to the first column", style="dim"),
        *note_lines(report.notes),
    ]


def _warnings(report: CompareReport) -> list[Part]:
    """Say first what does not fit."""
    fits = next((row.values for row in report.rows if row.quantity == "decode.fits"), ())
    over = [side for side, value in zip(report.sides, fits, strict=False) if value is False]
    lines = [f"DOES NOT FIT: {side.label}: {side.misfit or 'more than its memory'}." for side in over]
    if lines:
        lines[-1] += " Its speeds are hypothetical." if len(lines) == 1 else " Their speeds are hypothetical."
    return [*(Text(line, style="bold red") for line in lines), *[Text()] * bool(lines)]


def _title(report: CompareReport) -> str:
    first = report.sides[0]
    same = [
        getattr(first, name) for name in ("model", "gpu") if len({getattr(side, name) for side in report.sides}) == 1
    ]
    common = [str(name) for name in same if name]
    for name, unit in (("batch", ""), ("context", " tokens")):
        values = {getattr(side, name) for side in report.sides}
        if len(values) == 1 and first.model:
            common.append(f"{name} {number_text(values.pop())}{unit}")
    return ", ".join(["Side by side", *common])


def _cells(row: CompareRow) -> list[str]:
    cells = []
    for index, value in enumerate(row.values):
        text = _text(row.quantity, value)
        ratio = row.ratios[index]
        if index and ratio is not None and row.better and ratio != 1:
            text += f" ({ratio:,.2f}x)"
        cells.append(f"{text} *" if index in row.best else text)
    return cells


def _text(quantity: str, value: CompareValue) -> str:
    if quantity.endswith("fits") and value is False:
        return "NO"
    report, name, *rest = quantity.split(".")
    return figure_text(rest[0] if rest and report != "gpu" else name, value)
