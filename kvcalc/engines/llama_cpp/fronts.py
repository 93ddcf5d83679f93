"""Ollama and LM Studio: programs that start llama.cpp with defaults of their own.

Source of Ollama's: its code at the versions named (github.com/ollama/ollama: ``server/routes.go``, ``server/sched.go``,
``llm/llama_server.go``, ``llama/llama.go``, ``envconfig/config.go``). LM Studio is closed: its defaults are those of
the schema of its SDK (github.com/lmstudio-ai/lmstudio-js@6ec11db19bf4, 2026-08-21, ``lms-kv-config/src/schema.ts``),
its length that of models which its server loads by itself (github.com/zed-industries/zed/issues/33938).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.units import GIB, MIB, bytes_text
from kvcalc.cost.parameters import weight_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.engines.options import EngineOptions

__all__ = [
    "OLLAMA_VERSION",
    "check_front",
    "check_placement",
    "context_note",
    "front_defaults",
    "ollama_context",
    "ollama_devices",
    "own_context",
    "started_by",
]

OLLAMA_VERSION = "0.32.15"
_OLD = "Ollama {} ran many models in its own engine, whose cache layout may differ"
_LM_STUDIO = (
    "LM Studio is closed: these are the defaults of its SDK of 2026-08-21, and its guardrails are not published"
)
# The first version that runs llama.cpp's own server; before it stood a runner of Ollama's, and for many models an
# engine of its own. The first whose parallel requests are one unless asked for.
_LLAMA_SERVER, _OLDEST = (0, 30, 0), (0, 10, 0)
# The first version whose context follows from the memory of all GPUs, and the memory from which on it is so long.
_TIERED = (0, 15, 5)
_TIERS = ((47 * GIB, 262_144), (23 * GIB, 32_768))
_SHORT = 4096
_LM_STUDIO_CONTEXT = 4096
# Tokens of a batch by context, what they are taken to need beside the model, and the share of the free memory that the
# model may take at most for them.
_BATCHES = ((32_768, 2048, 2 * GIB, 0.6), (4096, 1024, 768 * MIB, 0.75))
_BATCH, _FITS = 512, 0.8
# Options of llama.cpp that a program does not pass on.
_WITHOUT = {
    "ollama": {"kv_unified": "--kv-unified", "swa_full": "--swa-full", "n_rs_seq": "--n-rs-seq"},
    "lm-studio": {"n_rs_seq": "--n-rs-seq"},
}

# Options of placement that a program has settings for.
_PLACES = {
    "ollama": ("gpu-layers", "main-gpu"),
    "lm-studio": ("gpu-layers", "n-cpu-moe", "cpu-moe", "kv-offload", "split-mode", "main-gpu", "tensor-split"),
}


def front_defaults(front: str) -> Mapping[str, Any]:
    """Return the options that a program starts llama.cpp with where none are given; a batch of 0 is chosen later.

    >>> front_defaults("lm-studio")["parallel"], front_defaults("ollama")["ubatch"]
    (4, 0)
    """
    if front == "ollama":
        return {"batch_size": 0, "ubatch": 0}
    return {"parallel": 4, "kv_unified": True}


def check_front(front: str, given: Mapping[str, Any]) -> None:
    """Refuse options that a program has no setting for.

    Raises:
        InputError: such an option, or two types of cache for Ollama, which has one.
    """
    for name, flag in _WITHOUT[front].items():
        if given.get(name):
            raise InputError(
                f"{front} has no {flag.lstrip('-')}", hint="--engine llama.cpp has", parameter=flag.lstrip("-")
            )
    keys, values = given.get("cache_type_k"), given.get("cache_type_v")
    if front == "ollama" and keys != values:
        raise InputError(
            "ollama keeps keys and values in one type (OLLAMA_KV_CACHE_TYPE)",
            hint=f"--cache-type-k {keys or values} --cache-type-v {keys or values}",
            parameter="cache-type-k",
        )


def started_by(
    options: EngineOptions,
    model: ModelProfile,
    formats: Formats,
    memory_bytes: int | None,
    *,
    max_model_len: int | None,
) -> EngineOptions:
    """Return options with what a program takes where nothing was said, and notes of it.

    Args:
        options: the options, with the program as ``front``.
        model: the model.
        formats: formats that it runs in.
        memory_bytes: memory of all accelerators that is free; none where only the cache is asked about.
        max_model_len: tokens of a request's context, where the options name none.

    Raises:
        InputError: a version of Ollama that is not described.
    """
    if options.front == "lm-studio":
        return replace(options, front_notes=(_LM_STUDIO,))
    version, text = _version(options.version), options.version or OLLAMA_VERSION
    is_old = version < _LLAMA_SERVER
    notes = [_OLD.format(text) if is_old else f"as Ollama {text} starts llama.cpp's server"]
    length = options.max_model_len or max_model_len or own_context(options, model, memory_bytes)
    asked = options.ubatch or options.batch_size
    batch = asked or _batch(length * options.parallel, model, formats, memory_bytes or 0, version)
    if not asked and batch != _BATCH:
        notes.append(f"Ollama computes {batch:,} tokens at once at that context: --ubatch for its num_batch")
    return replace(
        options,
        batch_size=min(batch, length) * options.parallel if is_old else batch,
        ubatch=min(batch, length) if is_old else batch,
        swa_full=is_old,
        front_notes=tuple(notes),
    )


def own_context(options: EngineOptions, model: ModelProfile, memory_bytes: int | None) -> int:
    """Return the tokens of a request's context that a program takes where none are asked for.

    Args:
        options: the options, with the program as ``front``.
        model: the model.
        memory_bytes: memory of all accelerators; none where only the cache is asked about.

    Raises:
        InputError: a version of Ollama that is not described.
    """
    if options.front == "lm-studio":
        return min(_LM_STUDIO_CONTEXT, model.context_limit or _LM_STUDIO_CONTEXT)
    return ollama_context(memory_bytes, version=options.version, limit=model.context_limit)


def context_note(options: EngineOptions, model: ModelProfile, memory_bytes: int | None) -> str:
    """Say why a program takes the context that it takes where none is asked for."""
    length = own_context(options, model, memory_bytes)
    if options.front == "lm-studio":
        return f"a context of {length:,} tokens, as LM Studio's server loads a model: --context says another"
    if length == model.context_limit:
        why = "what the model was trained with"
    elif _version(options.version) < _TIERED:
        why = "its default before 0.15.5"
    elif memory_bytes is None:
        why = "its least: no GPU is given"
    else:
        why = f"its default for {bytes_text(memory_bytes)} of GPU memory"
    return f"Ollama takes a context of {length:,} tokens, {why}: --context says another (num_ctx)"


def ollama_context(total_bytes: int | None, *, version: str | None = None, limit: int | None = None) -> int:
    """Return the tokens of a request's context that Ollama takes by itself.

    Args:
        total_bytes: memory of all GPUs as their runtime reports it, less OLLAMA_GPU_OVERHEAD; none where unknown.
        version: Ollama's; the one described where left out.
        limit: tokens the model was trained with.

    Source: Ollama 0.32.15, ``Serve`` in ``server/routes.go``: 262,144 from 47 GiB, 32,768 from 23 GiB, else 4,096,
    which it was always before 0.15.5.

    Raises:
        InputError: a version that is not described.

    >>> [ollama_context(size * GIB) for size in (12, 24, 80)], ollama_context(80 * GIB, limit=131072)
    ([4096, 32768, 262144], 131072)
    """
    tiers = _TIERS if _version(version) >= _TIERED else ()
    length = next((tokens for min_bytes, tokens in tiers if (total_bytes or 0) >= min_bytes), _SHORT)
    return min(length, limit or length)


def _batch(context: int, model: ModelProfile, formats: Formats, free: int, version: tuple[int, ...]) -> int:
    """Return the tokens of a batch that Ollama chooses: the longer the context, the more, where its estimate fits.

    Source: Ollama 0.32.15, ``automaticGenerationBatch`` in ``server/sched.go``; 512 before 0.30.
    """
    if version < _LLAMA_SERVER:
        return _BATCH
    predicted = _predicted(model, formats, context)
    for min_context, batch, surcharge, share in _BATCHES:
        if context > min_context:
            if not free or predicted <= min(share * free, _FITS * free - surcharge):
                return batch
            context = min_context  # the next one down is tried
    return _BATCH


def check_placement(options: EngineOptions, given: Iterable[str]) -> None:
    """Refuse options of placement that a program does not pass on to llama.cpp.

    Args:
        options: the options, with the program as ``front``.
        given: names of the options of placement that were given, as flags.

    Raises:
        InputError: such an option, or a version of Ollama that places layers by itself.
    """
    front = options.front
    flag = next((name for name in given if name not in _PLACES[front]), None)
    if flag is not None:
        has = " and ".join(f"--{name}" for name in _PLACES[front])
        raise InputError(f"{front} has no {flag}", hint=f"it has {has}; --engine llama.cpp has all", parameter=flag)
    if front == "ollama" and _version(options.version) < _LLAMA_SERVER:
        raise InputError(
            f"Ollama {options.version} placed layers by its own estimates, which are not modelled",
            hint="versions from 0.30 on leave it to llama.cpp",
            parameter="engine-version",
        )


def ollama_devices(
    model: ModelProfile, formats: Formats, context: int, free_bytes: Sequence[int], kinds: Sequence[str]
) -> tuple[int, ...]:
    """Return the devices that Ollama loads a model on: the freest alone where that holds it, else all of one kind.

    Source: Ollama 0.32.15, ``selectLlamaServerPlacement`` in ``server/sched.go``.

    Args:
        model: the model.
        formats: formats that it runs in.
        context: tokens of all sequences together.
        free_bytes: free memory of each device.
        kinds: the library that runs each, of which one serves a model.
    """
    everything = range(len(free_bytes))
    if len(everything) <= 1:
        return tuple(everything)
    freest = max(everything, key=lambda index: (free_bytes[index], -index))
    if _predicted(model, formats, context) <= _FITS * free_bytes[freest]:
        return (freest,)
    groups = [tuple(index for index in everything if kinds[index] == kind) for kind in dict.fromkeys(kinds)]
    return max(groups, key=lambda group: sum(free_bytes[index] for index in group))


def _predicted(model: ModelProfile, formats: Formats, context: int) -> int:
    """Return the bytes that Ollama expects a model and its cache to take."""
    return weight_bytes(model, formats) + _estimated_cache(model, context)


def _estimated_cache(model: ModelProfile, context: int) -> int:
    """Return the cache that Ollama expects: 16 bits, the fewest KV heads of any layer, heads as wide as they share out.

    Source: Ollama 0.32.15, ``PredictServerVRAM`` in ``llm/llama_server.go``.
    """
    mixers = [mixer for block in model.block_counts for mixer in block.mixers]
    heads = max((getattr(mixer, "heads", 0) for mixer in mixers), default=0)
    fewest = min((getattr(mixer, "kv_heads", 0) for mixer in mixers), default=0)
    width = model.hidden_size // heads if heads else 0
    return 2 * model.layers * max(1, fewest) * width * context * 2


def _version(text: str | None) -> tuple[int, ...]:
    """Return a version of Ollama as numbers.

    Raises:
        InputError: none, or one that is not described.
    """
    match = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:-rc\d+)?", text or OLLAMA_VERSION)
    if match is None:
        raise InputError(
            f"{text!r} is not a version of Ollama", hint=f"as {OLLAMA_VERSION}", parameter="engine-version"
        )
    version = tuple(int(part or 0) for part in match.groups())
    if version < _OLDEST:
        raise InputError(
            f"Ollama {text} chose its parallel requests by memory, which is not described",
            hint="versions from 0.10.0 on are",
            parameter="engine-version",
        )
    return version
