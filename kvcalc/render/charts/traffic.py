"""The chart of ``kvcalc traffic``: weights and cache read over the tokens generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.charts.pieces import Axis, chart, line_layer
from kvcalc.render.words import formats_text

if TYPE_CHECKING:
    from kvcalc.core.reports.traffic import TrafficReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]


def spec(report: TrafficReport) -> Spec:
    """Return two lines on logarithmic axes, whose slopes are the exponents of growth."""
    rows = [
        {"output_tokens": row.output_tokens, "bytes": size, "read": what}
        for row in report.rows
        for what, size in (("weights", row.weight_bytes), ("cache", row.kv_read_bytes))
        if size
    ]
    lines = line_layer(
        rows,
        x=Axis(field="output_tokens", title="tokens generated", scale="log"),
        y=Axis(field="bytes", title="bytes read", scale="log"),
        series="read",
        title="read",
    )
    changed = f"; {', '.join(report.levers)}" if report.levers else ""
    told = [
        f"prompt {report.prompt_tokens:,}, batch {report.batch:,}; {formats_text(report.formats)}{changed}",
        f"source: kvcalc, profile {report.model}",
    ]
    return chart([lines], title=f"Bytes read to generate tokens: {report.model}", subtitle=told)
