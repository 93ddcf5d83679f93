"""The lines of vLLM's start-up, V0 (0.6 to 0.8) and V1 (0.8 to 0.29).

Wording from public logs: 0.6.4 and 0.8 (worker.py, model_runner.py, executor_base.py, V0); 0.11 to 0.29
(gpu_worker.py, kv_cache_utils.py, core.py, V1).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcalc.engines.logs.refusals import SIZING, VLLM
from kvcalc.engines.logs.values import NUMBER, WHOLE, assigned, keyed, pairs, printed, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.engines.logs.lines import Line
    from kvcalc.engines.logs.records import Builder

__all__ = ["MARKERS", "STARTS", "replica_of"]

_OPTIONS = (
    "model",
    "dtype",
    "max_model_len",
    "max_seq_len",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "kv_cache_dtype",
    "block_size",
    "gpu_memory_utilization",
    "max_num_batched_tokens",
    "max_num_seqs",
    "enable_prefix_caching",
    "quantization",
    "enable_lora",
    "enable_eplb",
    "cpu_offload_gb",
    "language_model_only",
    "enforce_eager",
    "num_gpu_blocks_override",
    "disable_hybrid_kv_cache_manager",
    "mamba_cache_mode",
    "mamba_ssm_cache_dtype",
    "async_scheduling",
)
_ASSIGNED, _KEYED = assigned(_OPTIONS), keyed(_OPTIONS)
_METHOD = re.compile(r"\bmethod'?[=:] ?'([\w.-]{1,40})'")
_DRAFT_TOKENS = re.compile(r"\bnum_spec(?:ulative)?_tokens'?[=:] ?(\d{1,3})")
_ENGINE = re.compile(r"Initializing an? (?:V0 |(V1 ))?LLM engine \(v?([\w.+-]{1,60})\)")
_SERVER = re.compile(r"vLLM API server version v?([\w.+-]{1,60})")
_BANNER = re.compile(r"█\s+version v?(\d[\w.+-]{1,60})")
_BANNER_MODEL = re.compile(r"█\s+model\s+(\S{1,200})")
_LOADED_MODEL = re.compile(r"Starting to load model (\S{1,200}?)\.\.\.")
_REPLICA = re.compile(r"^.{0,120}?\b(?:EngineCore|Worker|VllmWorker)_?(DP\d{1,4})")
_BATCHED = re.compile(r"max_num_batched_tokens=(\d{1,9})")
_NEEDED = re.compile(
    rf"max seq len \((\d{{1,12}})\), ?\(?({NUMBER}) ?GiB KV cache is needed, which is larger than the available KV "
    rf"cache memory \(({NUMBER}) ?GiB\)"
)
_LONGEST = re.compile(rf"estimated maximum model length is ({WHOLE})")
_SET = re.compile(rf"reserved ({NUMBER}) GiB memory for KV Cache as specified")
_STORED = re.compile(r"max seq len \((\d{1,12})\) is larger than the maximum number of tokens.{0,60}?\((\d{1,12})\)")


def _config(line: Line, into: Builder) -> None:
    """Read the engine's whole configuration, V0 and V1."""
    match = _ENGINE.search(line.text)
    if match:
        into.version = match[2]
        into.events.add("V1" if match[1] else "V0")
    for name, value in pairs(_ASSIGNED, line.text):
        # a draft model's own configuration stands inside, after the target's
        into.options.setdefault("max_model_len" if name == "max_seq_len" else name, value)
    _speculation(line, into)
    _name(into)


def _arguments(line: Line, into: Builder) -> None:
    """Read the arguments that differ from their defaults."""
    for pattern in (_KEYED, _ASSIGNED):
        for name, value in pairs(pattern, line.text):
            into.options.setdefault(name, value)
            if name == "max_model_len":
                into.events.add("asked for a length")
    _speculation(line, into)
    _name(into)


def _speculation(line: Line, into: Builder) -> None:
    start = line.text.find("speculative_config")
    if start < 0:
        return
    part = line.text[start : start + 600]
    if re.match(r"speculative_config'?[=:] ?None", part):
        return
    method, tokens = _METHOD.search(part), _DRAFT_TOKENS.search(part)
    if method:
        into.options.setdefault("speculative_method", method[1])
    if tokens:
        into.options.setdefault("speculative_tokens", int(tokens[1]))


