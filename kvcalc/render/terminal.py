"""Charts for a terminal."""

from __future__ import annotations

import math
import string
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvcalc.core.units import count_text, counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.reports.roofline import RooflineReport

__all__ = ["heat_map", "line_chart", "overlap_chart", "roofline_chart"]

# Plotille prints a tick every ten columns and every row: with these steps the ticks fall on round numbers.
_TICK_COLUMNS = 10
_ROWS_PER_DECADE = 4
_MAX_TICKS = 8
# Columns beside the ticks of an axis across: the numbers of the axis up, the arrow and the brackets of its own label.
_BESIDE_COLUMNS = 19
_WIDTH = 110
# What plotille needs between the highest value and the end of a logarithmic axis: half a dot, of which a row has four.
_MARGIN_DECADES = 1 / 8
_NUMPY = "numpy"
_LETTERS = string.ascii_uppercase + string.ascii_lowercase
_LINE_TICKS, _LINE_ROWS = 6, 16
# Below the middle, and then each shade over the part of the way from there to the largest value.
_SHADES = " ░▒▓█"
_PLAIN_SHADES = " .:+#"
_BOTH, _FIRST, _SECOND = "█", "▒", "░"
_PLAIN_BOTH, _PLAIN_FIRST, _PLAIN_SECOND = "#", "=", "."
_MARK, _ROUNDING = "*", 1e-9
_LEAST_COLUMNS = 4
_INTENSITY = "FLOP/B"
_BAR_COLUMNS = 60


def roofline_chart(report: RooflineReport, *, width: int = _WIDTH, plain: bool = False) -> str:
    """Return a roofline on two logarithmic axes: FLOP/B across, FLOP/s up.

    Each ceiling is a line, each point a letter; ``plain`` draws in ASCII.
    """
    bandwidth = report.memory_bandwidth_bytes_per_s
    peaks = sorted(set(report.peak_flop_per_s.values()))
    points = list(zip(_LETTERS, report.points, strict=False))
    intensities = [point.intensity_flop_per_byte for _, point in points]
    ends = min([1.0, *intensities]), max([2 * peaks[-1] / bandwidth, *intensities])
    left, right, ticks = _axis(*ends, max_ticks=_ticks(width, _INTENSITY))
    lowest = min([peaks[0] / 10, *(point.attainable_flop_per_s for _, point in points)])
    bottom, top = (
        math.floor(math.log10(lowest)),
        math.ceil(_ROWS_PER_DECADE * math.log10(peaks[-1]) + 1) / _ROWS_PER_DECADE,
    )
    figure = _figure()
    figure.width, figure.height = ticks * _TICK_COLUMNS, round((top - bottom) * _ROWS_PER_DECADE)
    figure.origin, figure.with_colors = False, False
    figure.x_label, figure.y_label = _INTENSITY, "FLOP/s"
    figure.set_x_limits(left, right)
    figure.set_y_limits(bottom, top)
    figure.register_label_formatter(float, _power)
    for peak in peaks:
        ridge = math.log10(peak / bandwidth)
        start = max(left, bottom - math.log10(bandwidth))
        corners = [(start, start + math.log10(bandwidth)), (ridge, math.log10(peak)), (right, math.log10(peak))]
        _draw(figure, corners, step=(right - left) / figure.width, plain=plain)
    for letter, point in points:
        figure.text([math.log10(point.intensity_flop_per_byte)], [math.log10(point.attainable_flop_per_s)], [letter])
    legend = [
        f"  {letter}  {point.model}, {point.phase}, batch {point.batch}, {counted(point.context, 'token')}"
        for letter, point in points
    ]
    lines = [line.rstrip() for line in figure.show().replace("\u2800", " ").splitlines()]
    return "\n".join([*lines, *legend])


def _draw(figure: Any, corners: Sequence[tuple[float, float]], *, step: float, plain: bool) -> None:
    """Draw a line through its corners: dots of braille, or with ``plain`` a mark in each column."""
    if not plain:
        figure.plot([x for x, _ in corners], [y for _, y in corners])
        return
    for (x, y), (to_x, to_y) in pairwise(corners):
        count = max(1, math.floor((to_x - x) / step + _ROUNDING))
        marks = [(x + (column + 0.5) * step, column) for column in range(count) if x + (column + 0.5) * step < to_x]
        slope = (to_y - y) / (to_x - x) if to_x > x else 0.0
        figure.text([at for at, _ in marks], [y + slope * (at - x) for at, _ in marks], [_MARK] * len(marks))


