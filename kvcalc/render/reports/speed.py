"""The tables and charts of ``kvcalc decode`` and ``kvcalc prefill``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.reports.speed import DecodeReport, DecodeRow
from kvcalc.core.units import bytes_text, counted, flop_text, number_text, seconds_text, usd_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import (
    engine_text,
    facts,
    figure_grid,
    formats_text,
    gpus_text,
    grid,
    heading,
    memory_text,
    misfit_text,
    note_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.core.reports.speed import EstimatedWith, PartCost, PrefillReport, PrefillRow
    from kvcalc.render.charts import Axis, Spec
    from kvcalc.render.layout import Part

__all__ = ["memory_spec", "parts", "sentence", "spec"]

_PRICE = "usd_per_million_tokens"
# Figures that are hypothetical where the batch does not fit.
_AT_A_SPEED = ("tokens_per_s", "tokens_per_s_per_sequence", "ideal_s", "serial_s", _PRICE)
_HYPOTHETICAL = "hypothetical: it does not fit"


def sentence(report: DecodeReport | PrefillReport) -> str:
    """Return the bound of the first row, or of all from the least to the most; what does not fit is said first."""
    misfit, where = _misfit(report), f"{report.model} on {gpus_text(report)}"
    is_decode = isinstance(report, DecodeReport)
    rows: Sequence[DecodeRow | PrefillRow] = report.rows
    values = [row.tokens_per_s if isinstance(row, DecodeRow) else row.ideal_s for row in rows]
    shown = _span(values, number_text if is_decode else seconds_text)
    lengths = [row.context if isinstance(row, DecodeRow) else row.prompt for row in rows]
    batch = f"batch {_span([row.batch for row in rows], number_text)}"
    limits = dict.fromkeys(f"{row.limiter}-bound" for row in rows)
    limit = " or ".join(limits)
    if is_decode:
        text = f"{where} decodes at most {shown} tokens/s ({batch}, context {_span(lengths, number_text)}): {limit}."
    else:
        prompt = f"{_span(lengths, number_text)}-token prompt" + "s" * (len(rows) > 1)
        text = f"{where} takes at least {shown} to the first token ({batch}, {prompt}): {limit}."
    if not misfit:
        return text
    return f"{misfit} {text}".replace(" decodes", " would decode").replace(" takes", " would take")


def _span(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = min(values), max(values)
    return text(low) if low == high else f"{text(low)} to {text(high)}"


def parts(report: DecodeReport | PrefillReport) -> list[Part]:
    """Return the table of a decode or prefill report."""
    return _decode(report) if isinstance(report, DecodeReport) else _prefill(report)


def _memory(report: DecodeReport | PrefillReport) -> str:
    return memory_text(report.memory_bytes, gpu=report.gpu, gpus=report.gpus)


def _misfit(report: DecodeReport | PrefillReport) -> str:
    """Name the misfits; nothing where all fits."""
    over = [row.memory_needed_bytes for row in report.rows if not row.fits]
    return misfit_text(
        over,
        rows=len(report.rows),
        available_bytes=report.memory_bytes,
        memory=_memory(report),
        gpus=report.gpus,
        reason=f"under {engine_text(report.engine)}, {report.fit_reason}",
    )


def _limiter(row: DecodeRow | PrefillRow) -> str:
    others = [f"{name} {share:.0%}" for name, share in row.shares.items() if name != row.limiter and round(share, 2)]
    return f"{row.limiter} ({', '.join(others)})" if others else row.limiter


def _parts_table(parts: Sequence[PartCost]) -> list[Part]:
    rows = [[part.part, bytes_text(part.moved_bytes), flop_text(part.flop)] for part in parts]
    total = ["total", bytes_text(sum(p.moved_bytes for p in parts)), flop_text(sum(p.flop for p in parts))]
    table = grid(["part", "bytes", "FLOP"], [*rows, total])
    return [heading("Bytes and FLOP per step, by part"), table]


def _title(report: DecodeReport | PrefillReport, what: str) -> str:
    return f"{what} bound: {report.model} on {gpus_text(report)}  ({formats_text(report.formats)})"


def _decode(report: DecodeReport) -> list[Part]:
    if len(report.rows) == 1:
        shown = _one_decode(report, report.rows[0])
        return [*shown, *_estimate_table(report), *note_lines(report.notes)]
    title = heading(_title(report, "Decode"))
    table = figure_grid(report.rows, _columns(report), shown=_cell)
    shown = [*_parts_by_row(report), *_estimate_table(report), *note_lines(report.notes)]
    return [title, table, Text(), *shown]


def _marked(text: str, row: DecodeRow | PrefillRow) -> str:
    return text if row.fits else f"{text} *"


def _columns(report: DecodeReport | PrefillReport) -> list[str]:
    """Return the columns of a table; what a million tokens cost is there where the price is known."""
    return [name for name in report.rows[0].columns if name != _PRICE or report.price_per_hour_usd is not None]


def _cell(row: DecodeRow | PrefillRow, name: str, text: str) -> str:
    """Mark what is hypothetical, and say what else takes time."""
    if name == "limiter":
        return _limiter(row)
    return _marked(text, row) if name in _AT_A_SPEED else text


def _parts_by_row(report: DecodeReport) -> list[Part]:
    """Bytes and FLOP of each part, a line for each batch and context."""
    names = list(dict.fromkeys(part.part for row in report.rows for part in row.parts))
    shown: list[Part] = []
    for title, field, text in (("Bytes moved", "moved_bytes", bytes_text), ("FLOP", "flop", flop_text)):
        rows = []
        for row in report.rows:
            sizes = {part.part: getattr(part, field) for part in row.parts}
            cells = [text(sizes.get(name, 0)) if sizes.get(name) else "-" for name in names]
            rows.append([number_text(row.batch), number_text(row.context), *cells])
        shown += [heading(f"{title} per step, by part"), grid(["batch", "context", *names], rows, left=0), Text()]
    return [*shown, *_expert_lines(report)]


def _expert_lines(report: DecodeReport) -> list[Part]:
    spreads = [(row, row.experts) for row in report.rows if row.experts is not None]
    if not spreads:
        return []
    rows = [
        [number_text(row.batch), number_text(row.context), *map(seconds_text, (s.best_s, row.ideal_s, s.worst_s))]
        for row, s in spreads
    ]
    columns = ["batch", "context", "fewest experts", "expected", "most experts"]
    return [heading("Ideal step time by number of experts touched"), grid(columns, rows, left=0)]


def _one_decode(report: DecodeReport, row: DecodeRow) -> list[Part]:
    mark = "" if row.fits else " *"
    rows: list[tuple[str, ...]] = [
        ("batch, context", f"{number_text(row.batch)}, {counted(row.context, 'token')}"),
        ("tokens/s (upper bound)", number_text(row.tokens_per_s) + mark, "" if row.fits else _HYPOTHETICAL),
        ("  per sequence", number_text(row.tokens_per_s_per_sequence) + mark),
        ("  per GiB used", number_text(row.tokens_per_s_per_gib) + mark),
        ("decode step, ideal", seconds_text(row.ideal_s), "lower bound: everything overlapped"),
        ("decode step, serial", seconds_text(row.serial_s), "without overlap"),
        *_estimate_facts(row),
        ("limited by", _limiter(row)),
        ("intensity", f"{number_text(row.intensity_flop_per_byte)} FLOP/B"),
        (
            "memory per GPU",
            bytes_text(row.memory_needed_bytes),
            f"of {_memory(report)}; weights and KV cache, no engine overhead",
        ),
    ]
    rows += _cost_facts(report, row)
    if row.experts is not None:
        spread = f"{seconds_text(row.experts.best_s)} to {seconds_text(row.experts.worst_s)}"
        rows.append(("  by experts touched", spread, "fewest and most experts; the rest uses the expected number"))
    return [heading(_title(report, "Decode")), facts(rows), Text(), *_parts_table(row.parts)]


def _estimate_facts(row: DecodeRow) -> list[tuple[str, ...]]:
    if row.estimate_s is None or row.estimate_tokens_per_s is None:
        return []
    return [
        ("decode step, estimate", _marked(seconds_text(row.estimate_s), row), f"80% interval {_interval(row)}"),
        ("  tokens/s", _marked(number_text(row.estimate_tokens_per_s), row)),
    ]


def _interval(row: DecodeRow | PrefillRow) -> str:
    return " to ".join(seconds_text(value) for value in (row.estimate_low_s, row.estimate_high_s) if value is not None)


def _estimate_table(report: DecodeReport | PrefillReport) -> list[Part]:
    """Return the estimates and their intervals, a line for each row, and what they are made with."""
    if report.calibration is None:
        return []
    if isinstance(report, DecodeReport) and len(report.rows) == 1:
        return [Text(), _estimate_words(report.calibration)]
    length = "context" if isinstance(report, DecodeReport) else "prompt"
    rows = [
        [
            number_text(row.batch),
            number_text(getattr(row, length)),
            _marked(seconds_text(row.estimate_s), row),
            _interval(row),
            f"{row.bound_share:.0%}",
            *_estimated_rate(row),
        ]
        for row in report.rows
        if row.estimate_s is not None
    ]
    columns = [
        "batch",
        length,
        "estimate",
        "80% interval",
        "of the bound",
        *(["tokens/s"] if length == "context" else []),
    ]
    return [Text(), heading("Estimated time"), grid(columns, rows, left=0), Text(), _estimate_words(report.calibration)]


def _estimated_rate(row: DecodeRow | PrefillRow) -> list[str]:
    rate = row.estimate_tokens_per_s if isinstance(row, DecodeRow) else None
    return [] if rate is None else [_marked(number_text(rate), row)]


def _estimate_words(used: EstimatedWith) -> Text:
    when = f", {used.date}" if used.date else ""
    return Text(f"Estimated with the calibration {used.name} ({used.engine}{when}).")


def _cost_facts(report: DecodeReport | PrefillReport, row: DecodeRow | PrefillRow) -> list[tuple[str, ...]]:
    """Energy and money of a token, where power and price are known."""
    shown: list[tuple[str, ...]] = []
    if row.joules_per_token is not None and report.power_w is not None:
        remark = f"lower bound, at {number_text(report.power_w)} W per GPU"
        shown.append(("energy per token", f"{number_text(row.joules_per_token)} J", remark))
    if row.usd_per_million_tokens is not None and report.price_per_hour_usd is not None:
        remark = f"lower bound, at ${report.price_per_hour_usd:,.2f} per GPU-hour"
        shown.append(("cost per 1M tokens", usd_text(row.usd_per_million_tokens), remark))
    return shown


def _prefill(report: PrefillReport) -> list[Part]:
    parts = [Text(), *_parts_table(report.rows[0].parts)] if len(report.rows) == 1 else []
    title = heading(_title(report, "Prefill"))
    shown = [*parts, *_estimate_table(report), *note_lines(report.notes)]
    return [title, figure_grid(report.rows, _columns(report), shown=_cell), *shown]


_GREY = "#555555"


def spec(report: DecodeReport | PrefillReport) -> Spec:
    """Return tokens/s of decoding, or the time to first token, over batch or length; the other tells lines apart."""
    from kvcalc.render.charts import Axis, chart, line_layer

    if isinstance(report, DecodeReport):
        length, what = "context", "Decode bound"
        y = Axis(field="tokens_per_s", title="tokens/s (upper bound)", format=",~r")
        rows: list[Mapping[str, Any]] = [_chart_row(row, "context", row.context) for row in report.rows]
    else:
        length, what = "prompt", "Prefill bound"
        y = Axis(field="ideal_s", title="TTFT (lower bound), s", format="~g")
        rows = [_chart_row(row, "prompt", row.prompt) for row in report.rows]
    counts = {name: len({row[name] for row in rows}) for name in ("batch", length)}
    across, apart = ("batch", length) if counts["batch"] >= counts[length] else (length, "batch")
    x = Axis(
        field=across,
        title="batch, sequences" if across == "batch" else f"{length}, tokens",
        scale="log" if counts[across] > 1 else "linear",
    )
    lines = line_layer(rows, x=x, y=y, series=apart if counts[apart] > 1 else None, title=apart)
    subtitle = [
        formats_text(report.formats) + (f", {apart} {rows[0][apart]:,}" if counts[apart] == 1 else ""),
        "bound: everything overlapped",
        *_estimate_subtitle(report),
        f"source: kvcalc, profiles {report.model} and {report.gpu}",
    ]
    return chart(
        [lines, *_estimate_layers(rows, x, y)],
        title=f"{what}: {report.model} on {gpus_text(report)}",
        subtitle=subtitle,
    )


def _chart_row(row: DecodeRow | PrefillRow, length: str, tokens: int) -> Mapping[str, Any]:
    shown = {"tokens_per_s": row.tokens_per_s, "ideal_s": row.ideal_s, "limiter": row.limiter, "fits": row.fits}
    if row.estimate_s is None:
        return {"batch": row.batch, length: tokens, **shown}
    times = {"estimate_s": row.estimate_s, "low_s": row.estimate_low_s, "high_s": row.estimate_high_s}
    return {"batch": row.batch, length: tokens, **shown, **times}


def _estimate_layers(rows: Sequence[Mapping[str, Any]], x: Axis, y: Axis) -> list[Spec]:
    """Return the estimates as points and their intervals as strokes, in the unit of the axis."""
    from kvcalc.render.charts import point_layer, range_layer

    estimates = []
    for row in rows:
        if "estimate_s" in row:
            rate = y.field == "tokens_per_s"
            values = (row["tokens_per_s"] * row["ideal_s"] / row[name] if rate else row[name]
                      for name in ("estimate_s", "low_s", "high_s"))  # fmt: skip
            middle, *ends = values
            position = {"batch": row["batch"], x.field: row[x.field]}
            estimates.append({**position, y.field: middle, "from": ends[0], "to": ends[1]})
    if not estimates:
        return []
    strokes = range_layer(estimates, x=x, y=replace(y, field="from"), to="to", colour=_GREY)
    return [strokes, point_layer(estimates, x=x, y=y, size=30, colour=_GREY)]


def _estimate_subtitle(report: DecodeReport | PrefillReport) -> list[str]:
    used = report.calibration
    return [] if used is None else [f"points: estimate by {used.name}; lines: 80% interval"]


_MAX_OVER_MEMORY = 2


def memory_spec(report: DecodeReport | PrefillReport) -> Spec:
    """Return the bytes on the fullest GPU over the context, a line for each batch, below the memory there is.

    Raises:
        InputError: a report of prefill, whose memory is not drawn.
    """
    if not isinstance(report, DecodeReport):
        raise InputError("kvcalc.prefill/memory has no chart")
    from kvcalc.render.charts import Axis, chart, limit_layer, line_layer

    rows = [
        {"context": row.context, "batch": f"{row.batch:,}", "bytes": row.memory_needed_bytes, "fits": row.fits}
        for row in report.rows
    ]
    x = Axis(field="context", title="context, tokens", scale="log")
    y = Axis(field="bytes", title="memory per GPU, bytes")
    lines = line_layer(rows, x=x, y=y, series="batch", title="batch, sequences")
    # what is far above the memory says no more than that it does not fit: lines end at the edge
    lines["mark"] |= {"clip": True, "point": lines["mark"]["point"] | {"clip": True}}
    shown = min(max(row.memory_needed_bytes for row in report.rows), _MAX_OVER_MEMORY * report.memory_bytes)
    lines["encoding"]["y"]["scale"] = {"domainMax": max(shown, report.memory_bytes)}
    subtitle = [
        f"{formats_text(report.formats)}; weights and KV cache, no engine overhead",
        "horizontal line: the GPU's memory",
        f"source: kvcalc, profiles {report.model} and {report.gpu}",
    ]
    limit = limit_layer(report.memory_bytes, along=y)
    return chart([lines, limit], title=f"Memory: {report.model} on {gpus_text(report)}", subtitle=subtitle)
