"""The chart of ``kvcalc roofline``: the ceilings of each format, and the passes below them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import rate_text
from kvcalc.render.charts.pieces import Axis, chart, line_layer, point_layer
from kvcalc.render.words import gpus_text

if TYPE_CHECKING:
    from kvcalc.core.reports.roofline import RooflineReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]

_X = Axis(field="intensity_flop_per_byte", title="arithmetic intensity, FLOP/B", scale="log", format="~g")
_Y = Axis(field="attainable_flop_per_s", title="FLOP/s at most", scale="log")
# How far the axis reaches beyond the outermost ridge or point.
_MARGIN = 4.0


def spec(report: RooflineReport) -> Spec:
    """Return ceilings as lines that bend at their ridge points, and each pass as a point."""
    bandwidth = report.memory_bandwidth_bytes_per_s
    points = [point.intensity_flop_per_byte for point in report.points]
    left = min([1.0, *points])
    right = max([_MARGIN * max(report.ridge_flop_per_byte.values()), *points])
    same: dict[float, list[str]] = {}
    for unit, peak in report.peak_flop_per_s.items():
        same.setdefault(peak, []).append(unit)
    ceilings = [
        {_X.field: intensity, _Y.field: min(peak, intensity * bandwidth), "format": ", ".join(units)}
        for peak, units in sorted(same.items())
        for intensity in (left, report.ridge_flop_per_byte[units[0]], right)
    ]
    layers = [line_layer(ceilings, x=_X, y=_Y, series="format", title="dense peak", points=False)]
    if report.points:
        rows = [
            {
                "pass": f"{point.model}, {point.phase}",
                _X.field: point.intensity_flop_per_byte,
                _Y.field: point.attainable_flop_per_s,
                "batch": point.batch,
                "context": point.context,
                "limiter": point.limiter,
            }
            for point in report.points
        ]
        layers.append(point_layer(rows, x=_X, y=_Y, series="pass", title="pass", colour="black"))
    told = [f"memory {rate_text(bandwidth)}", f"source: kvcalc, profile {report.gpu}"]
    return chart(layers, title=f"Roofline: {gpus_text(report)}", subtitle=told)
