"""Charts for a terminal."""

from __future__ import annotations

import math
import string
from typing import TYPE_CHECKING

from kvcalc.core.units import count_text

if TYPE_CHECKING:
    from kvcalc.core.reports.roofline import RooflineReport

__all__ = ["roofline_chart"]

# Plotille prints a tick every ten columns and every row: with these steps the ticks fall on round numbers.
_TICK_COLUMNS = 10
_ROWS_PER_DECADE = 4
_MOST_TICKS = 8
# Spaces, and the braille pattern without dots that plotille fills its canvas with.
_BLANK = " \u2800"
_LETTERS = string.ascii_uppercase + string.ascii_lowercase


def roofline_chart(report: RooflineReport) -> str:
    """Return a roofline on two logarithmic axes: FLOP/B across, FLOP/s up.

    Each ceiling is a line, each point a letter.
    """
    import plotille

    bandwidth = report.memory_bandwidth_bytes_per_s
    peaks = sorted(set(report.peak_flop_per_s.values()))
    points = list(zip(_LETTERS, report.points, strict=False))
    intensities = [point.intensity_flop_per_byte for _, point in points]
    left, right, ticks = _axis(min([1.0, *intensities]), max([2 * peaks[-1] / bandwidth, *intensities]))
    lowest = min([peaks[0] / 10, *(point.attainable_flop_per_s for _, point in points)])
    bottom, top = (
        math.floor(math.log10(lowest)),
        math.ceil(_ROWS_PER_DECADE * math.log10(peaks[-1]) + 1) / _ROWS_PER_DECADE,
    )
    figure = plotille.Figure()
    figure.width, figure.height = ticks * _TICK_COLUMNS, round((top - bottom) * _ROWS_PER_DECADE)
    figure.origin, figure.with_colors = False, False
    figure.x_label, figure.y_label = "FLOP/B", "FLOP/s"
    figure.set_x_limits(left, right)
    figure.set_y_limits(bottom, top)
    figure.register_label_formatter(float, _power)
    for peak in peaks:
        ridge = math.log10(peak / bandwidth)
        start = max(left, bottom - math.log10(bandwidth))
        figure.plot([start, ridge, right], [start + math.log10(bandwidth), math.log10(peak), math.log10(peak)])
    for letter, point in points:
        figure.text([math.log10(point.intensity_flop_per_byte)], [math.log10(point.attainable_flop_per_s)], [letter])
    legend = [
        f"  {letter}  {point.model}, {point.phase}, batch {point.batch}, {point.context} tokens"
        for letter, point in points
    ]
    lines = [line.rstrip(_BLANK) for line in figure.show().splitlines()]
    return "\n".join([*lines, *legend])


def _axis(lowest: float, highest: float) -> tuple[float, float, int]:
    """Return the decades an axis spans and the number of its ticks, in whole or half decades."""
    for step in (0.5, 1.0, 2.0):
        left = math.floor(math.log10(lowest) / step) * step
        ticks = math.ceil((math.log10(highest) - left) / step)
        if ticks <= _MOST_TICKS:
            break
    return left, left + ticks * step, ticks


def _power(value: float, chars: int, delta: float, left: bool = False) -> str:  # noqa: FBT001, FBT002  plotille's signature
    del delta
    number = 10**value
    shown, _, prefix = count_text(float(f"{number:.2g}")).partition(" ")
    text = f"{float(shown):g}{prefix}"
    return f"{text:<{chars}}" if left else f"{text:>{chars}}"