def _figure() -> Any:
    """Return an empty figure.

    A figure loads NumPy if it can, to know its dates. There are none here, and that takes longer than the chart itself.
    """
    import plotille

    hidden = _NUMPY not in sys.modules
    if hidden:
        sys.modules[_NUMPY] = None  # type: ignore[assignment] # its import then fails, which plotille allows for
    try:
        return plotille.Figure()
    finally:
        if hidden:
            del sys.modules[_NUMPY]


def _ticks(width: int, label: str) -> int:
    """Return the ticks that an axis across has room for, beside its label and the numbers of the axis up."""
    return max(3, min(_MAX_TICKS, (width - _BESIDE_COLUMNS - len(label)) // _TICK_COLUMNS))


def _axis(lowest: float, highest: float, *, max_ticks: int = _MAX_TICKS) -> tuple[float, float, int]:
    """Return the decades an axis spans, to beyond the highest value, and its ticks, in whole or half decades."""
    for step in (0.5, 1.0, 2.0, 4.0):
        left = math.floor(math.log10(lowest) / step) * step
        ticks = math.floor((math.log10(highest) + _MARGIN_DECADES - left) / step) + 1
        if ticks <= max_ticks:
            break
    return left, left + ticks * step, ticks


def _power(value: float, chars: int, delta: float, left: bool = False) -> str:  # noqa: FBT001, FBT002  plotille's signature
    del delta
    number = 10**value
    shown, _, prefix = count_text(float(f"{number:.2g}")).partition(" ")
    text = f"{float(shown):g}{prefix}"
    return f"{text:<{chars}}" if left else f"{text:>{chars}}"


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    log: bool = False,
    plain: bool = False,
    width: int = _WIDTH,
) -> str:
    """Return lines over a common axis, each marked with a letter that the legend explains.

    Args:
        series: for each line its name and points; on logarithmic axes points must be above zero.
        x: what goes across, with its unit.
        y: what goes up, with its unit.
        log: whether both axes are logarithmic.
        plain: letters alone, in ASCII.
        width: columns of the terminal.
    """
    scaled = math.log10 if log else float
    lines = {name: [(scaled(a), scaled(b)) for a, b in points] for name, points in series.items() if points}
    figure = _figure()
    figure.origin, figure.with_colors = False, False
    figure.x_label, figure.y_label = x, y
    _frame(figure, [point for points in lines.values() for point in points], log=log, max_ticks=_ticks(width, x))
    for letter, points in zip(_LETTERS, lines.values(), strict=False):
        across, up = [a for a, _ in points], [b for _, b in points]
        if plain:
            figure.text(across, up, [letter] * len(points))
        else:
            index = (len(points) - 1) * 4 // 5
            figure.plot(across, up)
            figure.text([across[index]], [up[index]], [letter])
    shown = figure.show().replace("\u2800", " ").splitlines()
    legend = [f"  {letter}  {name}" for letter, name in zip(_LETTERS, lines, strict=False)]
    return "\n".join([*(line.rstrip() for line in shown), *legend])


def _frame(figure: Any, points: Sequence[tuple[float, float]], *, log: bool, max_ticks: int) -> None:
    """Set a figure's size and limits so that its ticks fall on round numbers and every point lies inside.

    Plotille has no place for what lies on the upper or right end of its axes.
    """
    across, up = [a for a, _ in points], [b for _, b in points]
    bottom: float
    top: float
    if log:
        left, right, ticks = _axis(10 ** min(across), 10 ** max(across), max_ticks=max_ticks)
        bottom = math.floor(min(up))
        decades = math.floor(max(up) + _MARGIN_DECADES) + 1 - bottom
        top = bottom + decades
        figure.width, figure.height = ticks * _TICK_COLUMNS, decades * max(1, _LINE_ROWS // decades)
        figure.register_label_formatter(float, _power)
    else:
        ticks = min(_LINE_TICKS, max_ticks)
        left, right = _rounded(across, ticks)
        bottom, top = _rounded(up, _LINE_ROWS)
        figure.width, figure.height = ticks * _TICK_COLUMNS, _LINE_ROWS
        figure.register_label_formatter(float, _short)
    figure.set_x_limits(left, right)
    figure.set_y_limits(bottom, top)


def _rounded(values: Sequence[float], parts: int) -> tuple[float, float]:
    """Return the ends of an axis from zero, or from below the least value, to beyond the largest, in round parts.

    >>> _rounded([3, 250], 16), _rounded([1, 20], 6), _rounded([1, 12], 6)
    ((0.0, 320.0), (0.0, 24.0), (0.0, 15.0))
    """
    low, high = min(0.0, *values), max(values)
    rough = (high - low) / parts or 1 / parts
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (size * power for size in (1, 2, 2.5, 3, 4, 5, 6, 8, 10, 20)):
        start = math.floor(low / step) * step
        # the last half of a part belongs to the end itself, where plotille has no place
        if start + (parts - 0.5) * step > high:
            break
    return start, start + parts * step


def _short(value: float, chars: int, delta: float, left: bool = False) -> str:  # noqa: FBT001, FBT002  plotille's signature
    del delta
    number, _, prefix = count_text(value).partition(" ") if abs(value) >= 1 else (f"{value:.2g}", "", "")
    text = f"{float(number):g}{prefix}"
    return f"{text:<{chars}}" if left else f"{text:>{chars}}"


def heat_map(
    cells: Mapping[tuple[str, str], float | None],
    *,
    across: str,
    down: str,
    middle: float,
    digits: int = 2,
    width: int = 120,
    plain: bool = False,
) -> str:
    """Return a field of numbers, each behind a shade: none up to the middle value, then darker with the value.

    Args:
        cells: for each column and row, by their names, the value; none, shown as ``-``, where there is none.
        across: what the columns are.
        down: what the rows are.
        middle: the value from which on cells are shaded.
        digits: digits behind the point; where there is no room, one at most, and at last ``across`` on a line above.
        width: columns of the terminal.
        plain: in ASCII alone.

    >>> print(heat_map({("a", "1"): 0.5, ("b", "1"): 2.0}, across="letter", down="n", middle=1, digits=1))
    n  letter a     b
    1       0.5  █2.0
    """
    columns, rows = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    top = max([middle, *(value for value in cells.values() if value is not None)])
    shades = _PLAIN_SHADES if plain else _SHADES

    def drawn(gap: str, digits: int, *, above: bool = False) -> list[str]:
        texts = {
            index: "-" if value is None else _shade(value, middle, top, shades) + f"{value:.{digits}f}"
            for index, value in cells.items()
        }
        first = max(len(name) for name in (down, *rows)) + 2
        size = max(len(text) for text in (*texts.values(), *columns))
        head = [f"{column:>{size}}" for column in columns]
        if not above:
            head[0] = f"{across} {columns[0]}".rjust(size)
        lead = " " * (len(head[0]) - size)
        lines = [" " * first + across] if above else []
        lines.append(f"{down:<{first}}" + gap.join(head))
        for row in rows:
            shown = [f"{texts[column, row]:>{size}}" for column in columns]
            lines.append(f"{row:>{first - 2}}  {lead}{gap.join(shown)}")
        return lines

    fewer = min(1, digits)
    tried = [drawn("  ", digits), drawn(" ", digits), drawn(" ", fewer), drawn(" ", fewer, above=True)]
    return "\n".join(next((lines for lines in tried if max(map(len, lines)) <= width), tried[-1]))


def _shade(value: float, middle: float, top: float, shades: str) -> str:
    if value <= middle:
        return shades[0]
    steps = len(shades) - 1
    return shades[min(steps, 1 + math.floor(steps * (value - middle) / (top - middle)))]


def overlap_chart(
    bars: Mapping[str, tuple[float, float]],
    *,
    first: str,
    second: str,
    columns: int = _BAR_COLUMNS,
    width: int = 2 * _BAR_COLUMNS,
    plain: bool = False,
) -> str:
    """Return a bar for each pair of numbers, on one scale from zero: full over the smaller, shaded up to the larger.

    Args:
        bars: for each name its two numbers, zero or more; one above zero takes a column at least.
        first: what the first number is.
        second: what the second is.
        columns: columns of the largest number, fewer where there is no room.
        width: columns of the terminal.
        plain: in ASCII alone.

    >>> print(overlap_chart({"a": (4, 4), "topk": (4, 2), "c": (1, 3)}, first="held", second="read", columns=4))
    a     ████
    topk  ██▒▒
    c     █░░
    █ held and read  ▒ held  ░ read
    """
    top = max((size for pair in bars.values() for size in pair), default=0) or 1
    indent = max(map(len, bars), default=0) + 2
    columns = max(_LEAST_COLUMNS, min(columns, width - indent))
    marks = (_PLAIN_BOTH, _PLAIN_FIRST, _PLAIN_SECOND) if plain else (_BOTH, _FIRST, _SECOND)
    lines = []
    for name, pair in bars.items():
        first_columns, read = (math.ceil(round(columns * size / top, 1)) for size in pair)
        both = min(first_columns, read)
        shown = marks[0] * both + marks[1] * (first_columns - both) + marks[2] * (read - both)
        lines.append(f"{name:<{indent}}{shown}".rstrip())
    return "\n".join([*lines, f"{marks[0]} {first} and {second}  {marks[1]} {first}  {marks[2]} {second}"])
