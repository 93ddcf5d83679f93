"""The table and chart of ``kvcalc traffic``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, counted, number_text
from kvcalc.render.layout import Drawing, Text
from kvcalc.render.tables import figure_grid, formats_text, heading, note_lines
from kvcalc.render.terminal import line_chart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.traffic import TrafficReport
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["parts", "sentence", "spec"]

_COLUMNS = ("output_tokens", "context", "kv_bytes", "weight_bytes", "kv_read_bytes", "growth_exponent")


def sentence(report: TrafficReport) -> str:
    """Return the bytes of weights and cache that are read."""
    batch = f" for {number_text(report.batch)} sequences" if report.batch > 1 else ""
    after = f" after a prompt of {number_text(report.prompt_tokens)}" if report.prompt_tokens else ""
    weights, cache = bytes_text(report.weight_bytes), bytes_text(report.kv_read_bytes)
    tokens = counted(report.output_tokens, "token")
    return f"Generating {tokens}{after}{batch} reads {weights} of weights and {cache} of KV cache."


def parts(report: TrafficReport) -> list[Part]:
    """Return a row for each doubling of the output, and weights and cache read on logarithmic axes."""
    changed = f"; {', '.join(report.levers)}" if report.levers else ""
    title = (
        f"Bytes read to generate {counted(report.output_tokens, 'token')} after {number_text(report.prompt_tokens)}:"
        f" {report.model}, batch {number_text(report.batch)}  ({formats_text(report.formats)}{changed})"
    )
    meaning = "exponent: d log(cache read) / d log(tokens); 1 is linear growth, 2 quadratic"
    chart: list[Part] = []
    if len(report.rows) > 1:
        lines: dict[str, list[tuple[float, float]]] = {
            "weights": [(row.output_tokens, row.weight_bytes) for row in report.rows],
            "cache": [(row.output_tokens, row.kv_read_bytes) for row in report.rows if row.kv_read_bytes],
        }
        chart = [Text(), Drawing(partial(_chart, lines))]
    return [heading(title), figure_grid(report.rows, _COLUMNS), Text(meaning), *chart, *note_lines(report.notes)]


def _chart(lines: Mapping[str, list[tuple[float, float]]], width: int, plain: bool) -> str:  # noqa: FBT001  as `Drawing` calls it
    return line_chart(lines, x="tokens", y="B read", log=True, plain=plain, width=width)


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
