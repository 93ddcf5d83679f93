"""The table and charts of ``kvcalc roofline``."""

from __future__ import annotations

from math import inf, log
from typing import TYPE_CHECKING, Any

from kvcalc.core.units import flop_rate_text, number_text, rate_text
from kvcalc.render.layout import Drawing, Text
from kvcalc.render.tables import figure_grid, gpus_text, grid, heading, note_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.reports.roofline import RooflinePoint, RooflineReport
    from kvcalc.render.charts import Axis, Spec
    from kvcalc.render.layout import Part

__all__ = ["ceilings", "intensity_spec", "parts", "sentence", "spec"]

_POINT = ("model", "phase", "batch", "context", "intensity_flop_per_byte", "attainable_flop_per_s", "limiter", "fits")


def sentence(report: RooflineReport) -> str:
    """Return the limiter of each phase of the models, or the ridge point of the accelerator."""
    unit = next((name for name in ("bf16", "fp16") if name in report.ridge_flop_per_byte), min(report.peak_flop_per_s))
    ridge = f"{number_text(report.ridge_flop_per_byte[unit])} FLOP/B in {unit}"
    if not report.points:
        return f"{gpus_text(report)} is memory-bound below {ridge}, its ridge point, and compute-bound above."
    by_limiter: dict[tuple[str, str], list[RooflinePoint]] = {}
    for point in report.points:
        by_limiter.setdefault((point.phase, point.limiter), []).append(point)
    phrases = []
    for (phase, limiter), points in sorted(by_limiter.items()):
        values = [point.intensity_flop_per_byte for point in points]
        ends = dict.fromkeys(number_text(end) for end in (min(values), max(values)))
        phrases.append(f"{phase} is {limiter}-bound ({' to '.join(ends)} FLOP/B)")
    return f"On {gpus_text(report)} {', '.join(phrases)}; the ridge point is {ridge}."


def parts(report: RooflineReport) -> list[Part]:
    """Return ceilings, chart, points and plateaus."""
    from kvcalc.render.terminal import roofline_chart

    ceilings = [
        [unit, flop_rate_text(rate), f"{number_text(report.ridge_flop_per_byte[unit])} FLOP/B"]
        for unit, rate in report.peak_flop_per_s.items()
    ]
    title = f"Roofline: {gpus_text(report)}, memory {rate_text(report.memory_bandwidth_bytes_per_s)}"
    shown: list[Part] = [heading(title), grid(["format", "dense peak", "ridge point"], ceilings)]
    shown += [Text(), Drawing(lambda width, plain: roofline_chart(report, width=width, plain=plain))]
    if report.points:
        shown += [Text(), heading("Points"), figure_grid(report.points, _POINT, left=2, shown=_fits)]
    if report.plateaus:
        rows = [
            [
                row.model,
                number_text(row.context),
                f"{number_text(row.plateau_flop_per_byte)} FLOP/B",
                number_text(row.half_batch),
                "memory-bound at every batch"
                if row.compute_bound_batch is None
                else number_text(row.compute_bound_batch),
            ]
            for row in report.plateaus
        ]
        columns = ["model", "context", "plateau", "half at batch", "compute-bound from batch"]
        shown += [Text(), heading("Where a larger batch stops helping decode"), grid(columns, rows)]
    return [*shown, *note_lines(report.notes)]


def _fits(point: RooflinePoint, name: str, text: str) -> str:
    return "no: hypothetical" if name == "fits" and not point.fits else text


# How far the axis reaches beyond the outermost ridge or point.
_MARGIN = 4.0


def ceilings(
    peaks: Mapping[str, float], bandwidth_bytes_per_s: float, points: Sequence[float], *, x: Axis, y: Axis
) -> Spec:
    """Return the ceilings of an accelerator as lines that bend at their ridge points; equal peaks share a line.

    Args:
        peaks: FLOP/s by format.
        bandwidth_bytes_per_s: of the memory.
        points: intensities that must lie between the ends.
        x: intensity.
        y: attainable FLOP/s.
    """
    from kvcalc.render.charts import line_layer

    ridges = {unit: peak / bandwidth_bytes_per_s for unit, peak in peaks.items()}
    left, right = min([1.0, *points]), max([_MARGIN * max(ridges.values()), *points])
    same: dict[float, list[str]] = {}
    for unit, peak in peaks.items():
        same.setdefault(peak, []).append(unit)
    rows = [
        {x.field: intensity, y.field: min(peak, intensity * bandwidth_bytes_per_s), "format": ", ".join(units)}
        for peak, units in sorted(same.items())
        for intensity in (left, ridges[units[0]], right)
    ]
    return line_layer(rows, x=x, y=y, series="format", title="dense peak", points=False)


