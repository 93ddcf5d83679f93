"""The table and chart of ``kvcalc levers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, counted, number_text
from kvcalc.render.layout import Drawing, Text
from kvcalc.render.tables import figure_grid, formats_text, grid, heading, memory_text, misfit_text, note_lines
from kvcalc.render.terminal import overlap_chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.reports.levers import HeadlineRow, LeverRow, LeversReport
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["parts", "sentence", "spec"]

_COLUMNS = ("lever", "cuts", "kv_total_bytes", "kv_factor", "reserved_bytes", "read_total_bytes", "read_factor",
            "retrofit")  # fmt: skip

_ASSUMED = (
    "Assumes that the layers are divided evenly over two encoders and two local decoders. The paper does not report its"
    " own memory and speed, nor the workload of each factor."
)


def parts(report: LeversReport) -> list[Part]:
    """Return a row for each lever, what each asks for and may cost, and the published factors taken apart."""
    title = (
        f"Ways to shrink the KV cache of {report.model}: {counted(report.context, 'token')}, batch"
        f" {number_text(report.batch)}  ({formats_text(report.formats)})"
    )
    acting = [row for row in report.rows if row.applies]
    table = [heading(title), _bytes(report, acting), Text()]
    shown: list[Part] = [*table, *_chart(acting), *_asks(acting)]
    idle = [row for row in report.rows if not row.applies]
    if idle:
        shown += [Text(), heading("Not applicable"), *(Text(f"  {row.lever}: {row.remark}") for row in idle)]
    if any("resolution" in row.cuts for row in acting):
        shown += [Text(), *_headlines(report.headlines)]
    return [*shown, *note_lines(report.notes)]


def sentence(report: LeversReport) -> str:
    """Return the lever that shrinks the cache most without training, or what the chosen ones come to."""
    misfit = _misfit(report, [row for row in report.rows if row.applies])
    first, *rest = report.rows
    asked = f"{number_text(report.batch)} x {counted(report.context, 'token')}"
    text = f"The KV cache of {report.model} ({asked}) takes {bytes_text(first.kv_total_bytes)}"
    acting = [row for row in rest if row.applies and row.kv_total_bytes]
    if not acting:
        return f"{misfit} {text}, and nothing here shrinks it.".strip()
    if any(" + " in row.lever for row in acting):
        best, how = acting[-1], "with"
    else:
        free = [row for row in acting if row.retrofit == "yes"]
        best, how = min(free or acting, key=lambda row: row.kv_total_bytes), "with" if not free else "at best, with"
    trained = {"no": "which needs pre-training with it", "fine-tuning": "which needs fine-tuning"}
    ending = trained.get(best.retrofit, "without retraining")
    shrunk = f"{bytes_text(best.kv_total_bytes)} {how} {best.lever} ({best.kv_factor:.3g}x smaller)"
    return f"{misfit} {text}, and {shrunk}, {ending}.".strip()


def _misfit(report: LeversReport, rows: Sequence[LeverRow]) -> str:
    if report.gpu is None or report.memory_bytes is None:
        return ""
    over = [row.memory_needed_bytes or 0 for row in rows if row.fits is False]
    memory = memory_text(report.memory_bytes, gpu=report.gpu, gpus=report.gpus)
    return misfit_text(
        over,
        rows=len(rows),
        available_bytes=report.memory_bytes,
        memory=memory,
        gpus=report.gpus,
        reason="the rest is needed by the engine",
    )


def _chart(rows: Sequence[LeverRow]) -> list[Part]:
    bars = {row.lever: (row.kv_total_bytes, row.read_total_bytes) for row in rows}

    def drawn(width: int, plain: bool) -> str:  # noqa: FBT001  as `Drawing` calls it
        return overlap_chart(bars, first="held", second="read per step", width=width, plain=plain)

    return [Drawing(drawn), Text()]


def _bytes(report: LeversReport, rows: Sequence[LeverRow]) -> Part:
    speeds = () if report.gpu is None else ("tokens_per_s", "tokens_per_s_per_gib")
    return figure_grid(rows, (*_COLUMNS, *speeds), left=2, shown=_cell)


def _cell(row: LeverRow, name: str, text: str) -> str:
    """Add the host's share, write factors as such, and mark what is hypothetical."""
    match name:
        case "kv_total_bytes" if row.host_bytes:
            return f"{text} + {bytes_text(row.host_bytes)} host"
        case "kv_factor":
            return f"{row.kv_factor:.3g}x"
        case "read_factor":
            return "" if row.read_factor is None else f"{row.read_factor:.3g}x"
        case "tokens_per_s" | "tokens_per_s_per_gib" if text != "-" and not row.fits:
            return f"{text} *"
    return text


def _asks(rows: Sequence[LeverRow]) -> list[Part]:
    lines = [[row.lever, row.quality] for row in rows if row.lever != "none"]
    return [heading("Effect on quality"), grid(["lever", "quality"], lines, left=2)] if lines else []


def _headlines(headlines: Sequence[HeadlineRow]) -> list[Part]:
    rows = [
        [
            row.claim,
            f"{row.prompt_tokens:,} in, {row.output_tokens:,} out",
            f"{row.published_factor:,.0f}",
            f"{row.memory_factor:.1f}",
            f"{row.throughput_factor:.1f}",
        ]
        for row in headlines
    ]
    columns = ["published throughput / memory", "workload", "factor", "from memory", "left for speed"]
    title = heading("Published factors, split into memory (from the architecture) and speed")
    return [title, grid(columns, rows, left=2), Text(_ASSUMED)]


def spec(report: LeversReport) -> Spec:
    """Return two points for each lever that acts: bytes held and bytes read by a step."""
    from kvcalc.render.charts import Axis, chart, point_layer

    rows = [
        {"lever": row.lever, "bytes": size, "what": what}
        for row in report.rows
        if row.applies
        for what, size in (("held", row.kv_total_bytes), ("read per step", row.read_total_bytes))
        if size
    ]
    points = point_layer(
        rows,
        x=Axis(field="bytes", title="bytes of the cache", scale="log"),
        y=Axis(field="lever", title="lever", scale="names"),
        series="what",
        title="cache",
        size=90,
    )
    subtitle = [
        f"{counted(report.context, 'token')}, batch {report.batch:,}; {formats_text(report.formats)}",
        f"source: kvcalc, profile {report.model}",
    ]
    return chart([points], title=f"Ways to shrink the KV cache of {report.model}", subtitle=subtitle)
