"""Reports as tables for a terminal."""

from __future__ import annotations

import io
import os
import shutil
import sys
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvcalc.core.reports import DecodeReport, DecodeRow, PrefillReport, PrefillRow, RooflineReport, SizeReport
from kvcalc.core.units import (
    bytes_text,
    count_text,
    flop_rate_text,
    flop_text,
    number_text,
    rate_text,
    seconds_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from kvcalc.core.reports import ExplainedStep, KvSize, PartCost, RunFormats

__all__ = ["grid", "table_text"]

_HYPOTHETICAL = "does not fit: the speed is hypothetical, as if the memory were larger"


def table_text(report: Any, explained: Sequence[ExplainedStep] = ()) -> str:
    """Return a report as the text of tables, coloured where standard output is a terminal that takes colour."""
    width = shutil.get_terminal_size((110, 24)).columns if sys.stdout.isatty() else int(os.environ.get("COLUMNS", 110))
    text = io.StringIO()
    console = Console(file=text, width=max(60, width), force_terminal=sys.stdout.isatty(), highlight=False)
    for part in (*_parts(report), *_explained(explained)):
        console.print(part)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def grid(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """Return a table whose first ``left`` columns are words and whose others are numbers."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < left else "right", header_style="bold", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _facts(title: str, rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*(Text(cell) for cell in (*row, "", "")[:3]))
    return table


@singledispatch
def _parts(report: Any) -> list[RenderableType]:
    raise TypeError(f"no table for {type(report).__name__}")


def _formats(formats: RunFormats) -> str:
    return f"weights {formats.weights}, KV {formats.kv}, activations {formats.activations}"


def _notes(notes: Sequence[str]) -> list[RenderableType]:
    return [Text(f"note: {note}", style="dim") for note in notes]


def _both(size: float) -> tuple[str, str]:
    return bytes_text(size), f"{number_text(size)} B = {bytes_text(size, si=True)}"


@_parts.register(SizeReport)
def _size(report: SizeReport) -> list[RenderableType]:
    kv, weights = report.kv, report.weights
    rows: list[tuple[str, ...]] = [("KV cache per token", *_both(kv.bytes_per_token))]
    rows.append((f"per sequence of {number_text(report.context)} tokens", *_both(kv.bytes_per_sequence)))
    if kv.state_bytes_per_sequence:
        rows.append(("  of it state, at any length", *_both(kv.state_bytes_per_sequence)))
    if kv.cross_bytes_per_sequence:
        rows.append(("cross-attention per sequence, apart", *_both(kv.cross_bytes_per_sequence)))
    rows.append((f"total for {number_text(report.batch)} sequence{'s' * (report.batch > 1)}", *_both(kv.total_bytes)))
    if report.reserved is not None:
        rows.append((f"reserved by {report.reserved.engine}", *_both(report.reserved.total_bytes)))
    rows.append(("weights", *_both(weights.total_bytes)))
    active = count_text(weights.active_parameters)
    rows.append(("parameters", count_text(weights.parameters), f"{active} active for a token"))
    if report.per_gpu.gpus > 1:
        rows.append((f"KV on the fullest of {report.per_gpu.gpus} GPUs", *_both(report.per_gpu.kv_bytes)))
        rows.append(("weights on it", *_both(report.per_gpu.weight_bytes)))
    title = f"{report.model}  ({report.architecture}; {_formats(report.formats)})"
    return [_facts(title, rows), Text(), *_affine(kv), Text(), _size_grid(report), *_notes(report.notes)]


def _affine(kv: KvSize) -> list[RenderableType]:
    lines = []
    for segment in kv.affine:
        base, slope = segment["base_bytes"], segment["bytes_per_token"]
        start = f"from {number_text(segment['from_tokens'])} tokens: " if len(kv.affine) > 1 else ""
        lines.append(f"  {start}bytes(T) = {number_text(base)} + {number_text(slope)} * T")
    return [Text("Bytes of a sequence of T tokens:", style="bold"), *(Text(line) for line in lines)]


def _size_grid(report: SizeReport) -> Table:
    batches = sorted({cell.batch for cell in report.grid})
    contexts = sorted({cell.context for cell in report.grid})
    cells = {(cell.context, cell.batch): bytes_text(cell.total_bytes) for cell in report.grid}
    rows = [[number_text(context), *(cells[context, batch] for batch in batches)] for context in contexts]
    return grid("KV cache in total", ["context", *(f"batch {batch}" for batch in batches)], rows, left=0)


def _memory(report: DecodeReport | PrefillReport) -> str:
    each = f" of each {report.gpu}" if report.gpus > 1 else f" of one {report.gpu}"
    return f"{bytes_text(report.memory_bytes)}{each}"


def _warnings(report: DecodeReport | PrefillReport) -> list[RenderableType]:
    """Say first what does not fit."""
    over = [row for row in report.rows if not row.fits]
    if not over:
        return []
    need = bytes_text(min(row.memory_needed_bytes for row in over))
    which = "this" if len(report.rows) == 1 else f"{len(over)} of {len(report.rows)} rows"
    per = " per GPU" if report.gpus > 1 else ""
    at_least = "" if len(over) == 1 else "at least "
    text = f"DOES NOT FIT: {which} needs {at_least}{need}{per}, more than the {_memory(report)}. Speeds marked * are hypothetical."
    return [Text(text, style="bold red"), Text()]


def _limiter(row: DecodeRow | PrefillRow) -> str:
    others = [f"{name} {share:.0%}" for name, share in row.shares.items() if name != row.limiter and share >= 0.005]
    return f"{row.limiter} ({', '.join(others)})" if others else row.limiter


def _parts_table(parts: Sequence[PartCost]) -> Table:
    rows = [[part.part, bytes_text(part.moved_bytes), flop_text(part.flop)] for part in parts]
    total = ["total", bytes_text(sum(p.moved_bytes for p in parts)), flop_text(sum(p.flop for p in parts))]
    return grid("Bytes moved and FLOP of a step, by part", ["part", "bytes", "FLOP"], [*rows, total])


def _title(report: DecodeReport | PrefillReport, what: str) -> str:
    gpus = f"{report.gpus} x {report.gpu}" if report.gpus > 1 else report.gpu
    return f"{what} bound: {report.model} on {gpus}  ({_formats(report.formats)})"


@_parts.register(DecodeReport)
def _decode(report: DecodeReport) -> list[RenderableType]:
    if len(report.rows) == 1:
        return [*_warnings(report), *_one_decode(report, report.rows[0]), *_notes(report.notes)]
    rows = [
        [
            number_text(row.batch),
            number_text(row.context),
            number_text(row.tokens_per_s) + ("" if row.fits else " *"),
            number_text(row.tokens_per_s_per_sequence),
            seconds_text(row.ideal_s),
            seconds_text(row.serial_s),
            number_text(row.intensity_flop_per_byte),
            bytes_text(row.memory_needed_bytes),
            number_text(row.tokens_per_s_per_gib),
            row.limiter,
        ]
        for row in report.rows
    ]
    columns = ["batch", "context", "tokens/s", "per seq.", "ideal", "serial", "FLOP/B", "memory", "tok/s/GiB", "limiter"]
    return [*_warnings(report), grid(_title(report, "Decode"), columns, rows, left=0), *_notes(report.notes)]


def _one_decode(report: DecodeReport, row: DecodeRow) -> list[RenderableType]:
    mark = "" if row.fits else " *"
    rows: list[tuple[str, ...]] = [
        ("batch, context", f"{number_text(row.batch)}, {number_text(row.context)} tokens"),
        ("tokens/s at most", number_text(row.tokens_per_s) + mark, "" if row.fits else _HYPOTHETICAL),
        ("  per sequence", number_text(row.tokens_per_s_per_sequence) + mark),
        ("  per GiB used", number_text(row.tokens_per_s_per_gib) + mark),
        ("step, ideal", seconds_text(row.ideal_s), "everything overlapped: no measurement beats it"),
        ("step, serial", seconds_text(row.serial_s), "one operator after another"),
        ("limited by", _limiter(row)),
        ("intensity", f"{number_text(row.intensity_flop_per_byte)} FLOP/B"),
        ("memory needed", bytes_text(row.memory_needed_bytes), f"of {_memory(report)}; weights and cache, no engine overhead"),
    ]
    if row.experts is not None:
        spread = f"{seconds_text(row.experts.best_s)} to {seconds_text(row.experts.worst_s)}"
        rows.append(("  by experts touched", spread, "fewest and most; the figures are for the expected number"))
    return [_facts(_title(report, "Decode"), rows), Text(), _parts_table(row.parts)]


@_parts.register(PrefillReport)
def _prefill(report: PrefillReport) -> list[RenderableType]:
    rows = [
        [
            number_text(row.batch),
            number_text(row.prompt),
            seconds_text(row.ideal_s) + ("" if row.fits else " *"),
            seconds_text(row.serial_s),
            number_text(row.tokens_per_s),
            flop_text(row.flop),
            number_text(row.intensity_flop_per_byte),
            bytes_text(row.memory_needed_bytes),
            row.limiter,
        ]
        for row in report.rows
    ]
    columns = ["batch", "prompt", "TTFT ideal", "serial", "tokens/s", "FLOP", "FLOP/B", "memory", "limiter"]
    parts: list[RenderableType] = [Text(), _parts_table(report.rows[0].parts)] if len(report.rows) == 1 else []
    return [*_warnings(report), grid(_title(report, "Prefill"), columns, rows, left=0), *parts, *_notes(report.notes)]


@_parts.register(RooflineReport)
def _roofline(report: RooflineReport) -> list[RenderableType]:
    from kvcalc.render.terminal import roofline_chart

    gpus = f"{report.gpus} x " if report.gpus > 1 else ""
    ceilings = [
        [unit, flop_rate_text(rate), f"{number_text(report.ridge_flop_per_byte[unit])} FLOP/B"]
        for unit, rate in report.peak_flop_per_s.items()
    ]
    title = f"Roofline: {gpus}{report.gpu}, memory {rate_text(report.memory_bandwidth_bytes_per_s)}"
    shown: list[RenderableType] = [grid(title, ["format", "dense peak", "ridge point"], ceilings)]
    shown += [Text(), Text(roofline_chart(report))]
    if report.points:
        rows = [
            [
                point.model,
                point.phase,
                number_text(point.batch),
                number_text(point.context),
                number_text(point.intensity_flop_per_byte),
                flop_rate_text(point.attainable_flop_per_s),
                point.limiter,
                "yes" if point.fits else "no: hypothetical",
            ]
            for point in report.points
        ]
        columns = ["model", "phase", "batch", "context", "FLOP/B", "attainable", "limiter", "fits"]
        shown += [Text(), grid("Points", columns, rows, left=2)]
    if report.plateaus:
        rows = [
            [
                row.model,
                number_text(row.context),
                f"{number_text(row.plateau_flop_per_byte)} FLOP/B",
                number_text(row.half_batch),
                "never: the cache is the limit" if row.compute_bound_batch is None else number_text(row.compute_bound_batch),
            ]
            for row in report.plateaus
        ]
        columns = ["model", "context", "plateau", "half at batch", "compute-bound from batch"]
        shown += [Text(), grid("Where the batch stops helping decode", columns, rows)]
    return [*shown, *_notes(report.notes)]


def _explained(steps: Sequence[ExplainedStep]) -> list[RenderableType]:
    if not steps:
        return []
    shown: list[RenderableType] = [Text(), Text("How each number comes about", style="bold")]
    for step in steps:
        shown.append(Text(f"{step.quantity} = {step.formula}"))
        shown.append(Text(f"    = {step.expression}"))
        value = seconds_text(step.value) if step.unit == "s" else f"{number_text(step.value)} {step.unit}"
        shown.append(Text(f"    = {value}"))
        shown += [Text(f"    source: {source}", style="dim") for source in step.sources]
    return shown