def spec(report: RooflineReport) -> Spec:
    """Return ceilings as lines that bend at their ridge points, and each pass as a point."""
    from kvcalc.render.charts import Axis, chart, label_layer, point_layer

    x = Axis(field="intensity_flop_per_byte", title="arithmetic intensity, FLOP/B", scale="log", format="~g")
    y = Axis(field="attainable_flop_per_s", title="attainable FLOP/s", scale="log")
    bandwidth = report.memory_bandwidth_bytes_per_s
    points = [point.intensity_flop_per_byte for point in report.points]
    layers = [ceilings(report.peak_flop_per_s, bandwidth, points, x=x, y=y)]
    if report.points:
        rows = [
            {
                "pass": f"{point.model}, {point.phase}",
                x.field: point.intensity_flop_per_byte,
                y.field: point.attainable_flop_per_s,
                "batch": point.batch,
                "context": point.context,
                "limiter": point.limiter,
            }
            for point in report.points
        ]
        layers.append(point_layer(rows, x=x, y=y, series="pass", title="pass", colour="black"))
        ends = [row[x.field] for row in layers[0]["data"]["values"]]
        shown = _apart(rows, x.field, log(max(ends) / min(ends)))
        layers.append(label_layer(shown, x=x, y=y, text="batch"))
    subtitle = [
        f"memory {rate_text(bandwidth)}{'; numbers: the batch' if report.points else ''}",
        f"source: kvcalc, profile {report.gpu}",
    ]
    return chart(layers, title=f"Roofline: {gpus_text(report)}", subtitle=subtitle)


# Share of the axis that a character of a label takes, in a chart of some 400 pixels.
_CHARACTER_SHARE = 0.015


def _apart(rows: list[dict[str, Any]], along: str, whole: float) -> list[dict[str, Any]]:
    """Return the rows whose labels have room, of each pass from its smallest batch on."""
    last: dict[str, tuple[float, int]] = {}
    labelled: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["batch"], row[along])):
        position, characters = log(row[along]), len(f"{row['batch']:,}")
        before, width = last.get(row["pass"], (-inf, 0))
        if abs(position - before) >= ((characters + width + 1) / 2) * _CHARACTER_SHARE * whole:
            last[row["pass"]] = position, characters
            labelled.append(row)
    return labelled


def intensity_spec(report: RooflineReport) -> Spec:
    """Return a line for each model and context over the batch, with its plateau where it has one."""
    from kvcalc.render.charts import Axis, chart, limit_layer, line_layer

    models = {point.model for point in report.points}
    rows = [
        {
            "batch": point.batch,
            "intensity": point.intensity_flop_per_byte,
            "pass": (f"{point.model}, " if len(models) > 1 else "") + f"context {point.context:,}",
            "limiter": point.limiter,
        }
        for point in report.points
        if point.phase == "decode"
    ]
    x = Axis(field="batch", title="batch, sequences", scale="log")
    y = Axis(field="intensity", title="arithmetic intensity, FLOP/B", scale="log", format="~g")
    plateaus = [limit_layer(row.plateau_flop_per_byte, along=y) for row in report.plateaus
                if row.plateau_flop_per_byte is not None]  # fmt: skip
    subtitle = [
        "FLOP / compulsory bytes of a decode step; horizontal lines: the plateau for large batches",
        f"source: kvcalc, profiles {', '.join(sorted(models))} and {report.gpu}",
    ]
    lines = line_layer(rows, x=x, y=y, series="pass", title="decode")
    return chart([lines, *plateaus], title=f"Intensity: {gpus_text(report)}", subtitle=subtitle)
