"""The charts of ``kvcalc decode`` and ``kvcalc prefill``: the bound over batch or length, whichever was varied."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.reports.speed import DecodeReport
from kvcalc.render.charts.pieces import Axis, chart, line_layer, point_layer, range_layer
from kvcalc.render.words import formats_text, gpus_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.reports.speed import DecodeRow, PrefillReport, PrefillRow
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]

_GREY = "#555555"


def spec(report: DecodeReport | PrefillReport) -> Spec:
    """Return tokens/s of decoding, or the time to first token, over batch or length; the other tells lines apart."""
    if isinstance(report, DecodeReport):
        length, what = "context", "Decode bound"
        y = Axis(field="tokens_per_s", title="tokens/s at most", format=",~r")
        rows: list[Mapping[str, Any]] = [_row(row, "context", row.context) for row in report.rows]
    else:
        length, what = "prompt", "Prefill bound"
        y = Axis(field="ideal_s", title="time to first token at least, s", format="~g")
        rows = [_row(row, "prompt", row.prompt) for row in report.rows]
    counts = {name: len({row[name] for row in rows}) for name in ("batch", length)}
    across, apart = ("batch", length) if counts["batch"] >= counts[length] else (length, "batch")
    x = Axis(
        field=across,
        title="batch, sequences" if across == "batch" else f"{length}, tokens",
        scale="log" if counts[across] > 1 else "linear",
    )
    lines = line_layer(rows, x=x, y=y, series=apart if counts[apart] > 1 else None, title=apart)
    told = [
        formats_text(report.formats) + (f", {apart} {rows[0][apart]:,}" if counts[apart] == 1 else ""),
        "bound: everything overlapped, no measurement beats it",
        *_estimate_words(report),
        f"source: kvcalc, profiles {report.model} and {report.gpu}",
    ]
    return chart(
        [lines, *_estimates(rows, x, y)], title=f"{what}: {report.model} on {gpus_text(report)}", subtitle=told
    )


def _row(row: DecodeRow | PrefillRow, length: str, tokens: int) -> Mapping[str, Any]:
    shown = {"tokens_per_s": row.tokens_per_s, "ideal_s": row.ideal_s, "limiter": row.limiter, "fits": row.fits}
    if row.estimate_s is None:
        return {"batch": row.batch, length: tokens, **shown}
    times = {"estimate_s": row.estimate_s, "low_s": row.estimate_low_s, "high_s": row.estimate_high_s}
    return {"batch": row.batch, length: tokens, **shown, **times}


def _estimates(rows: Sequence[Mapping[str, Any]], x: Axis, y: Axis) -> list[Spec]:
    """Return the estimates as points and their intervals as strokes, in the unit of the axis."""
    found = []
    for row in rows:
        if "estimate_s" in row:
            rate = y.field == "tokens_per_s"
            values = (row["tokens_per_s"] * row["ideal_s"] / row[name] if rate else row[name]
                      for name in ("estimate_s", "low_s", "high_s"))  # fmt: skip
            middle, *ends = values
            place = {"batch": row["batch"], x.field: row[x.field]}
            found.append({**place, y.field: middle, "from": ends[0], "to": ends[1]})
    if not found:
        return []
    strokes = range_layer(found, x=x, y=replace(y, field="from"), to="to", colour=_GREY)
    return [strokes, point_layer(found, x=x, y=y, size=30, colour=_GREY)]


def _estimate_words(report: DecodeReport | PrefillReport) -> list[str]:
    used = report.calibration
    return [] if used is None else [f"points: estimate by {used.name}; four of five measurements lie on the strokes"]
