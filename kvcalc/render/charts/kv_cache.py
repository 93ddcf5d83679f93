"""The chart of ``kvcalc demo kv-cache``: projections of each pass, without and with the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.charts.pieces import Axis, chart, line_layer

if TYPE_CHECKING:
    from kvcalc.core.reports.lessons import KvCacheReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]


def spec(report: KvCacheReport) -> Spec:
    """Return projections of a layer for each token made."""
    rows = [
        {"tokens": step.place, "projections": count, "run": run}
        for step in report.steps
        for run, count in (("without", step.projections_without), ("with a cache", step.projections_with))
    ]
    lines = line_layer(
        rows,
        x=Axis(field="tokens", title="tokens made", whole=True),
        y=Axis(field="projections", title="tokens projected to keys and values, in each layer", whole=True),
        series="run",
        title="run",
    )
    told = [
        f"prompt {report.prompt_tokens}; {report.projections_without:,} without, {report.projections_with:,} with",
        "source: kvcalc, a small decoder with random weights",
    ]
    return chart([lines], title="Keys and values computed again for each token, or kept", subtitle=told)
