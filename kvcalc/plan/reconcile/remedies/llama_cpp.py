"""Flags with which llama.cpp would start where memory ran out: each checked by its rules before it is named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import KvcalcError
from kvcalc.core.search import largest
from kvcalc.core.units import GIB, MIB, ceil_div
from kvcalc.engines.llama_cpp import layout
from kvcalc.engines.llama_cpp.options import padded
from kvcalc.plan.reconcile.findings import bytes_of_gib
from kvcalc.plan.reconcile.llama_cpp import llama_cpp_options
from kvcalc.plan.reconcile.remedies.attempt import Remedies, Remedy, rounded_length

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.llama_cpp import LlamaCppOptions
    from kvcalc.engines.logs import StartUp

__all__ = ["llama_cpp_offload", "llama_cpp_remedies"]

# Kept free: what the driver needs beside the buffers, and what other programs may take.
_MARGIN_BYTES = 256 * MIB
# Compute buffers where none were printed, for a micro-batch of 512; they were 0.3 to 1 GiB in public logs.
_COMPUTE_BYTES = GIB
_MIN_CONTEXT = 1024
_QUANTISED = "-ctk q8_0 -ctv q8_0 -fa on"
_WIDE_CACHES = ("f32", "f16", "bf16")
_WEIGHTS, _CACHE = "allocating the weights", "allocating the KV cache"
# Cells come in multiples of this, and no cache has more of them.
_CELLS, _MAX_CELLS = 256, 2**30
_NO_CONTEXT = "the log says no n_ctx, and its sizes do not tell the context: give the log with that line to get flags"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    """One GPU and the model on it, in bytes.

    Args:
        model: the model.
        weights: of all layers.
        room: what weights and cache may take.
        layers: the model's layers, the output layer among them.
    """

    model: ModelProfile
    weights: int
    room: int
    layers: int

    def holds(self, options: LlamaCppOptions, on_gpu: int) -> bool:
        """Whether so many layers fit with their part of the cache; the output layer keeps none."""
        size = _cache_bytes(self.model, options)
        if size is None:
            return False
        cached = ceil_div(size * min(on_gpu, self.layers - 1), self.layers - 1)
        return ceil_div(self.weights * on_gpu, self.layers) + cached <= self.room

    def longest(self, options: LlamaCppOptions, on_gpu: int) -> int:
        """Return the longest context with which so many layers fit, rounded down."""
        context = largest(lambda size: self.holds(replace(options, context=size), on_gpu), options.context)
        return rounded_length(context)

    def most_layers(self, options: LlamaCppOptions, layers: int) -> int:
        """Count the layers that fit."""
        return largest(lambda count: self.holds(options, count), layers)


def llama_cpp_remedies(start_up: StartUp, model: ModelProfile, hardware: HardwareProfile | None) -> Remedies:
    """Return flags with which a start that ran out of memory would succeed, the gentlest first; none on several GPUs.

    Args:
        start_up: the start, with its refusal.
        model: the model it ran.
        hardware: the accelerator, where it is known.
    """
    free, weights = _free_bytes(start_up, hardware), _weight_bytes(start_up)
    if start_up.refusal is None or free is None or weights is None or start_up.refusal.device == "CPU":
        return Remedies(why_none=_why_none(start_up))
    options = llama_cpp_options(start_up)
    layers = start_up.count("all_layers") or model.layers + 1
    offloaded = min(start_up.count("gpu_layers") or layers, layers)
    deduced = ""
    if not options.context and start_up.refusal.stage == _WEIGHTS:
        options = replace(options, context=padded(model.context_limit or _MIN_CONTEXT))
    elif not options.context:
        context = _failed_context(start_up, model, options) if offloaded == layers else None
        if context is None:
            return Remedies(why_none=_NO_CONTEXT)
        options = replace(options, context=context)
        deduced = f"the log says no n_ctx: the failed size is that of {context:,} cells in {options.cache_type_k}"
    room = free - _MARGIN_BYTES - _compute_bytes(start_up)
    gpu = _Gpu(model=model, weights=weights * layers // offloaded, room=room, layers=layers)
    remedies = list(_flags(gpu, options, offloaded))
    return Remedies(
        found=tuple(remedies),
        length=options.context,
        needed_bytes=_cache_bytes(model, options),
        why_none="" if remedies else "no flags were found that would start it on this GPU",
        deduced=deduced,
    )


def llama_cpp_offload(start_up: StartUp, model: ModelProfile) -> tuple[str, ...]:
    """Return flags with which a start that left layers to the processor would have all of them on its one GPU.

    Args:
        start_up: a start that succeeded, with the GPU's free memory and the weights on it as printed.
        model: the model it ran.
    """
    layers, offloaded = start_up.count("all_layers"), start_up.count("gpu_layers")
    free, weights = _free_bytes(start_up, None), start_up.printed.get("gpu_model_mib", ())
    options = llama_cpp_options(start_up)
    if not layers or not offloaded or offloaded >= layers or free is None or not weights or not options.context:
        return ()
    on_gpu = int(sum(size.most for size in weights) * MIB)
    room = free - _MARGIN_BYTES - _compute_bytes(start_up)
    gpu = _Gpu(model=model, weights=on_gpu * layers // offloaded, room=room, layers=layers)
    flags_of_all = [""] if gpu.holds(options, layers) else []
    flags_of_all += [
        each.flags for each in _flags(gpu, options, layers) if f"{layers} of {layers} layers" in each.gives
    ]
    return tuple(f"{f'-ngl {layers} {flags}'.strip()}: all {layers} layers on the GPU" for flags in flags_of_all)


def _failed_context(start_up: StartUp, model: ModelProfile, options: LlamaCppOptions) -> int | None:
    """Return the context whose first cache has the size that could not be allocated; none where no context has."""
    refusal = start_up.refusal
    if refusal is None or "tried_gib" not in refusal.sizes or refusal.stage not in ("", _CACHE):
        return None
    low, high = bytes_of_gib(refusal.sizes["tried_gib"])

    def first_cache(context: int) -> int:
        cache = layout(model, replace(options, context=context)).caches[0]
        return cache.k_bytes + cache.v_bytes

    try:
        context = _CELLS * largest(lambda count: first_cache(_CELLS * count) <= high, _MAX_CELLS // _CELLS)
        return context if 0 < context < _MAX_CELLS and first_cache(context) >= low else None
    except (KvcalcError, IndexError):
        return None


def _flags(gpu: _Gpu, options: LlamaCppOptions, offloaded: int) -> Iterator[Remedy]:
    """Yield shorter contexts and smaller caches, then fewer layers on the GPU."""
    caches = {"": options}
    if options.cache_type_k in _WIDE_CACHES:
        caches[_QUANTISED] = replace(options, cache_type_k="q8_0", cache_type_v="q8_0", flash_attn="on")
    for flags, asked in caches.items():
        if flags and gpu.holds(asked, offloaded):
            yield _remedy(flags, asked, offloaded, gpu.layers)
        context = gpu.longest(asked, offloaded)
        if _MIN_CONTEXT <= context < options.context:
            yield _remedy(f"-c {context} {flags}".strip(), replace(asked, context=context), offloaded, gpu.layers)
    for flags, asked in caches.items():
        fewer = gpu.most_layers(asked, offloaded)
        if 0 < fewer < offloaded:
            yield _remedy(f"-ngl {fewer} {flags}".strip(), asked, fewer, gpu.layers)


def _why_none(start_up: StartUp) -> str:
    if len(start_up.printed.get("device_free_mib", ())) > 1:
        return "how llama.cpp spreads layers over several GPUs is not modelled: no flags were looked for"
    return "the log does not give the GPU's memory or the size of the weights; --gpu gives the memory"


def _remedy(flags: str, options: LlamaCppOptions, on_gpu: int, layers: int) -> Remedy:
    return Remedy(flags=flags, gives=f"a context of {options.context:,} tokens, {on_gpu} of {layers} layers on the GPU")


def _cache_bytes(model: ModelProfile, options: LlamaCppOptions) -> int | None:
    try:
        return layout(model, options).total_bytes
    except KvcalcError:
        return None


def _free_bytes(start_up: StartUp, hardware: HardwareProfile | None) -> int | None:
    """Return the memory of the one GPU that is free; none where there are several, or none is known."""
    free = start_up.printed.get("device_free_mib", ())
    if len(free) > 1:
        return None
    if free:
        return int(free[0].least * MIB)
    return None if hardware is None else hardware.usable_memory_bytes


def _weight_bytes(start_up: StartUp) -> int | None:
    """Return the bytes of the layers on the GPU: as printed, as asked for in vain, or of the whole file."""
    printed = start_up.printed.get("gpu_model_mib", ())
    if printed:
        return int(sum(size.most for size in printed) * MIB)
    refusal, file = start_up.refusal, start_up.first("file_size_gib")
    if refusal is not None and refusal.stage == _WEIGHTS and "tried_gib" in refusal.sizes:
        return bytes_of_gib(refusal.sizes["tried_gib"])[1]
    return None if file is None else bytes_of_gib(file)[1]


def _compute_bytes(start_up: StartUp) -> int:
    refusal = start_up.refusal
    if refusal is not None and refusal.stage == "allocating the compute buffers" and "tried_gib" in refusal.sizes:
        return bytes_of_gib(refusal.sizes["tried_gib"])[1]
    printed = start_up.printed.get("gpu_compute_mib", ())
    return int(sum(size.most for size in printed) * MIB) or _COMPUTE_BYTES