def _name(into: Builder) -> None:
    model = into.options.pop("model", None)
    if isinstance(model, str):
        into.model = into.model or model


def _version(pattern: re.Pattern[str]) -> Callable[[Line, Builder], None]:
    def read(line: Line, into: Builder) -> None:
        match = pattern.search(line.text)
        if match:
            into.version = into.version or match[1]

    return read


def _counts(pattern: str, *quantities: str) -> Callable[[Line, Builder], None]:
    compiled = re.compile(pattern)

    def read(line: Line, into: Builder) -> None:
        match = compiled.search(line.text)
        if match:
            for group, quantity in enumerate(quantities, 1):
                into.put(quantity, whole(match[group], line.number))

    return read


def _memory(pattern: str, quantity: str) -> Callable[[Line, Builder], None]:
    compiled = re.compile(pattern.replace("#", f"({NUMBER})"))

    def read(line: Line, into: Builder) -> None:
        match = compiled.search(line.text)
        if match:
            into.put(quantity, printed(match[1], line.number, decimals=2))

    return read


def _event(event: str) -> Callable[[Line, Builder], None]:
    def read(line: Line, into: Builder) -> None:
        del line
        into.events.add(event)

    return read


def _default(pattern: str, name: str) -> Callable[[Line, Builder], None]:
    """Return the reader of an option that the engine chose itself."""
    compiled = re.compile(pattern)

    def read(line: Line, into: Builder) -> None:
        match = compiled.search(line.text)
        if match:
            into.options.setdefault(name, int(match[1]))

    return read


def _named_model(pattern: re.Pattern[str]) -> Callable[[Line, Builder], None]:
    """Return a reader of the model's name, where the engine's configuration has not told it."""

    def read(line: Line, into: Builder) -> None:
        match = pattern.search(line.text)
        if match:
            into.model = into.model or match[1]

    return read


def _cpu_tokens(line: Line, into: Builder) -> None:
    into.events.add("cpu")
    _CPU_TOKENS(line, into)


def _set_memory(line: Line, into: Builder) -> None:
    """Read a cache whose bytes were asked for: the utilization has no part in it."""
    match = _SET.search(line.text)
    if match:
        into.events.add("cache memory set")
        into.put("available_kv_gib", printed(match[1], line.number, decimals=2))


def _batched(line: Line, into: Builder) -> None:
    match = _BATCHED.search(line.text)
    if match:
        into.options["max_num_batched_tokens"] = int(match[1])


def _concurrency(line: Line, into: Builder) -> None:
    match = re.search(rf"Maximum concurrency for ({WHOLE}) tokens per request: ({NUMBER})x", line.text)
    if match:
        into.options["max_model_len"] = int(match[1].replace(",", ""))
        into.put("max_concurrency", printed(match[2], line.number, decimals=2))


def _refused(line: Line, into: Builder) -> None:
    match = _NEEDED.search(line.onward)
    if not match:
        return
    into.options["max_model_len"] = int(match[1])
    needed, available = (printed(match[group], line.number, decimals=2) for group in (2, 3))
    into.put("needed_kv_gib", needed)
    into.put("available_kv_gib", available)
    sizes = {"needed_gib": needed, "available_gib": available}
    into.refuse("request_too_long", line.number, stage=SIZING, sizes=sizes)
    longest = _LONGEST.search(line.onward)
    if longest:
        into.put("estimated_max_model_len", whole(longest[1], line.number))


def _too_long(line: Line, into: Builder) -> None:
    match = _STORED.search(line.onward)
    if match:
        into.options["max_model_len"] = int(match[1])
        into.put("kv_cache_tokens", whole(match[2], line.number))
        into.refuse("request_too_long", line.number, stage=SIZING)


def _profile(line: Line, into: Builder) -> None:
    """Read the account of the memory: V0's (0.6.4: key=value; 0.7: a sentence for each part) and V1's (debug)."""
    for pattern, quantity in _PROFILE:
        match = pattern.search(line.text)
        if match:
            into.put(quantity, printed(match[1], line.number, decimals=2))


