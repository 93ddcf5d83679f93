"""The chart of ``kvcalc crosscheck``: each measured step against its bound, and against its estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.render.charts.pieces import Axis, chart, line_layer, point_layer

if TYPE_CHECKING:
    from kvcalc.core.reports.measure import CrosscheckReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]

_X = Axis(field="predicted_s", title="predicted step, s", scale="log", format="~g")
_Y = Axis(field="measured_s", title="measured step, s", scale="log", format="~g")


def spec(report: CrosscheckReport) -> Spec:
    """Return points above the diagonal for the bounds, about it for the estimates."""
    rows: list[dict[str, Any]] = []
    for row in report.rows:
        what = {"model": row.model, "format": row.format, "batch": row.batch, "context": row.context}
        rows.append({"against": "bound", _X.field: row.bound_s, _Y.field: row.measured_s, **what})
        if row.estimate_s is not None:
            rows.append({"against": "estimate", _X.field: row.estimate_s, _Y.field: row.measured_s, **what})
    ends = [min(row[_X.field] for row in rows), max(max(row[_X.field], row[_Y.field]) for row in rows)] if rows else []
    diagonal = [{_X.field: end, _Y.field: end, "line": "measured = predicted"} for end in ends]
    told = [
        f"{report.title}, {report.date}",
        f"ceilings: {report.gpu}",
        f"source: kvcalc crosscheck on {report.device}",
    ]
    layers = [
        line_layer(diagonal, x=_X, y=_Y, series="line", points=False),
        point_layer(rows, x=_X, y=_Y, series="against", title="measured against", colour="black"),
    ]
    return chart(layers, title="Decode steps: measured against predicted", subtitle=told)
