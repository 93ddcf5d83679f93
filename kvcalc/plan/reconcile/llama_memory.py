"""Numbers on memory as a whole that llama.cpp and Ollama print: their tables, what ``--fit`` expects, advice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import GIB, MIB, bytes_text, counted
from kvcalc.engines.llama_cpp import layout
from kvcalc.engines.llama_cpp.fronts import ollama_context
from kvcalc.engines.logs import Printed
from kvcalc.plan.reconcile.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.llama_cpp import LlamaCppMemory, LlamaCppOptions
    from kvcalc.engines.logs import StartUp

__all__ = ["expected_findings", "memory_findings", "memory_notes"]

# Attention masks that shrink with the context: 32 bits and a copy in 16, on the device and on the host.
_MASK_BYTES = 6 * 2
# The first line of Ollama that names the default context is of the version that chooses it by memory.
_TIERED = "0.15.5"


def memory_findings(start_up: StartUp, memory: LlamaCppMemory) -> Iterator[Finding]:
    """Yield the cache in llama.cpp's table and in Ollama's estimate, against the caches and states of a context."""
    rows = start_up.breakdown
    if rows:
        total, count = memory.total_bytes / MIB, len(rows)
        states = f", states {memory.state_bytes / MIB:,.2f}" if memory.state_bytes else ""
        yield Finding(
            quantity="context_mib",
            printed=Printed(value=sum(row.context_mib for row in rows), half_step=0, line=rows[0].line),
            least=max(0.0, total - count * (1 - 1 / MIB)),
            most=total,
            value=total,
            reason=f"caches {memory.kv_bytes / MIB:,.2f} MiB{states}; the table rounds each of {count} rows down",
        )
    expected = start_up.first("ollama_kv_gib")
    if expected is not None and not memory.state_bytes:
        size = memory.total_bytes / GIB
        reason = f"the cache of {counted(memory.n_ctx, 'token')}"
        yield Finding(quantity="ollama_kv_gib", printed=expected, least=size, most=size, reason=reason)


def expected_findings(start_up: StartUp, model: ModelProfile, options: LlamaCppOptions) -> Iterator[Finding]:
    """Yield the numbers that follow from other printed ones, or from two contexts."""
    yield from _table_sums(start_up)
    yield from _saved(start_up, model, options)
    yield from _total(start_up)
    yield from _tier(start_up)


def _table_sums(start_up: StartUp) -> Iterator[Finding]:
    """Yield each device's own memory, and the rest of the table, as sums of the numbers beside them."""
    for row in start_up.breakdown:
        parts = row.model_mib + row.context_mib + row.compute_mib
        yield Finding(
            quantity=f"{row.device.lower()}_self_mib",
            printed=Printed(value=row.self_mib, half_step=0, line=row.line),
            least=parts,
            most=parts + 2,
            value=parts,
            reason=f"{row.model_mib:,} of weights, {row.context_mib:,} of context and {row.compute_mib:,} of buffers",
        )
        if row.total_mib is None or row.free_mib is None or row.unaccounted_mib is None:
            continue
        rest = row.total_mib - row.free_mib - row.self_mib
        yield Finding(
            quantity=f"{row.device.lower()}_unaccounted_mib",
            printed=Printed(value=row.unaccounted_mib, half_step=0, line=row.line),
            least=rest - 2,
            most=rest + 2,
            value=rest,
            reason="the driver's context and libraries, kernels' pools, and other programs: not llama.cpp's buffers",
        )


def _saved(start_up: StartUp, model: ModelProfile, options: LlamaCppOptions) -> Iterator[Finding]:
    """Yield the saving of a context that ``--fit`` made shorter: the cache, and at most the masks of attention."""
    saved, longer, shorter = start_up.first("fit_saved_mib"), start_up.count("fit_from"), start_up.count("fit_to")
    if saved is None or longer is None or shorter is None or shorter >= longer:
        return
    try:
        both = [layout(model, replace(options, context=tokens)).total_bytes for tokens in (longer, shorter)]
    except KvcalcError:
        return
    cache = (both[0] - both[1]) / MIB
    masks = (longer - shorter) * options.ubatch * _MASK_BYTES / MIB
    yield Finding(
        quantity="fit_saved_mib",
        printed=saved,
        least=cache - 1,
        most=cache + masks,
        value=cache,
        reason=f"{cache:,.2f} MiB of cache, and up to {masks:,.0f} of masks for each cell and token computed at once",
    )


def _total(start_up: StartUp) -> Iterator[Finding]:
    """Yield the total of Ollama's own engine as the sum of its parts."""
    total = start_up.first("ollama_total_gib")
    parts = [
        part
        for name in ("ollama_weights_part_gib", "ollama_kv_part_gib", "ollama_graph_part_gib")
        for part in start_up.printed.get(name, ())
    ]
    if total is None or not parts:
        return
    yield Finding(
        quantity="ollama_total_gib",
        printed=total,
        least=sum(part.least for part in parts),
        most=sum(part.most for part in parts),
        value=sum(part.value for part in parts),
        reason=f"the sum of the {len(parts)} parts that are printed",
    )


def _tier(start_up: StartUp) -> Iterator[Finding]:
    """Yield Ollama's default context as its rule has it for the memory that it prints."""
    total, printed = start_up.first("ollama_total_vram_gib"), start_up.first("ollama_default_num_ctx")
    if total is None or printed is None:
        return
    bounds = [ollama_context(int(size * GIB), version=_TIERED) for size in (total.least, total.most)]
    yield Finding(
        quantity="ollama_default_num_ctx",
        printed=Printed(value=printed.value, half_step=0, line=printed.line),
        least=bounds[0],
        most=bounds[1],
        value=bounds[1],
        reason=(
            f"Ollama's rule for {total.value:,.1f} GiB on all GPUs: 262,144 tokens from 47 GiB, 32,768 from 23 GiB, "
            "else 4,096"
        ),
    )


def memory_notes(start_up: StartUp) -> tuple[str, ...]:
    """Return notes on layers that stay with the processor, and on a ``--fit`` that could not act."""
    notes = []
    on_gpu, layers = start_up.count("gpu_layers"), start_up.count("all_layers")
    if on_gpu and layers and on_gpu < layers:
        weights = sum(size.value for size in start_up.printed.get("gpu_model_mib", ()))
        each = f", {bytes_text(weights * MIB / on_gpu)} of weights each" if weights else ""
        notes.append(f"{layers - on_gpu} of {layers} layers are computed by the processor from host memory{each}")
    if "fit: layers set by user" in start_up.events:
        notes.append("--fit changed nothing because -ngl was given: without -ngl it chooses what fits")
    used, free = start_up.first("projected_mib"), start_up.first("projected_free_mib")
    if used is not None and free is not None and used.value > free.value:
        short = bytes_text((used.value - free.value) * MIB)
        notes.append(f"with what was asked for, llama.cpp expected {short} more than the devices had free")
    return tuple(notes)
