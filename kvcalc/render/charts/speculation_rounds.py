"""The chart of ``kvcalc demo speculate``: tokens made over passes of the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.units import counted
from kvcalc.render.charts.pieces import Axis, chart, line_layer

if TYPE_CHECKING:
    from kvcalc.core.reports.lessons import SpeculationReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]


def spec(report: SpeculationReport) -> Spec:
    """Return a line for each draft and one without."""
    rows: list[dict[str, Any]] = [
        {"pass": place, "tokens": place, "draft": "none"} for place in range(report.output_tokens + 1)
    ]
    made: dict[str, int] = {}
    for step in report.steps:
        if step.draft not in made:
            rows.append({"pass": 0, "tokens": 0, "draft": step.draft})
        made[step.draft] = made.get(step.draft, 0) + len(step.emitted)
        rows.append({"pass": step.place, "tokens": made[step.draft], "draft": step.draft})
    lines = line_layer(
        rows,
        x=Axis(field="pass", title="passes of the target", whole=True),
        y=Axis(field="tokens", title="tokens made", whole=True),
        series="draft",
        title="draft",
    )
    told = [
        f"{counted(report.gamma, 'token')} drafted for a pass; the output is the same each time",
        "source: kvcalc, a small decoder with random weights",
    ]
    return chart([lines], title="Speculation: the passes change, the output does not", subtitle=told)
