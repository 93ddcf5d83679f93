"""The table of ``kvcalc compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import differs, figure_text, grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.compare import CompareReport, CompareRow, CompareValue
    from kvcalc.render.layout import Part

__all__ = ["parts", "sentence"]


# What a comparison is summed up by: the first of them in which one side is better than another.
_HEADLINES = {
    "decode.tokens_per_s": "decodes fastest",
    "gpu.memory_bandwidth_bytes_per_s": "has the most memory bandwidth",
    "gpu.memory_bytes": "has the most memory",
    "fit.max_batch": "holds the largest batch",
    "size.kv.bytes_per_token": "has the smallest KV cache per token",
    "size.weights.total_bytes": "has the smallest weights",
    "decode.usd_per_million_tokens": "is the cheapest per token",
}


_PLURALS = {"decodes": "decode", "has": "have", "holds": "hold", "is": "are"}


def sentence(report: CompareReport) -> str:
    """Return the side that is best in the first quantity that tells them apart; what does not fit is said first."""
    rows = {row.quantity: row for row in report.rows}
    headlines = ((rows[name], words) for name, words in _HEADLINES.items() if name in rows)
    row, words = next(((row, words) for row, words in headlines if 0 < len(row.best) < len(report.sides)), (None, ""))
    if row is None:
        return f"{_misfits(report)}The sides do not differ in speed, memory or cost.".strip()
    best = row.best[0]
    names = " and ".join(report.sides[index].label for index in row.best)
    ratio = row.ratios[best] if best else next((1 / each for each in row.ratios[1:] if each), None)
    other = report.sides[0] if best else report.sides[1]
    against = f" ({ratio:,.2f} times {other.label})" if ratio else ""
    verb, _, rest = words.partition(" ")
    shown = words if len(row.best) == 1 else f"{_PLURALS[verb]} {rest}"
    return f"{_misfits(report)}{names} {shown}: {_figure(row, best)}{against}."


def _figure(row: CompareRow, side: int) -> str:
    unit = {"tokens/s (upper bound)": " tokens/s", "largest batch": " sequences"}.get(row.label, "")
    return _text(row.quantity, row.values[side]) + unit


def parts(report: CompareReport) -> list[Part]:
    """Return quantities by line and sides by column; ratios are to the first, * marks the best."""
    columns = ["", *(side.label for side in report.sides)]
    shown = [row for row in report.rows if any(value is not None for value in row.values)]
    values = {row.quantity: row.values for row in report.rows}
    whole, active = (values.get(f"size.weights.{name}", ()) for name in ("parameters", "active_parameters"))
    if not any(differs(float(part or 0), float(all_of or 0)) for part, all_of in zip(active, whole, strict=False)):
        shown = [row for row in shown if row.quantity != "size.weights.active_parameters"]
    return [
        heading(_title(report)),
        grid(columns, [[row.label, *_cells(row)] for row in shown]),
        Text("* best in its row; ratios are to the first column", style="dim"),
        *note_lines(report.notes),
    ]


def _misfits(report: CompareReport) -> str:
    """Name the misfits; nothing where all fits."""
    fits = next((row.values for row in report.rows if row.quantity == "decode.fits"), ())
    over = [side for side, value in zip(report.sides, fits, strict=False) if value is False]
    lines = [f"DOES NOT FIT: {side.label}: {side.misfit or 'more than its memory'}." for side in over]
    if lines:
        lines[-1] += " Its speeds are hypothetical. " if len(lines) == 1 else " Their speeds are hypothetical. "
    return " ".join(lines)


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
