"""An engine's cache on its fullest rank: what a batch takes of a given memory, and what the memory holds."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.identity import ById
from kvcalc.engines import llama_cpp, mlx, sglang, transformers, vllm
from kvcalc.engines.checkpoint import check_engine, check_split
from kvcalc.engines.kinds import MAX_SEQUENCES, CacheCapacity, Paged, Plain, Pool, Preallocated, Static, TokenPools
from kvcalc.engines.vllm.cache_formats import check_cache_format
from kvcalc.engines.vllm.context import check_decode_context
from kvcalc.engines.vllm.defaults import PASS_TOKENS, with_defaults

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats, Parallel
    from kvcalc.engines.drafts import Draft
    from kvcalc.engines.options import EngineOptions
    from kvcalc.engines.vllm import Layout

__all__ = ["ENGINES", "CacheCapacity", "Pool", "check_vllm", "pool", "vllm_options"]

# What is kept for who asks again with other batches and contexts.
_MAX_POOLS, _MAX_LAYOUTS = 256, 512
_VLLM_GPU_BLOCK = 16


def _most_sequences(options: EngineOptions, parallel: Parallel) -> int:
    return MAX_SEQUENCES if options.max_num_seqs is None else options.max_num_seqs * parallel.data


def check_vllm(model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions) -> None:
    """Check that vLLM starts with a cache format, parallel size and block size.

    Raises:
        InputError: it does not.
    """
    check_cache_format(model, formats, version=options.version or vllm.VERSION, generation=options.generation)
    check_split(model, parallel.tensor)
    check_decode_context(model, tensor=parallel.tensor, ranks=options.decode_context_parallel)
    if options.platform == "gpu" and (options.block_size or _VLLM_GPU_BLOCK) % _VLLM_GPU_BLOCK:
        raise InputError(f"vLLM's blocks on a GPU are multiples of {_VLLM_GPU_BLOCK} tokens, not {options.block_size}")


def vllm_options(
    model: ModelProfile,
    parallel: Parallel,
    options: EngineOptions,
    *,
    max_model_len: int,
    draft: Draft | None = None,
) -> vllm.VllmOptions:
    """Return the options that decide vLLM's layout; those left out are its defaults on its large cards."""
    filled = with_defaults(options, model, parallel, None, draft)
    return vllm.VllmOptions(
        max_model_len=max_model_len,
        block_size=filled.block_size,
        max_num_batched_tokens=filled.max_num_batched_tokens or PASS_TOKENS,
        max_in_flight_batches=filled.max_in_flight_batches,
        prefix_caching=bool(filled.prefix_caching),
        platform=filled.platform,
        speculative_tokens=0 if draft is None else draft.tokens,
        draft=draft,
        version=filled.version,
        generation=filled.generation,
        decode_context_parallel=filled.decode_context_parallel,
        gdn_prefill_backend=filled.gdn_prefill_backend,
    )


def _vllm(
    model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions, draft: Draft | None
) -> Pool:
    check_vllm(model, formats, parallel, options)

    @lru_cache(maxsize=_MAX_LAYOUTS)
    def layouts(max_model_len: int) -> tuple[Layout, ...]:
        asked = vllm_options(model, parallel, options, max_model_len=max_model_len, draft=draft)
        return vllm.stage_layouts(model, formats, asked, tensor=parallel.tensor, pipeline=parallel.pipeline)

    def needed(max_model_len: int) -> int:
        asked = vllm_options(model, parallel, options, max_model_len=max_model_len, draft=draft)
        return vllm.memory_to_start(model, formats, asked, tensor=parallel.tensor, pipeline=parallel.pipeline)

    version = options.version or vllm.VERSION
    return Paged(
        name=f"vllm {version}",
        layouts=layouts,
        needed=lru_cache(maxsize=_MAX_LAYOUTS)(needed),
        parallel=parallel,
        version=version,
        most_sequences=_most_sequences(options, parallel),
    )


