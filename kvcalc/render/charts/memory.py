"""A second chart of ``kvcalc decode``: weights and cache against the memory of a GPU, and where they stop fitting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.charts.pieces import Axis, chart, limit_layer, line_layer
from kvcalc.render.words import formats_text, gpus_text

if TYPE_CHECKING:
    from kvcalc.core.reports.speed import DecodeReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]

_MOST_SHOWN = 2


def spec(report: DecodeReport) -> Spec:
    """Return the bytes on the fullest GPU over the context, a line for each batch, below the memory there is."""
    rows = [
        {"context": row.context, "batch": f"{row.batch:,}", "bytes": row.memory_needed_bytes, "fits": row.fits}
        for row in report.rows
    ]
    x = Axis(field="context", title="context, tokens", scale="log")
    y = Axis(field="bytes", title="memory of the fullest GPU, bytes")
    lines = line_layer(rows, x=x, y=y, series="batch", title="batch, sequences")
    # what is far above the memory says no more than that it does not fit: lines end at the edge
    lines["mark"] |= {"clip": True, "point": lines["mark"]["point"] | {"clip": True}}
    shown = min(max(row.memory_needed_bytes for row in report.rows), _MOST_SHOWN * report.memory_bytes)
    lines["encoding"]["y"]["scale"] = {"domainMax": max(shown, report.memory_bytes)}
    told = [
        f"{formats_text(report.formats)}; weights and cache, without what an engine adds",
        "horizontal line: the GPU's memory",
        f"source: kvcalc, profiles {report.model} and {report.gpu}",
    ]
    limit = limit_layer(report.memory_bytes, along=y)
    return chart([lines, limit], title=f"Memory: {report.model} on {gpus_text(report)}", subtitle=told)
