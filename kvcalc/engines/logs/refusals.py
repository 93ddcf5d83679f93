"""The lines with which engines say that they do not start, and what they were doing.

Wording from public logs: PyTorch 2.0 ("already allocated"), 2.1 ("total capacty") and later; vLLM 0.6 to 0.32; SGLang
0.1 to 0.5; llama.cpp 2024 to 2026 (CUDA, Vulkan, the host's memory).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.engines.logs.values import NUMBER, SIZE, WHOLE, printed, size_gib, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcalc.engines.logs.lines import Line
    from kvcalc.engines.logs.records import Builder, Printed

__all__ = [
    "LLAMA_CPP",
    "LOADING",
    "MAKING_ROOM",
    "PROFILING",
    "SAMPLING",
    "SERVING",
    "SGLANG",
    "SIZING",
    "TORCH_OUT_OF_MEMORY",
    "VLLM",
]

Readers = dict[str, "Callable[[Line, Builder], None]"]

TORCH_OUT_OF_MEMORY = "out of memory. Tried to allocate"
_TRIED = re.compile(rf"Tried to allocate {SIZE}")
# Words of PyTorch around a size: the newer come first.
_TORCH_SIZES = {
    "total_gib": (rf"total capaci?ty of {SIZE}", rf"{SIZE} total capacity"),
    "free_gib": (rf"{SIZE} is free", rf"{SIZE} free"),
    "process_gib": (rf"this process has {SIZE} memory in use",),
    "torch_gib": (rf"{SIZE} is allocated by PyTorch", rf"{SIZE} already allocated"),
    "unused_gib": (rf"{SIZE} is reserved by PyTorch but unallocated",),
}
_TORCH = {name: tuple(map(re.compile, patterns)) for name, patterns in _TORCH_SIZES.items()}
_GPU = re.compile(r"\b[GNX]PU (\d{1,4})\b")

_IN_USE = re.compile(
    rf"Free memory on device (?:\w{{1,12}}:(\d{{1,4}}) )?\(({NUMBER})/({NUMBER}) GiB\).{{0,80}}?"
    rf"utilization \(({NUMBER}), ({NUMBER}) GiB\)"
)
_SHARE = re.compile(r"mem_fraction_static=(0\.\d{1,6})")
_WARM_UP = re.compile(r"warming up sampler with (\d{1,7}) dummy requests")
_STATE_BLOCKS = re.compile(rf"max_num_seqs \(({WHOLE})\) exceeds available Mamba cache blocks \(({WHOLE})\)")
_BEYOND = re.compile(
    rf"max_model_len \(({WHOLE})\) is greater than the derived max_model_len \([^)]{{0,60}}?=({WHOLE})"
)
_HEADS = re.compile(r"attention heads \((\d{1,6})\) must be divisible by tensor parallel size \((\d{1,4})\)")

LOADING = "loading the weights"
PROFILING = "profiling the largest pass"
SIZING = "sizing the cache"
AFTER = "allocating the cache or capturing CUDA graphs"
SERVING = "serving requests"
SAMPLING = "warming up the sampler"


def _torch_sizes(line: Line) -> dict[str, Printed]:
    tried = _TRIED.search(line.onward)
    sizes = {"tried_gib": size_gib(tried[1], tried[2], line.number)} if tried else {}
    for name, patterns in _TORCH.items():
        match = next((attempt for pattern in patterns if (attempt := pattern.search(line.onward))), None)
        if match:
            sizes[name] = size_gib(match[1], match[2], line.number)
    return sizes


def _out_of_memory(weights: str, pool: str) -> Callable[[Line, Builder], None]:
    """Return the reader of PyTorch's line; an engine prints ``weights`` when loaded, ``pool`` when sized."""

    def read(line: Line, into: Builder) -> None:
        sizes = _torch_sizes(line)
        if "tried_gib" not in sizes:
            return
        loaded = into.printed.keys() & {weights, "weights_gib"}
        stage = AFTER if pool in into.printed else PROFILING if loaded else LOADING
        device = _GPU.search(line.onward)
        into.refuse(
            "out_of_memory",
            line.number,
            stage=SERVING if "ready" in into.events else stage,
            device=device[1] if device else "",
            sizes=sizes,
        )

    return read