def _llama_cpp(
    model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions, draft: Draft | None
) -> Pool:
    if parallel.gpus > 1:
        raise UnsupportedError(
            "llama.cpp on several GPUs is not modelled: its split depends on what each of them has free",
            hint="fit and size take each card by name: --device rtx-3090 --device rtx-3090; or use --engine vllm",
            parameter="gpus",
        )
    asked = llama_cpp.asked_options(formats, options, draft)
    return Preallocated(
        name=f"llama.cpp {llama_cpp.VERSION}{f' by {options.front}' if options.front else ''}",
        model=model,
        options=asked,
        length=options.max_model_len,
        draft=None if draft is None else draft.cached,
        notes=(*options.front_notes, *llama_cpp.option_notes(model, asked)),
    )


def _transformers(
    model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions, draft: Draft | None
) -> Pool:
    check_split(model, parallel.tensor)
    version = options.version or transformers.VERSION
    if options.max_model_len is None:
        return Plain(f"transformers {version}", transformers.as_cached(model, version), formats, parallel, draft)
    static = transformers.decompressed(model, version)
    return Static(
        f"transformers {version}, StaticCache",
        static,
        formats,
        parallel,
        draft,
        starts_whole=True,
        length=options.max_model_len,
    )


def _sglang(
    model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions, draft: Draft | None
) -> Pool:
    check_split(model, parallel.tensor)
    pools = sglang.rank_pools(model, formats, parallel, options, draft=draft)
    asked = options.max_num_seqs
    return TokenPools(
        f"sglang {sglang.VERSION}",
        pools,
        parallel,
        most_sequences=MAX_SEQUENCES if asked is None else max(1, asked // parallel.data) * parallel.data,
        notes=(*sglang.version_notes(options.version), *pools.notes),
    )


def _mlx(
    model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions, draft: Draft | None
) -> Pool:
    del options, draft
    if parallel.gpus > 1:
        raise UnsupportedError("mlx-lm on several machines is not modelled", hint="ask for one GPU")
    return mlx.mlx_pool(model, formats, parallel)


def _ideal(
    model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions, draft: Draft | None
) -> Pool:
    del options
    return Plain("ideal", model, formats, parallel, draft)


ENGINES: dict[str, Callable[..., Pool]] = {
    "ideal": _ideal,
    "vllm": _vllm,
    "llama.cpp": _llama_cpp,
    "sglang": _sglang,
    "transformers": _transformers,
    "mlx": _mlx,
}
# Ways to draft that an engine has; without an engine all of them.
_METHODS = {
    "vllm": ("draft-model", "ngram", "medusa", "eagle", "mtp", "dflash", "dspark"),
    "llama.cpp": ("draft-model", "ngram", "eagle", "mtp", "dflash", "dspark"),
    "sglang": ("draft-model", "ngram", "eagle", "mtp", "dflash", "dspark"),
    "transformers": ("draft-model", "ngram", "layer-skip"),
    "mlx": (),
}


def pool(
    engine: str,
    model: ModelProfile,
    formats: Formats,
    parallel: Parallel,
    options: EngineOptions,
    draft: Draft | None = None,
) -> Pool:
    """Return an engine's cache for a model, and what drafts for it, on an arrangement of GPUs.

    Raises:
        InputError: an engine whose memory is not modelled, or options it refuses.
        UnsupportedError: a model or arrangement that its memory model does not describe.
    """
    check_engine(engine)
    if draft is not None and draft.method not in _METHODS.get(engine, (draft.method,)):
        raise InputError(f"{engine} does not draft by {draft.method}", hint=f"it has {', '.join(_METHODS[engine])}")
    return _pool(engine, ById(model), ById(formats), parallel, options, ById(draft))


@lru_cache(maxsize=_MAX_POOLS)
def _pool(
    engine: str,
    model: ById[ModelProfile],
    formats: ById[Formats],
    parallel: Parallel,
    options: EngineOptions,
    draft: ById[Draft | None],
) -> Pool:
    return ENGINES[engine](model.value, formats.value, parallel, options, draft.value)
