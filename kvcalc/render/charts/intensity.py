"""A second chart of ``kvcalc roofline``: the intensity of decoding against the batch, and the plateau it tends to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.charts.pieces import Axis, chart, limit_layer, line_layer
from kvcalc.render.words import gpus_text

if TYPE_CHECKING:
    from kvcalc.core.reports.roofline import RooflineReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]


def spec(report: RooflineReport) -> Spec:
    """Return a line for each model and context over the batch, with its plateau where it has one."""
    models = {point.model for point in report.points}
    rows = [
        {
            "batch": point.batch,
            "intensity": point.intensity_flop_per_byte,
            "pass": (f"{point.model}, " if len(models) > 1 else "") + f"context {point.context:,}",
            "limiter": point.limiter,
        }
        for point in report.points
        if point.phase == "decode"
    ]
    x = Axis(field="batch", title="batch, sequences", scale="log")
    y = Axis(field="intensity", title="arithmetic intensity, FLOP/B", scale="log", format="~g")
    plateaus = [limit_layer(row.plateau_flop_per_byte, along=y) for row in report.plateaus
                if row.plateau_flop_per_byte is not None]  # fmt: skip
    told = [
        "FLOP over compulsory bytes of a decode step; horizontal lines: what it tends to as the batch grows",
        f"source: kvcalc, profiles {', '.join(sorted(models))} and {report.gpu}",
    ]
    lines = line_layer(rows, x=x, y=y, series="pass", title="decode")
    return chart([lines, *plateaus], title=f"Intensity: {gpus_text(report)}", subtitle=told)
