"""The tables of ``kvcalc size`` and ``kvcalc models quants``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, count_text, counted, number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import differs, engine_text, facts, formats_text, grid, heading, note_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.catalogue import QuantRow, QuantsReport
    from kvcalc.core.reports.size import SizeReport, WeightSize
    from kvcalc.render.layout import Part

__all__ = ["parts", "quants_parts", "quants_sentence", "sentence"]

_TOWERS = ("vision", "audio", "talker")


def _both(size: float) -> tuple[str, str]:
    return bytes_text(size), f"{number_text(size)} B = {bytes_text(size, si=True)}"


def sentence(report: SizeReport) -> str:
    """Return the cache, the weights, and what the engine reserves, in one sentence."""
    each = " each" if report.batch > 1 else ""
    sequences = f"{number_text(report.batch)} sequences" if report.batch > 1 else "one sequence"
    batch = f"{sequences} of {counted(report.context, 'token')}{each}"
    text = f"{report.model} needs {bytes_text(report.kv.total_bytes)} of KV cache for {batch}"
    text += f", and {bytes_text(report.weights.total_bytes)} of weights"
    if report.reserved is None:
        return f"{text}."
    per_gpu = " per GPU" if report.per_gpu.gpus > 1 else ""
    reserved = bytes_text(report.reserved.total_bytes)
    return f"{text}; {engine_text(report.reserved.engine)} reserves {reserved} for the cache{per_gpu}."


def parts(report: SizeReport) -> list[Part]:
    """Return the table of a size report."""
    kv, weights = report.kv, report.weights
    rows: list[tuple[str, ...]] = [("KV cache per token", *_both(kv.bytes_per_token))]
    slope = [segment["bytes_per_token"] for segment in kv.affine if segment["from_tokens"] <= report.context][-1]
    if slope != kv.bytes_per_token:
        rows.append(("  mean slope at this context", *_both(slope)))
    rows.append((f"KV cache per sequence of {counted(report.context, 'token')}", *_both(kv.bytes_per_sequence)))
    if kv.state_bytes_per_sequence:
        rows.append(("  of it recurrent state", *_both(kv.state_bytes_per_sequence)))
    if kv.cross_bytes_per_sequence:
        rows.append(("cross-attention KV per sequence", *_both(kv.cross_bytes_per_sequence)))
    rows.append((f"total for {number_text(report.batch)} sequence{'s' * (report.batch > 1)}", *_both(kv.total_bytes)))
    each = " per GPU" if report.per_gpu.gpus > 1 else ""
    if report.reserved is not None:
        rows.append((f"reserved by {engine_text(report.reserved.engine)}{each}", *_both(report.reserved.total_bytes)))
    rows.append(("weights", *_both(weights.total_bytes)))
    loaded = report.per_gpu.loaded_weight_bytes
    if report.reserved is not None and loaded is not None and loaded != report.per_gpu.weight_bytes:
        rows.append((f"  as {engine_text(report.reserved.engine)} loads them{each}", *_both(loaded)))
    rows.append(("parameters", count_text(weights.parameters), _parameters(weights)))
    if report.per_gpu.gpus > 1:
        rows.append(("KV cache per GPU", *_both(report.per_gpu.kv_bytes)))
        rows.append(("weights per GPU", *_both(report.per_gpu.weight_bytes)))
    title = f"{report.model}  ({report.architecture}; {formats_text(report.formats)})"
    return [
        heading(title),
        facts(rows),
        Text(),
        *_affine(report),
        Text(),
        *_size_grid(report),
        *_places(report),
        *note_lines((*(report.assumed,) * bool(report.assumed), *report.notes)),
    ]


def _places(report: SizeReport) -> list[Part]:
    """Return the table of devices and host, where they were named."""
    if not hasattr(report, "placement"):
        return []
    from kvcalc.core.reports.local import LocalSizeReport  # most sizes name no device, and start sooner without
    from kvcalc.render.reports.local import command_lines, places_grid

    assert isinstance(report, LocalSizeReport)
    return [Text(), heading("On each device"), places_grid(report), *command_lines(report.command)]


def _parameters(weights: WeightSize) -> str:
    """Name the parameters active for a token, where experts make them fewer, and those of towers."""
    text_only = weights.parameters - sum(weights.parts.get(part, 0) for part in _TOWERS)
    shown = []
    if differs(weights.active_parameters, text_only):
        shown.append(f"{count_text(weights.active_parameters)} active per token")
    shown += [f"{count_text(weights.parts[part])} {part} tower" for part in _TOWERS if part in weights.parts]
    return ", ".join(shown)


def _within(report: SizeReport) -> list[Mapping[str, float]]:
    """Return the lines that start below the longest context in the grid; the others never come to bear."""
    longest = max(cell.context for cell in report.grid)
    return [segment for segment in report.kv.affine if segment["from_tokens"] < longest] or list(report.kv.affine[:1])


def _affine(report: SizeReport) -> list[Part]:
    lines = []
    for segment in _within(report):
        base, slope = segment["base_bytes"], segment["bytes_per_token"]
        start = f"from {counted(segment['from_tokens'], 'token')}: " if len(_within(report)) > 1 else ""
        lines.append(f"  {start}bytes(T) = {number_text(base)} + {number_text(slope)} * T")
    return [heading("KV-cache bytes of one sequence of T tokens"), *(Text(line) for line in lines)]


def _size_grid(report: SizeReport) -> list[Part]:
    batches = sorted({cell.batch for cell in report.grid})
    contexts = sorted({cell.context for cell in report.grid})
    cells = {(cell.context, cell.batch): bytes_text(cell.total_bytes) for cell in report.grid}
    rows = [[number_text(context), *(cells[context, batch] for batch in batches)] for context in contexts]
    columns = ["context", *(f"batch {batch}" for batch in batches)]
    return [heading("KV cache of a batch"), grid(columns, rows, left=0)]


def quants_sentence(report: QuantsReport) -> str:
    """Return the largest recipe that the memory holds, or the span of all."""
    if report.memory_bytes is not None:
        best = next((row for row in report.rows if row.fits), None)
        beside = f"{bytes_text(report.memory_bytes)} with a context of {counted(report.context, 'token')}"
        if best is None:
            return f"NO recipe of {report.model} fits {beside}."
        size = bytes_text(best.total_bytes)
        return f"{best.recipe} is the largest quantization of {report.model} that fits {beside}: {size} of weights."
    first, last = report.rows[0], report.rows[-1]
    ends = f"{bytes_text(first.total_bytes)} in {first.recipe} to {bytes_text(last.total_bytes)} in {last.recipe}"
    return f"{report.model} takes from {ends}."


def quants_parts(report: QuantsReport) -> list[Part]:
    """Return a row for each recipe, the largest file first."""
    memory = report.memory_bytes
    columns = ["recipe", "size", "bits/weight"]
    title = f"{report.model} by llama-quantize"
    if memory is not None:
        columns += ["fits", "longest context"]
        title += f", {counted(report.context, 'token')} in {bytes_text(memory)}"
    table = grid([*columns, "matrices"], [_quant_cells(row, with_memory=memory is not None) for row in report.rows])
    table.columns[-1].justify = "left"
    needed = [row.recipe for row in report.rows if row.needs_imatrix]
    imatrix = (f"require an importance matrix: {', '.join(needed)}",) if needed else ()
    return [heading(title), table, Text(), *note_lines([*imatrix, *report.notes])]


def _quant_cells(row: QuantRow, *, with_memory: bool) -> list[str]:
    room = ["yes" if row.fits else "no", number_text(row.max_context or 0)] if with_memory else []
    return [row.recipe, bytes_text(row.total_bytes), f"{row.bits_per_weight:.2f}", *room, row.mixture]
