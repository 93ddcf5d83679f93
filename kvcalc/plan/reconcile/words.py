"""Advice on memory: its largest takers and options to change, computed, in plain words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.formats import parse_format
from kvcalc.core.model import Chunked, Sliding
from kvcalc.core.reports.reconcile import MemoryPart
from kvcalc.core.units import GIB, MIB, bytes_text
from kvcalc.plan.reconcile.layouts import checked_stage, largest_length, setup_layout
from kvcalc.plan.reconcile.pool import memory_range
from kvcalc.plan.reconcile.sglang import rank_buffers, sglang_formats, stage_models

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.logs import StartUp
    from kvcalc.plan.reconcile.setups import Setup

__all__ = ["llama_cpp_advice", "memory_parts", "sglang_advice", "vllm_advice"]

_PARTS = (
    ("weights", ("loaded_gib", "weights_gib")),
    ("activations", ("activation_gib",)),
    ("outside PyTorch", ("non_torch_gib",)),
    ("KV cache", ("available_kv_gib",)),
    ("CUDA graphs", ("graphs_gib",)),
)
_MUCH_MORE = 1.02
_IN_FLIGHT_SHARE = 4


def memory_parts(start_up: StartUp) -> tuple[MemoryPart, ...]:
    """Return the takers of a rank's memory by the printed numbers."""
    parts = []
    for part, quantities in _PARTS:
        printed = next((number for name in quantities if (number := start_up.first(name)) is not None), None)
        if printed is not None and printed.value > 0:
            parts.append(MemoryPart(part=part, taken_bytes=round(printed.value * GIB)))
    pool = [start_up.first(name) for name in ("k_gib", "v_gib", "kv_gib")]
    if any(pool):
        size = sum(number.value for number in pool if number is not None)
        parts.append(MemoryPart(part="KV cache", taken_bytes=round(size * GIB)))
    return (*parts, *_llama_cpp_parts(start_up))


def _llama_cpp_parts(start_up: StartUp) -> list[MemoryPart]:
    table = start_up.breakdown
    sizes = (
        {
            "weights": sum(row.model_mib for row in table),
            "KV cache and states": sum(row.context_mib for row in table),
            "compute buffers": sum(row.compute_mib for row in table),
            "not llama.cpp's": sum(row.unaccounted_mib or 0 for row in table),
        }
        if table
        else {
            "weights": sum(number.value for number in start_up.printed.get("model_buffer_mib", ())),
            "KV cache": sum(cache.total.value for cache in start_up.caches),
            "recurrent states": sum(state.total.value for state in start_up.states),
            "compute buffers": sum(number.value for number in start_up.printed.get("compute_buffer_mib", ())),
        }
    )
    return [MemoryPart(part=part, taken_bytes=round(size * MIB)) for part, size in sizes.items() if size > 0]


