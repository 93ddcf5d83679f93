"""The table and chart of ``kvcalc traffic``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import counted, number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import figure_grid, formats_text, heading, note_lines
from kvcalc.render.terminal import line_chart

if TYPE_CHECKING:
    from kvcalc.core.reports.traffic import TrafficReport
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["parts", "spec"]

_COLUMNS = ("output_tokens", "context", "kv_bytes", "weight_bytes", "kv_read_bytes", "growth_exponent")


def parts(report: TrafficReport) -> list[Part]:
    """Return a row for each doubling of the output, and weights and cache read on logarithmic axes."""
    changed = f"; {', '.join(report.levers)}" if report.levers else ""
    title = (
        f"Bytes read to generate {counted(report.output_tokens, 'token')} after {number_text(report.prompt_tokens)}:"
        f" {report.model}, batch {number_text(report.batch)}  ({formats_text(report.formats)}{changed})"
    )
    meaning = "exponent: d log(cache read) / d log(tokens); 2 grows with the square, 1 in proportion"
    chart: list[Part] = []
    if len(report.rows) > 1:
        lines: dict[str, list[tuple[float, float]]] = {
            "weights": [(row.output_tokens, row.weight_bytes) for row in report.rows],
            "cache": [(row.output_tokens, row.kv_read_bytes) for row in report.rows if row.kv_read_bytes],
        }
        chart = [Text(), Text(line_chart(lines, x="tokens", y="B read", log=True))]
    return [heading(title), figure_grid(report.rows, _COLUMNS), Text(meaning), *chart, *note_lines(report.notes)]


def spec(report: TrafficReport) -> Spec:
    """Return two lines on logarithmic axes, whose slopes are the exponents of growth."""
    from kvcalc.render.charts import Axis, chart, line_layer

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
    subtitle = [
        f"prompt {report.prompt_tokens:,}, batch {report.batch:,}; {formats_text(report.formats)}{changed}",
        f"source: kvcalc, profile {report.model}",
    ]
    return chart([lines], title=f"Bytes read to generate tokens: {report.model}", subtitle=subtitle)
