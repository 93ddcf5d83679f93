"""The table of ``kvcalc compare``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, count_text, flop_rate_text, number_text, rate_text, seconds_text, usd_text
from kvcalc.render.layout import Text
from kvcalc.render.tables.pieces import grid, heading, note_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.reports.compare import CompareReport, CompareRow, CompareValue
    from kvcalc.render.layout import Part

__all__ = ["parts"]

_NAMES = {
    "size.weights.parameters": "parameters",
    "size.weights.active_parameters": "active for a token",
    "size.weights.total_bytes": "weights",
    "size.kv.bytes_per_token": "KV per token",
    "size.kv.bytes_per_sequence": "KV of a sequence",
    "size.kv.total_bytes": "KV of the batch",
    "decode.memory_needed_bytes": "memory of a GPU needed",
    "decode.fits": "fits",
    "fit.max_batch": "most sequences",
    "fit.max_context": "longest context",
    "decode.tokens_per_s": "tokens/s at most",
    "decode.tokens_per_s_per_sequence": "  per sequence",
    "decode.tokens_per_s_per_gib": "  per GiB used",
    "decode.ideal_s": "decode step at least",
    "decode.limiter": "  limited by",
    "decode.intensity_flop_per_byte": "  FLOP/B",
    "prefill.ideal_s": "first token at least",
    "prefill.limiter": "  limited by",
    "decode.joules_per_token": "J a token at least",
    "decode.usd_per_million_tokens": "a million tokens at least",
    "gpu.memory_bytes": "memory",
    "gpu.memory_bandwidth_bytes_per_s": "bandwidth",
    "gpu.board_power_w": "board power, W",
    "gpu.price_per_hour_usd": "price of an hour",
}
# How a quantity is printed, by the end of its name.
_TEXTS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_bytes_per_s", rate_text),
    ("_bytes", bytes_text),
    ("bytes_per_token", bytes_text),
    ("bytes_per_sequence", bytes_text),
    ("parameters", count_text),
    ("ideal_s", seconds_text),
    ("_tokens", usd_text),
    ("_usd", usd_text),
)


def parts(report: CompareReport) -> list[Part]:
    """Return quantities by line and sides by column; ratios are to the first, * marks the best."""
    columns = ["", *(side.label for side in report.sides)]
    shown = [row for row in report.rows if any(value is not None for value in row.values)]
    told: list[Part] = [
        *_warnings(report),
        heading(_title(report)),
        grid(columns, [[_name(row), *_cells(row)] for row in shown]),
    ]
    return [
        *told,
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


def _name(row: CompareRow) -> str:
    _, _, unit = row.quantity.rpartition(".")
    if row.quantity.startswith("gpu.peak"):
        return f"peak {unit}"
    if row.quantity.startswith("gpu.ridge"):
        return f"ridge {unit}, FLOP/B"
    return _NAMES[row.quantity]


def _cells(row: CompareRow) -> list[str]:
    cells = []
    for place, value in enumerate(row.values):
        text = _text(row.quantity, value)
        ratio = row.ratios[place]
        if place and ratio is not None and row.better and ratio != 1:
            text += f" ({ratio:,.2f}x)"
        cells.append(f"{text} *" if place in row.best else text)
    return cells


def _text(quantity: str, value: CompareValue) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, str):
        return value
    if quantity.startswith("gpu.peak"):
        return flop_rate_text(value)
    return next((text for end, text in _TEXTS if quantity.endswith(end)), number_text)(value)