def _no_cache_memory(line: Line, into: Builder) -> None:
    into.refuse("no_cache_memory", line.number, stage=PROFILING)


def _no_pool_memory(line: Line, into: Builder) -> None:
    match = _SHARE.search(line.text)
    if match:
        into.options.setdefault("mem_fraction_static", float(match[1]))
    _no_cache_memory(line, into)


def _in_use(line: Line, into: Builder) -> None:
    match = _IN_USE.search(line.onward)
    if match:
        device, free, total, share, requested = match.groups()
        into.options.setdefault("gpu_memory_utilization", float(share))
        into.refuse(
            "memory_in_use",
            line.number,
            stage="starting",
            device=device or "",
            sizes={
                "free_gib": printed(free, line.number, decimals=2),
                "total_gib": printed(total, line.number, decimals=2),
                "requested_gib": printed(requested, line.number, decimals=2),
            },
        )


def _warm_up(line: Line, into: Builder) -> None:
    """Read the line that sums up a failed warm-up; the sizes stand in PyTorch's line before it."""
    match = _WARM_UP.search(line.onward)
    if not match:
        return
    count = whole(match[1], line.number)
    into.refuse("out_of_memory", line.number, stage=SAMPLING)
    if into.refusal and into.refusal.kind == "out_of_memory":
        into.refusal = replace(into.refusal, stage=SAMPLING, sizes={**into.refusal.sizes, "sequences": count})


def _state_blocks(line: Line, into: Builder) -> None:
    match = _STATE_BLOCKS.search(line.onward)
    if match:
        sizes = {"sequences": whole(match[1], line.number), "blocks": whole(match[2], line.number)}
        into.put("gpu_blocks", sizes["blocks"])
        into.refuse("too_many_sequences", line.number, stage=AFTER, sizes=sizes)


def _beyond_model(line: Line, into: Builder) -> None:
    match = _BEYOND.search(line.onward)
    if match:
        asked, limit = (whole(text, line.number) for text in match.groups())
        into.options.setdefault("max_model_len", int(asked.value))
        into.refuse("beyond_model", line.number, stage="starting", sizes={"asked": asked, "limit": limit})


def _uneven_heads(line: Line, into: Builder) -> None:
    match = _HEADS.search(line.onward)
    if match:
        heads, ranks = (whole(text, line.number) for text in match.groups())
        into.options.setdefault("tensor_parallel_size", int(ranks.value))
        into.refuse("uneven_heads", line.number, stage="starting", sizes={"heads": heads, "ranks": ranks})


def _ready(line: Line, into: Builder) -> None:
    del line
    into.events.add("ready")


def _passed_over(line: Line, into: Builder) -> None:
    """Read nothing: a path of the engine's files tells only which engine it is."""


VLLM: Readers = {
    TORCH_OUT_OF_MEMORY: _out_of_memory("loaded_gib", "available_kv_gib"),
    "No available memory for the cache blocks": _no_cache_memory,
    "Free memory on device": _in_use,
    "out of memory occurred when warming up sampler": _warm_up,
    "max_num_seqs (": _state_blocks,
    "User-specified max_model_len (": _beyond_model,
    "Total number of attention heads (": _uneven_heads,
    "Application startup complete": _ready,
    "/vllm/": _passed_over,
}


# The stage of an engine that sizes its pools, and what it makes room for.
MAKING_ROOM = "making room for "


def _no_pool_for(what: str) -> Callable[[Line, Builder], None]:
    def read(line: Line, into: Builder) -> None:
        into.refuse("no_cache_memory", line.number, stage=f"{MAKING_ROOM}{what}")

    return read


