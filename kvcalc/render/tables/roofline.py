"""The table and chart of ``kvcalc roofline``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import flop_rate_text, number_text, rate_text
from kvcalc.render.layout import Text
from kvcalc.render.tables.pieces import figure_grid, grid, heading, note_lines
from kvcalc.render.words import gpus_text

if TYPE_CHECKING:
    from kvcalc.core.reports.roofline import RooflinePoint, RooflineReport
    from kvcalc.render.layout import Part

__all__ = ["parts"]

_POINT = ("model", "phase", "batch", "context", "intensity_flop_per_byte", "attainable_flop_per_s", "limiter", "fits")


def parts(report: RooflineReport) -> list[Part]:
    """Return ceilings, chart, points and plateaus."""
    from kvcalc.render.terminal import roofline_chart

    ceilings = [
        [unit, flop_rate_text(rate), f"{number_text(report.ridge_flop_per_byte[unit])} FLOP/B"]
        for unit, rate in report.peak_flop_per_s.items()
    ]
    title = f"Roofline: {gpus_text(report)}, memory {rate_text(report.memory_bandwidth_bytes_per_s)}"
    shown: list[Part] = [heading(title), grid(["format", "dense peak", "ridge point"], ceilings)]
    shown += [Text(), Text(roofline_chart(report))]
    if report.points:
        shown += [Text(), heading("Points"), figure_grid(report.points, _POINT, left=2, shown=_fits)]
    if report.plateaus:
        rows = [
            [
                row.model,
                number_text(row.context),
                f"{number_text(row.plateau_flop_per_byte)} FLOP/B",
                number_text(row.half_batch),
                "never: the cache is the limit"
                if row.compute_bound_batch is None
                else number_text(row.compute_bound_batch),
            ]
            for row in report.plateaus
        ]
        columns = ["model", "context", "plateau", "half at batch", "compute-bound from batch"]
        shown += [Text(), heading("Where the batch stops helping decode"), grid(columns, rows)]
    return [*shown, *note_lines(report.notes)]


def _fits(point: RooflinePoint, name: str, text: str) -> str:
    return "no: hypothetical" if name == "fits" and not point.fits else text
