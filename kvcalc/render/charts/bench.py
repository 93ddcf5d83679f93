"""The chart of ``kvcalc bench``: bandwidth over the working set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.charts.pieces import Axis, chart, line_layer

if TYPE_CHECKING:
    from kvcalc.core.reports.measure import BenchReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]

_X = Axis(field="working_set_bytes", title="working set, B", scale="log")
_Y = Axis(field="bytes_per_s", title="bytes moved, B/s")


def spec(report: BenchReport) -> Spec:
    """Return a line for each way to stream through memory, over working sets from those that caches hold."""
    rows = [
        {"stream": f"{row.kind}: {row.name}", _X.field: row.working_set_bytes, _Y.field: row.bytes_per_s}
        for row in report.rows
        if row.kind in ("read", "write", "copy")
    ]
    rows.sort(key=lambda row: (str(row["stream"]), float(row[_X.field] or 0)))
    told = [f"{report.title}, {report.date}", f"source: kvcalc bench on {report.device}"]
    return chart(
        [line_layer(rows, x=_X, y=_Y, series="stream", title="stream")], title="Bandwidth reached", subtitle=told
    )