def vllm_advice(start_up: StartUp, setup: Setup) -> tuple[str, ...]:
    """Return options for more context or concurrency, by the setup that agrees with the log best."""
    memory = memory_range(start_up)
    if memory is None:
        return ()
    room, whole = memory[0], setup
    setup = checked_stage(setup)
    placed = setup_layout(setup)
    blocks = room // placed.bytes_per_block
    each = GIB * placed.max_model_len / placed.needed_bytes
    advice = [f"all of this if {', '.join(setup.terms)}"] if setup.terms else []
    advice += [f"a request of {placed.max_model_len:,} tokens needs {placed.needed_bytes / GIB:.2f} GiB per GPU"]
    fits = largest_length(setup, room, null_block=setup.null_block is not False)
    if fits < 1:
        advice.append("no request fits, however short")
    elif fits < placed.max_model_len:
        advice.append(f"max-model-len {fits:,} is the most that fits")
    else:
        advice.append(
            f"{blocks / placed.needed_blocks:.2f} such requests fit; each further GiB holds {each:,.0f} tokens"
        )
    if start_up.refusal is not None:
        return (*advice, *_newer_check(whole))
    half_setup = replace(setup, options=replace(setup.options, max_model_len=max(1, placed.max_model_len // 2)))
    half = setup_layout(half_setup)
    more = blocks / half.needed_blocks
    if more >= 1 and largest_length(half_setup, room, null_block=setup.null_block is not False) == half.max_model_len:
        advice.append(f"max-model-len {half.max_model_len:,} would let {more:.2f} requests run at once")
    return (*advice, *_less_bytes(setup, room), *_less_in_flight(setup, room))


def _newer_check(setup: Setup) -> tuple[str, ...]:
    """Name the need of a version that asks each pipeline rank for its own layers alone."""
    if not setup.checks_all_layers or setup.pipeline == 1:
        return ()
    stage = setup_layout(setup, stage=True)
    needed = f"{stage.needed_bytes / GIB:.2f} GiB for {stage.max_model_len:,} tokens"
    newer = f"from 0.16 on a rank is asked for its own: {needed}"
    return (f"this version asks every pipeline rank for the cache of all layers; {newer}",)


def _requests(setup: Setup, room: int) -> float:
    placed = setup_layout(setup)
    return room // placed.bytes_per_block / placed.needed_blocks


def _less_bytes(setup: Setup, room: int) -> tuple[str, ...]:
    if setup.formats.key.unit == "fp8":
        return ("the cache is kept in fp8 already",)
    fp8 = parse_format("fp8")
    halved = replace(setup, formats=replace(setup.formats, key=fp8, value=fp8))
    now, then = _requests(setup, room), _requests(halved, room)
    fits = largest_length(halved, room, null_block=halved.null_block is not False)
    if now <= 0 or then <= now:
        return ()
    longer = "" if now >= 1 else f", and the longest request {fits:,} tokens"
    return (f"--kv-cache-dtype fp8 would hold {then / now:.2f} times as many tokens{longer}",)


def _less_in_flight(setup: Setup, room: int) -> tuple[str, ...]:
    windows = setup.model.has(Sliding, Chunked)
    fewer = setup.options.max_num_batched_tokens // _IN_FLIGHT_SHARE
    if not windows or fewer < 1:
        return ()
    changed = replace(setup, options=replace(setup.options, max_num_batched_tokens=fewer))
    now, then = _requests(setup, room), _requests(changed, room)
    if now <= 0 or then < _MUCH_MORE * now:
        return ()
    return (f"a quarter of max-num-batched-tokens would hold {then / now:.2f} times as many tokens",)


def sglang_advice(start_up: StartUp, model: ModelProfile) -> tuple[str, ...]:
    """Return options for more tokens."""
    formats = sglang_formats(start_up, model)
    stages = stage_models(start_up, model)
    fullest = max(stages, key=lambda stage: rank_buffers(start_up, model, stage, formats).full_bytes)
    layers = rank_buffers(start_up, model, fullest, formats)
    taken = layers.full_bytes
    if not taken:
        return ()
    each = f"a token takes {taken:,} B per GPU"
    if layers.windows:
        advice = [f"{each}, and {layers.window_bytes:,} B in the pool for windows"]
    else:
        advice = [f"{each}; each GiB more holds {GIB / taken:,.0f} tokens"]
    if formats.key.unit != "fp8" and start_up.refusal is None:
        fp8 = parse_format("fp8")
        halved = rank_buffers(start_up, model, fullest, replace(formats, key=fp8, value=fp8)).full_bytes
        advice.append(f"--kv-cache-dtype fp8_e4m3 would hold {taken / halved:.2f} times as many tokens")
    return tuple(advice)


def llama_cpp_advice(start_up: StartUp) -> tuple[str, ...]:
    """Return the saving of another cache type in the memory printed."""
    total = sum(cache.total.value for cache in start_up.caches)
    kinds = {cache.key_type for cache in start_up.caches} | {cache.value_type for cache in start_up.caches} - {None}
    if total <= 0:
        return ()
    cells = max((cache.cells or 0 for cache in start_up.caches), default=0)
    advice = [f"the cache takes {total:,.2f} MiB" + (f", {bytes_text(total * MIB / cells)} a cell" if cells else "")]
    if kinds <= {"f16", "bf16"}:
        quantised = parse_format("q8_0").bytes_per_element / parse_format("f16").bytes_per_element
        advice.append(f"--cache-type-k q8_0 --cache-type-v q8_0 would make it {total * quantised:,.2f} MiB")
    return tuple(advice)
