"""The numbers of llama.cpp's log, computed from the model and the options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import GIB, MIB, counted
from kvcalc.engines.llama_cpp import CACHE_TYPES, LlamaCppOptions, layout
from kvcalc.engines.logs import Printed
from kvcalc.engines.windows import without_windows
from kvcalc.plan.reconcile.findings import Finding, row_of
from kvcalc.plan.reconcile.llama_memory import expected_findings, memory_findings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.reconcile import ReconcileRow
    from kvcalc.engines.llama_cpp import Cache, LlamaCppMemory
    from kvcalc.engines.logs import CacheLine, StartUp

__all__ = ["llama_cpp_options", "reconcile_llama_cpp"]

# Sequences that llama.cpp's server makes room for where none are asked for, in one buffer (from 2025-12).
_SERVER_SLOTS = 4
# Ends of quantities that follow from the context, and what is said where a log does not name it.
_OF_CONTEXT = ("v_cache_mib", "k_cache_mib", "context_mib", "ollama_kv_gib", "kv_buffer_gib", "kv_buffer_mib")
_NO_CONTEXT = (
    "the log does not say the context (n_ctx, or the cells of the cache), and it is not the model's own: the cache is "
    "not held against a prediction"
)
_OTHER_UNIT = {"kv_buffer_gib": "kv_buffer_mib", "kv_buffer_mib": "kv_buffer_gib"}


def reconcile_llama_cpp(start_up: StartUp, model: ModelProfile) -> tuple[tuple[ReconcileRow, ...], tuple[str, ...]]:
    """Return the rows of one start-up of llama.cpp, and notes.

    A log that names neither context nor cells is held against the model's own context; where that does not agree,
    what follows from the context is left out.

    Raises:
        KvcalcError: the model's memory in llama.cpp is not described, or the log's options cannot be used.
    """
    options = llama_cpp_options(start_up)
    findings = [*_best(start_up, model, options), *expected_findings(start_up, model, options)]
    if all(finding.agrees for finding in findings):
        return tuple(row_of(finding, start_up) for finding in findings), ()
    why = _explained(start_up, model, options)
    notes: tuple[str, ...] = ()
    is_open = not (why or options.context or start_up.refusal)
    if is_open and any(finding.quantity.endswith(_OF_CONTEXT) for finding in findings):
        findings = [finding for finding in findings if not finding.quantity.endswith(_OF_CONTEXT)]
        notes = (_NO_CONTEXT,)
    why = why or "unexplained by any term tried"
    return tuple(row_of(finding, start_up, "" if finding.agrees else why) for finding in findings), notes


def llama_cpp_options(start_up: StartUp) -> LlamaCppOptions:
    """Return the options that a log tells of; cells and types are those of the caches printed."""
    kinds = [cache for cache in start_up.caches if cache.key_type in CACHE_TYPES]
    cells = max((cache.cells or 0 for cache in start_up.caches), default=0)
    parallel = start_up.count("n_seq_max") or 1
    unified = _unified(start_up, cells)
    context = start_up.count("n_ctx") or (cells if unified else cells * parallel) or start_up.count("fit_to") or 0
    values = [cache.value_type for cache in kinds if cache.value_type in CACHE_TYPES]
    asked = start_up.text("kv_cache_dtype")
    fallback = asked if asked in CACHE_TYPES else "f16"
    flash = start_up.options.get("flash_attn")
    return LlamaCppOptions(
        context=context,
        parallel=parallel,
        kv_unified=unified,
        cache_type_k=(kinds[0].key_type or fallback) if kinds else fallback,
        cache_type_v=(values[0] or fallback) if values else (kinds[0].key_type or fallback) if kinds else fallback,
        swa_full=bool(start_up.options.get("swa_full", False)),
        ubatch=start_up.count("n_ubatch") or 512,
        rollback_tokens=start_up.count("n_rs_seq") or 0,
        flash_attn="off" if flash in (0, False, "disabled", "off") and flash is not None else "on",
    )


def _unified(start_up: StartUp, cells: int) -> bool:
    """Return whether sequences share cells: as printed, or as the cells tell; one buffer before 2025-07."""
    printed = start_up.options.get("kv_unified")
    if printed is not None:
        return bool(printed) and printed != "false"
    context, parallel = start_up.count("n_ctx"), start_up.count("n_seq_max") or 1
    return not (context and parallel > 1 and cells and cells * parallel <= context + 256 * parallel)


def _best(start_up: StartUp, model: ModelProfile, options: LlamaCppOptions) -> list[Finding]:
    """Return the findings of the options, or of those beside them that the log leaves open, where they agree better."""
    tried = []
    for shaped, choice in _open(start_up, model, options):
        try:
            tried.append(list(_findings(start_up, layout(shaped, choice))))
        except KvcalcError:
            if not tried and choice == options:
                raise
    return max(tried, key=lambda findings: (all(f.agrees for f in findings), sum(f.agrees for f in findings)))


def _open(
    start_up: StartUp, model: ModelProfile, options: LlamaCppOptions
) -> Iterator[tuple[ModelProfile, LlamaCppOptions]]:
    """Yield models and options that fit what the log says.

    Before 2025-05 windowed layers shared the one cache of all layers; an old file of a latent model has whole heads.
    """
    yield model, options
    if "flash_attn" not in start_up.options:
        yield model, replace(options, flash_attn="off")
    if "n_ubatch" not in start_up.options:
        yield model, replace(options, ubatch=1024)
        yield model, replace(options, ubatch=2048)
    if "swa_full" not in start_up.options:
        yield model, replace(options, swa_full=True)
    if start_up.breakdown and "n_seq_max" not in start_up.options:
        yield model, replace(options, parallel=_SERVER_SLOTS, kv_unified=True)
    if len(start_up.caches) == 1 and start_up.caches[0].windowed is None:
        yield without_windows(model), options
        yield model, replace(options, legacy_latent=True)


def _explained(start_up: StartUp, model: ModelProfile, options: LlamaCppOptions) -> str:
    """Return the cache type with which everything agrees, or nothing."""
    for name in CACHE_TYPES:
        changed = replace(options, cache_type_k=name, cache_type_v=name)
        try:
            findings = list(_findings(start_up, layout(model, changed)))
        except KvcalcError:
            continue
        if all(finding.agrees for finding in findings):
            return f"agrees with a cache of type {name}"
    return ""


def _findings(start_up: StartUp, memory: LlamaCppMemory) -> Iterator[Finding]:
    caches = _paired(start_up.caches, memory.caches)
    for printed, cache in caches:
        yield from _cache(printed, cache)
    yield from memory_findings(start_up, memory)
    if not start_up.caches:
        yield from _whole(start_up, memory)
        yield from _asked_for(start_up, memory)
    if start_up.states and memory.recurrent is not None:
        size = (memory.recurrent.r_bytes + memory.recurrent.s_bytes) / MIB
        reason = f"{memory.recurrent.layers} recurrent layers, {counted(memory.recurrent.cells, 'sequence')}"
        yield Finding(
            quantity="recurrent_state_mib", printed=start_up.states[0].total, least=size, most=size, reason=reason
        )


def _paired(printed: Sequence[CacheLine], caches: Sequence[Cache]) -> list[tuple[CacheLine, Cache | None]]:
    """Return each printed cache with the predicted one: in order, as many as are predicted; the rest are drafts'."""
    kept = [cache for cache in caches if cache.layers]
    if len(kept) == 1 and len(printed) > 1 and not any(cache.windowed for cache in printed):
        return [(printed[0], kept[0])]
    return list(zip(printed, kept, strict=False))