_PROFILE = tuple(
    (re.compile(pattern.replace("#", f"({NUMBER})")), quantity)
    for pattern, quantity in (
        (r"total_gpu_memory(?: \(|=)#GiB", "total_gpu_gib"),
        (r"total_memory=#GiB", "total_gpu_gib"),
        (r"gpu_memory_utilization(?: \(|=)#", "gpu_memory_utilization"),
        (r"model weights take #GiB", "weights_gib"),
        (r"non_torch_memory(?: takes |=)#GiB", "non_torch_gib"),
        (r"PyTorch activation peak memory takes #GiB", "activation_gib"),
        (r"peak_torch_memory=#GiB", "peak_torch_gib"),
        (r"reserved for KV Cache is #GiB", "available_kv_gib"),
        (r"kv_cache_size=#GiB", "available_kv_gib"),
        (r"Requested memory: [0-9.]{1,12} \(util\), #\s?GiB", "requested_gib"),
        (r"Total non KV cache memory: #\s?GiB", "non_kv_gib"),
        (r"torch peak memory increase: #\s?GiB", "activation_gib"),
        (r"non-torch forward increase memory: #\s?GiB", "non_torch_gib"),
        (r"weights memory: #\s?GiB", "weights_gib"),
    )
)

_CPU_TOKENS = _counts(rf"CPU KV cache size: ({WHOLE}) tokens", "kv_cache_tokens")

STARTS = (
    "Initializing an LLM engine",
    "Initializing a V0 LLM engine",
    "Initializing a V1 LLM engine",
    "vLLM API server version",
    "non-default args:",
)

MARKERS: dict[str, Callable[[Line, Builder], None]] = {
    **VLLM,
    "Initializing an LLM engine": _config,
    "Initializing a V0 LLM engine": _config,
    "Initializing a V1 LLM engine": _config,
    "vLLM API server version": _version(_SERVER),
    "█  version": _version(_BANNER),
    "█ version": _version(_BANNER),
    "non-default args:": _arguments,
    "args: Namespace(": _arguments,
    "max_num_batched_tokens=": _batched,
    "Defaulting max_num_batched_tokens to": _default(r"max_num_batched_tokens to (\d{1,9})", "max_num_batched_tokens"),
    "Defaulting max_num_seqs to": _default(r"max_num_seqs to (\d{1,9})", "default_max_num_seqs"),
    "Using max model len": _default(r"Using max model len (\d{1,12})", "max_model_len"),
    "█  model": _named_model(_BANNER_MODEL),
    "Starting to load model": _named_model(_LOADED_MODEL),
    "Asynchronous scheduling is enabled": _event("asynchronous"),
    "Mamba cache 'align' mode": _event("align"),
    "Setting attention block size to": _counts(rf"block size to ({WHOLE}) tokens", "attention_block_tokens"),
    "Padding mamba page size by": _memory(r"page size by #%", "state_padding_percent"),
    "padding layers, may waste": _memory(r"may waste at most #%", "padding_waste_percent"),
    "Model loading took": _memory(r"Model loading took # ?Gi?B", "loaded_gib"),
    "model weights took": _memory(r"model weights took # ?Gi?B", "loaded_gib"),
    "Available KV cache memory": _memory(r"Available KV cache memory: # GiB", "available_kv_gib"),
    "memory for KV Cache as specified": _set_memory,
    "GPU KV cache size": _counts(rf"GPU KV cache size: ({WHOLE}) tokens", "kv_cache_tokens"),
    "CPU KV cache size": _cpu_tokens,
    "for KV cache on node": _memory(r"set \(#/", "available_kv_gib"),
    "Maximum concurrency for": _concurrency,
    "GPU blocks:": _counts(rf"GPU blocks: ({WHOLE})", "gpu_blocks"),
    "# cuda blocks": _counts(rf"# cuda blocks: ({WHOLE})", "gpu_blocks"),
    "num_gpu_blocks is:": _counts(rf"num_gpu_blocks is: ({WHOLE})", "gpu_blocks"),
    "Memory profiling results": _profile,
    "Requested memory:": _profile,
    "worker init memory snapshot": _profile,
    "Total non KV cache memory:": _profile,
    "Estimated CUDA graph memory": _memory(r"CUDA graph memory: # GiB", "estimated_graphs_gib"),
    "the current vLLM instance can use": _profile,
    "model weights take": _profile,
    "the rest of the memory reserved for KV Cache": _profile,
    "Graph capturing finished": _memory(r"took # GiB", "graphs_gib"),
    "To serve at least one request": _refused,
    "The model's max seq len": _too_long,
}


def replica_of(line: Line) -> str | None:
    """Return the data-parallel replica that printed a line."""
    match = _REPLICA.match(line.text)
    return match[1] if match else None
