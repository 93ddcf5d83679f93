"""The chart of ``kvcalc validate``: every measurement over its bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.units import counted
from kvcalc.render.charts.pieces import Axis, chart, line_layer, point_layer

if TYPE_CHECKING:
    from kvcalc.core.reports.validate import ValidateReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]

_X = Axis(field="bound_s", title="bound, s", scale="log")
# How far the line reaches beyond the outermost records.
_MARGIN = 1.3
_Y = Axis(field="measured_s", title="measured, s", scale="log")


def spec(report: ValidateReport) -> Spec:
    """Return a point for each measured time over its bound, and the line that none may lie below.

    Raises:
        InputError: no record that was held against a bound.
    """
    rows: list[dict[str, Any]] = [
        {
            "suite": outcome.suite if outcome.status != "explained" else f"{outcome.suite}, beaten for a cause",
            _X.field: outcome.bound,
            _Y.field: outcome.measured,
            "of bound": f"{outcome.share:.0%}",
            "record": outcome.id,
            "model": outcome.model,
            "hardware": outcome.hardware,
            "cause": outcome.reason,
        }
        for outcome in report.outcomes
        if outcome.share is not None
    ]
    if not rows:
        raise InputError("no record was held against a bound: there is nothing to draw")
    ends = (min(row[_X.field] for row in rows) / _MARGIN, max(row[_X.field] for row in rows) * _MARGIN)
    line = line_layer([{_X.field: end, _Y.field: end} for end in ends], x=_X, y=_Y, points=False)
    line["encoding"]["color"] = {"value": "black"}
    points = point_layer(rows, x=_X, y=_Y, series="suite", title="suite", size=24)
    told = [
        f"{counted(len(rows), 'record')}; below the line a measurement beats its bound",
        f"source: kvcalc validate, {report.records_file or 'shipped records'}",
    ]
    return chart([line, points], title="Measured over bound", subtitle=told)
