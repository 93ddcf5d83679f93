"""Why an engine did not start: its reason in a sentence, what took the memory, and the flags with which it would."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.reports.reconcile import MemoryPart, Refusal
from kvcalc.core.units import GIB, bytes_text, counted
from kvcalc.cost.sharding import splits_evenly
from kvcalc.engines.logs.refusals import MAKING_ROOM, SERVING
from kvcalc.plan.reconcile.findings import start_up_name
from kvcalc.plan.reconcile.remedies import llama_cpp_remedies, sglang_remedies, vllm_remedies
from kvcalc.plan.reconcile.vllm import reconcile_vllm
from kvcalc.plan.reconcile.words import memory_parts

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.logs import RefusalLine, StartUp
    from kvcalc.plan.reconcile.remedies import Remedies

__all__ = ["limits_of", "printed_gpu_bytes", "refusal_of", "refused_memory", "remedies_of"]

# Less than this is no other process, but what the driver keeps.
_MIN_OF_OTHERS_BYTES = GIB // 4


def refusal_of(start_up: StartUp) -> Refusal | None:
    """Return why a start failed; none where it did not."""
    line = start_up.refusal
    if line is None:
        return None
    sizes = {name: _bytes(line, name) for name in line.sizes if name.endswith("_gib")}
    return Refusal(
        start_up=start_up_name(start_up),
        kind=line.kind,
        stage=line.stage,
        reason=_reason(start_up, line),
        line=line.line,
        tried_bytes=sizes.get("tried_gib"),
        total_bytes=sizes.get("total_gib"),
        free_bytes=sizes.get("free_gib"),
        needed_bytes=sizes.get("needed_gib"),
        available_bytes=sizes.get("available_gib"),
    )


def _bytes(line: RefusalLine, name: str) -> int:
    return round(line.sizes[name].value * GIB)


def _text(line: RefusalLine, name: str) -> str:
    return bytes_text(_bytes(line, name)) if name in line.sizes else ""


def _count(line: RefusalLine, name: str) -> str:
    return f"{int(line.sizes[name].value):,}" if name in line.sizes else "?"


def _reason(start_up: StartUp, line: RefusalLine) -> str:
    length = start_up.count("max_model_len", "context_length")
    request = f"one request of {counted(length, 'token')}" if length else "one request of the longest length"
    match line.kind:
        case "out_of_memory":
            return _out_of_memory(line)
        case "no_cache_memory" if line.stage.startswith(MAKING_ROOM):
            return f"the weights leave no room in the engine's share for {line.stage.removeprefix(MAKING_ROOM)}"
        case "no_cache_memory":
            return "weights, activations and buffers take all that the engine may use: nothing is left for the cache"
        case "request_too_long" if "needed_gib" in line.sizes:
            needed, left = _text(line, "needed_gib"), _text(line, "available_gib")
            return f"{request} needs {needed} of cache on each GPU, and {left} are left for it"
        case "request_too_long":
            tokens = start_up.smallest("kv_cache_tokens")
            return f"{request} does not fit into a cache of {counted(int(tokens.value) if tokens else 0, 'token')}"
        case "memory_in_use":
            share = start_up.options.get("gpu_memory_utilization")
            return (
                f"{_text(line, 'free_gib')} of the GPU's {_text(line, 'total_gib')} are free, and vLLM was to take "
                f"{_text(line, 'requested_gib')} (utilization {share}): other processes use the rest"
            )
        case "too_many_sequences":
            return (
                f"{_count(line, 'sequences')} sequences need a block each for their states, and the cache has "
                f"{_count(line, 'blocks')}"
            )
        case "beyond_model":
            return f"max-model-len {_count(line, 'asked')} is more than the model's {_count(line, 'limit')} tokens"
        case "uneven_heads":
            return f"{_count(line, 'heads')} heads cannot be shared evenly by {_count(line, 'ranks')} ranks"


def _out_of_memory(line: RefusalLine) -> str:
    asked = _text(line, "tried_gib")
    where = {"": "", "CPU": " in host memory"}.get(line.device, f" on GPU {line.device}")
    doing = f" while {line.stage}" if line.stage else ""
    total = f" of {_text(line, 'total_gib')}" if "total_gib" in line.sizes else ""
    free = f", with {_text(line, 'free_gib')}{total} free" if "free_gib" in line.sizes else ""
    others = _others(line)
    theirs = f"; other processes use {bytes_text(others)}" if others else ""
    return f"out of memory{doing}: {asked or 'a buffer'} could not be allocated{where}{free}{theirs}"


def _others(line: RefusalLine) -> int:
    """Return the bytes that other processes had of the GPU, where that can be told."""
    if line.kind == "memory_in_use":
        return _bytes(line, "total_gib") - _bytes(line, "free_gib")
    if not {"total_gib", "free_gib", "process_gib"} <= line.sizes.keys():
        return 0
    others = _bytes(line, "total_gib") - _bytes(line, "free_gib") - _bytes(line, "process_gib")
    return others if others >= _MIN_OF_OTHERS_BYTES else 0


def printed_gpu_bytes(start_up: StartUp) -> int | None:
    """Return the memory of a GPU that the refusal of a start prints; none where it prints none."""
    line = start_up.refusal
    return _bytes(line, "total_gib") if line is not None and "total_gib" in line.sizes else None


def refused_memory(start_up: StartUp, remedies: Remedies | None) -> tuple[MemoryPart, ...]:
    """Return the terms that took a rank's memory: as printed, and computed where they were not.

    Args:
        start_up: the start that failed.
        remedies: what was computed for it, where its model is known.
    """
    parts = {part.part: part for part in memory_parts(start_up)}
    line = start_up.refusal
    if line is None:
        return tuple(parts.values())
    left = parts.pop("KV cache", None)
    if left is not None:
        started = line.stage in ("", SERVING) or start_up.engine == "llama.cpp"
        name = "KV cache" if started else "left for the KV cache"
        parts[name] = replace(left, part=name)
    computed = remedies.budget if remedies is not None else None
    if computed is not None:
        for name, size in (
            ("weights", computed.weight_bytes),
            ("activations", computed.activation_bytes),
            ("outside PyTorch", computed.overhead_bytes),
        ):
            parts.setdefault(name, MemoryPart(part=name, taken_bytes=size, source="computed"))
    if remedies is not None and remedies.needed_bytes:
        name = f"KV cache for one request of {counted(remedies.length, 'token')}"
        parts[name] = MemoryPart(part=name, taken_bytes=remedies.needed_bytes, source="computed")
    if _others(line):
        parts["other processes"] = MemoryPart(part="other processes", taken_bytes=_others(line))
    if "tried_gib" in line.sizes:
        parts["failed allocation"] = MemoryPart(part="failed allocation", taken_bytes=_bytes(line, "tried_gib"))
    return tuple(part for part in parts.values() if part.taken_bytes > 0)


def limits_of(start_up: StartUp, model: ModelProfile) -> tuple[str, ...]:
    """Return the model's limits on an option that was refused, whatever the memory."""
    line = start_up.refusal
    if line is None:
        return ()
    if line.kind == "beyond_model":
        return (f"max-model-len {_count(line, 'limit')} is the most that the model takes",)
    if line.kind == "uneven_heads":
        ranks = int(line.sizes["ranks"].value)
        sizes = [str(size) for size in range(1, ranks + 1) if splits_evenly(model, size)]
        return (f"the heads of {model.name} are shared evenly by {', '.join(sizes)} ranks",)
    return ()


def remedies_of(start_up: StartUp, model: ModelProfile, hardware: HardwareProfile | None) -> Remedies:
    """Return flags with which a start that failed would succeed, by the rules of its engine.

    Args:
        start_up: the start that failed.
        model: the model it ran.
        hardware: the accelerator, where it is known.

    Raises:
        KvcalcError: the model's cache in that engine is not modelled.
    """
    if start_up.engine == "vllm":
        return vllm_remedies(start_up, reconcile_vllm(start_up, model).setup, hardware)
    if start_up.engine == "sglang":
        return sglang_remedies(start_up, model, hardware)
    return llama_cpp_remedies(start_up, model, hardware)