# SGLang 0.5.23, by what its pools have no room for.
_SGLANG_POOLS = {
    "Loaded weights leave no GPU memory for the KV cache": "tokens",
    "Not enough GPU memory for hybrid (mamba/linear-attention) state cache": "a slot of recurrent states",
    "state cache is too small to serve any requests": "the recurrent states of a request",
    "cannot hold even one request: the prefill admission floor": "a window and a page",
    "leaves no room for the full KV pool": "tokens beside the windows of all requests",
}
SGLANG: Readers = {
    TORCH_OUT_OF_MEMORY: _out_of_memory("loaded_gib", "max_total_num_tokens"),
    "Not enough memory. Please try to increase --mem-fraction-static": _no_pool_memory,
    **{words: _no_pool_for(what) for words, what in _SGLANG_POOLS.items()},
    "The server is fired up": _ready,
    "/sglang/": _passed_over,
}

# What llama.cpp allocates, by the words of its last line.
_BUFFERS = {
    "error loading model: unable to allocate": "weights",
    "failed to allocate buffer for kv cache": "KV cache",
    "failed to allocate buffer for rs cache": "recurrent states",
    "failed to allocate compute": "compute buffers",
}
_CUDA = re.compile(rf"allocating ({NUMBER}) MiB on device (\d{{1,4}}): \w{{1,12}}Malloc failed")
_BUFFER = re.compile(r"failed to allocate (\w{1,20}) buffer of size (\d{1,18})")
_METAL = re.compile(rf"failed to allocate buffer, size = {{1,8}}({NUMBER}) MiB")
_SYSTEM = re.compile(rf"requires more system memory \(({NUMBER}) GiB\) than is available \(({NUMBER}) GiB\)")
_HOST = re.compile(rf"insufficient memory \(attempted to allocate ({NUMBER}) MB\)")


def _cuda_malloc(line: Line, into: Builder) -> None:
    match = _CUDA.search(line.text)
    if match:
        tried = size_gib(match[1], "MiB", line.number)
        into.refuse("out_of_memory", line.number, device=match[2], sizes={"tried_gib": tried})


def _buffer_of_size(line: Line, into: Builder) -> None:
    match, metal = _BUFFER.search(line.text), _METAL.search(line.text)
    if match:
        tried = size_gib(match[2], "bytes", line.number)
        into.refuse("out_of_memory", line.number, device=match[1], sizes={"tried_gib": tried})
    elif metal:
        tried = size_gib(metal[1], "MiB", line.number)
        into.refuse("out_of_memory", line.number, device="Metal", sizes={"tried_gib": tried})


def _host(line: Line, into: Builder) -> None:
    match = _HOST.search(line.text)
    if match:
        tried = size_gib(match[1], "MiB", line.number)
        into.refuse("out_of_memory", line.number, device="CPU", sizes={"tried_gib": tried})


def _system(line: Line, into: Builder) -> None:
    """Read ollama's line: it asks whether the host has the memory before it loads."""
    match = _SYSTEM.search(line.text)
    if match:
        tried, free = (size_gib(match[group], "GiB", line.number) for group in (1, 2))
        sizes = {"tried_gib": tried, "free_gib": free}
        into.refuse("out_of_memory", line.number, stage=LOADING, device="CPU", sizes=sizes)


def _of_buffer(name: str) -> Callable[[Line, Builder], None]:
    def read(line: Line, into: Builder) -> None:
        into.refuse("out_of_memory", line.number, stage=f"allocating the {name}")
        if into.refusal and not into.refusal.stage:
            into.refusal = replace(into.refusal, stage=f"allocating the {name}")

    return read


def _again(line: Line, into: Builder) -> None:
    """Forget a refusal: without pipeline parallelism llama.cpp tries once more."""
    del line
    into.refusal = None


LLAMA_CPP: Mapping[str, Callable[[Line, Builder], None]] = {
    "alloc failed: out of memory": _cuda_malloc,
    "failed to allocate ": _buffer_of_size,
    "insufficient memory (attempted to allocate": _host,
    "requires more system memory": _system,
    **{words: _of_buffer(name) for words, name in _BUFFERS.items()},
    "retrying without pipeline parallelism": _again,
    "server is listening on": _ready,
}
