"""The table and chart of ``kvcalc roofline``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import flop_rate_text, number_text, rate_text
from kvcalc.render.layout import Text
from kvcalc.render.tables.pieces import grid, heading, note_lines
from kvcalc.render.words import gpus_text

if TYPE_CHECKING:
    from kvcalc.core.reports.roofline import RooflineReport
    from kvcalc.render.layout import Part

__all__ = ["parts"]


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
        rows = [
            [
                point.model,
                point.phase,
                number_text(point.batch),
                number_text(point.context),
                number_text(point.intensity_flop_per_byte),
                flop_rate_text(point.attainable_flop_per_s),
                point.limiter,
                "yes" if point.fits else "no: hypothetical",
            ]
            for point in report.points
        ]
        columns = ["model", "phase", "batch", "context", "FLOP/B", "attainable", "limiter", "fits"]
        shown += [Text(), heading("Points"), grid(columns, rows, left=2)]
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
