"""The chart of ``kvcalc levers``: the cache held and read with each lever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import counted
from kvcalc.render.charts.pieces import Axis, chart, point_layer
from kvcalc.render.words import formats_text

if TYPE_CHECKING:
    from kvcalc.core.reports.levers import LeversReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]


def spec(report: LeversReport) -> Spec:
    """Return two points for each lever that acts: bytes held and bytes read by a step."""
    rows = [
        {"lever": row.lever, "bytes": size, "what": what}
        for row in report.rows
        if row.applies
        for what, size in (("held", row.kv_total_bytes), ("read by a step", row.read_total_bytes))
        if size
    ]
    points = point_layer(
        rows,
        x=Axis(field="bytes", title="bytes of the cache", scale="log"),
        y=Axis(field="lever", title="lever", scale="names"),
        series="what",
        title="cache",
        size=90,
    )
    told = [
        f"{counted(report.context, 'token')}, batch {report.batch:,}; {formats_text(report.formats)}",
        f"source: kvcalc, profile {report.model}",
    ]
    return chart([points], title=f"Ways to shrink the cache of {report.model}", subtitle=told)