def _cache(printed: CacheLine, cache: Cache | None) -> Iterator[Finding]:
    if cache is None:
        return
    role = "" if cache.role == "main" else f"{cache.role}_"
    reason = f"{counted(cache.layers, 'layer')} x {counted(cache.cells, 'cell')}" + (
        f" x {cache.streams}" if cache.streams > 1 else ""
    )
    if printed.cells is not None:
        yield _exact(f"{role}cells", _count(printed, printed.cells), cache.cells, reason)
    if printed.layers is not None:
        yield _exact(f"{role}layers", _count(printed, printed.layers), cache.layers, reason)
    for quantity, number, size in (
        ("kv_cache_mib", printed.total, cache.k_bytes + cache.v_bytes),
        ("k_cache_mib", printed.keys, cache.k_bytes),
        ("v_cache_mib", printed.values, cache.v_bytes),
    ):
        if number is not None:
            yield _exact(f"{role}{quantity}", number, size / MIB, reason)


def _count(printed: CacheLine, number: int) -> Printed:
    return Printed(value=float(number), half_step=0.0, line=printed.total.line)


def _asked_for(start_up: StartUp, memory: LlamaCppMemory) -> Iterator[Finding]:
    """Yield the cache that could not be allocated, where all of it was asked of one GPU at once."""
    refusal, kept = start_up.refusal, [cache for cache in memory.caches if cache.layers]
    tried = refusal.sizes.get("tried_gib") if refusal and refusal.stage == "allocating the KV cache" else None
    everywhere = start_up.count("gpu_layers") and start_up.count("gpu_layers") == start_up.count("all_layers")
    if tried is None or len(kept) != 1 or not everywhere or len(start_up.printed.get("device_free_mib", ())) > 1:
        return
    scale = GIB // MIB
    asked = Printed(value=tried.value * scale, half_step=tried.half_step * scale, line=tried.line)
    reason = f"{counted(kept[0].layers, 'layer')} x {counted(kept[0].cells, 'cell')}"
    yield _exact("kv_cache_mib", asked, (kept[0].k_bytes + kept[0].v_bytes) / MIB, reason)


def _exact(quantity: str, printed: Printed, predicted: float, reason: str) -> Finding:
    return Finding(quantity=quantity, printed=printed, least=predicted, most=predicted, reason=reason)


def _whole(start_up: StartUp, memory: LlamaCppMemory) -> Iterator[Finding]:
    """Yield the cache as Ollama's own engine prints it: one size over all layers of each device."""
    for quantity, unit in (("kv_buffer_gib", GIB), ("kv_buffer_mib", MIB)):
        sizes, other = start_up.printed.get(quantity, ()), start_up.printed.get(_OTHER_UNIT[quantity], ())
        if not sizes or other or start_up.states:
            continue
        steps, where = sum(size.half_step for size in sizes), f" on {len(sizes)} devices" if len(sizes) > 1 else ""
        together = Printed(value=sum(size.value for size in sizes), half_step=steps, line=sizes[0].line)
        yield _exact(quantity, together, memory.total_bytes / unit, f"the cache of all layers{where}")
