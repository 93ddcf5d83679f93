"""The charts of ``kvcalc decode`` and ``kvcalc prefill``: the bound over batch or length, whichever was varied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.reports.speed import DecodeReport
from kvcalc.render.charts.pieces import Axis, chart, line_layer
from kvcalc.render.words import formats_text, gpus_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.speed import DecodeRow, PrefillReport, PrefillRow
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]


def spec(report: DecodeReport | PrefillReport) -> Spec:
    """Return tokens/s of decoding, or the time to first token, over batch or length; the other tells lines apart."""
    if isinstance(report, DecodeReport):
        length, what = "context", "Decode bound"
        y = Axis(field="tokens_per_s", title="tokens/s at most")
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
        f"source: kvcalc, profiles {report.model} and {report.gpu}",
    ]
    return chart([lines], title=f"{what}: {report.model} on {gpus_text(report)}", subtitle=told)


def _row(row: DecodeRow | PrefillRow, length: str, tokens: int) -> Mapping[str, Any]:
    shown = {"tokens_per_s": row.tokens_per_s, "ideal_s": row.ideal_s, "limiter": row.limiter, "fits": row.fits}
    return {"batch": row.batch, length: tokens, **shown}
