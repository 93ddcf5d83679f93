"""The table and chart of ``kvcalc layers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import counted, number_text, seconds_text
from kvcalc.render.layout import Text
from kvcalc.render.reports.roofline import ceilings
from kvcalc.render.tables import figure_grid, formats_text, gpus_text, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.layers import LayersReport
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["parts", "sentence", "spec"]

_COLUMNS = ("kind", "layers", "kv_bytes", "flop", "weight_bytes", "kv_read_bytes", "intensity_flop_per_byte", "ideal_s",
            "limiter")  # fmt: skip


def sentence(report: LayersReport) -> str:
    """Return the kind of layer that takes longest, and its share of all kinds one after the other."""
    longest = max(report.rows, key=lambda row: row.ideal_s)
    whole = sum(row.ideal_s for row in report.rows)
    share = longest.ideal_s / whole
    name = f"{counted(longest.layers, 'layer')} {longest.kind!r}" if longest.layers else longest.kind
    return (
        f"{report.model} on {gpus_text(report)}, {report.phase} of {number_text(report.batch)} x"
        f" {number_text(report.context)} tokens: {name}"
        f" take {seconds_text(longest.ideal_s)}, {share:.0%} of the pass, {longest.limiter}-bound."
    )


def parts(report: LayersReport) -> list[Part]:
    """Return a row for each kind, what it is made of, and the order that kinds stand in."""
    title = f"{report.phase.capitalize()} by kinds of layers: {report.model} on {gpus_text(report)}"
    made = [Text(f"{row.kind}: {row.what}") for row in report.rows]
    order = [f"{run.kind} x {run.layers}" for run in report.order]
    shown = order if len(order) <= _MAX_RUNS else [*order[:_MAX_RUNS], f"… {counted(len(report.order), 'run')} in all"]
    return [
        heading(f"{title}  ({formats_text(report.formats)})"),
        figure_grid(report.rows, _COLUMNS),
        Text("per GPU, over all layers of a kind; alone: the longer of compute and memory"),
        Text(),
        *made,
        Text(f"order: {', '.join(shown)}"),
        *note_lines(report.notes),
    ]  # fmt: skip


_MAX_RUNS = 12


def spec(report: LayersReport) -> Spec:
    """Return the accelerator's ceilings with a point for each part of each kind."""
    from kvcalc.render.charts import Axis, chart, point_layer

    x = Axis(field="intensity_flop_per_byte", title="arithmetic intensity, FLOP/B", scale="log", format="~g")
    y = Axis(field="attainable_flop_per_s", title="attainable FLOP/s", scale="log")
    rows = [
        {
            "kind": row.kind,
            "part": part.part,
            x.field: part.intensity_flop_per_byte,
            y.field: part.attainable_flop_per_s,
            "limiter": part.limiter,
        }
        for row in report.rows
        for part in row.parts
        if part.intensity_flop_per_byte and part.attainable_flop_per_s
    ]
    points = [part.intensity_flop_per_byte or 1.0 for row in report.rows for part in row.parts if part.flop]
    layers = [
        ceilings(report.peak_flop_per_s, report.memory_bandwidth_bytes_per_s, points, x=x, y=y),
        point_layer(rows, x=x, y=y, series="kind", title="kind of layer", colour="black"),
    ]
    subtitle = [f"{report.phase} of {report.batch:,} x {report.context:,} tokens; a point for each part of a kind",
                f"source: kvcalc, profiles {report.model} and {report.gpu}"]  # fmt: skip
    return chart(layers, title=f"Layers of {report.model} on {gpus_text(report)}", subtitle=subtitle)
