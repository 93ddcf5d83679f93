"""An engine's cache on its fullest rank: what a batch takes of a given memory, and what the memory holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from kvcalc.core.errors import InputError, UnsupportedError, did_you_mean
from kvcalc.core.reports.size import Reserved
from kvcalc.core.same import Same
from kvcalc.core.units import ceil_div
from kvcalc.cost.sharding import rank_cache, rank_cache_bytes, splits_evenly, stage_blocks
from kvcalc.engines import llama_cpp, sglang, transformers, vllm

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats, Parallel
    from kvcalc.engines.options import EngineOptions
    from kvcalc.engines.vllm import Layout

__all__ = ["ENGINES", "Held", "Pool", "pool"]

# No engine's limit: where the search for the largest batch stops.
_MOST_SEQUENCES = 2**20
# What is kept for who asks again with other batches and contexts.
_MOST_POOLS, _MOST_LAYOUTS = 256, 512
# Cache formats that an engine has; the compressed ones are its own, with scales as their names say.
_VLLM_CACHES = (
    "bf16",
    "fp16",
    "fp32",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_per_token_head",
    "int8_per_token_head",
    "int4_per_token_head",
    "nvfp4",
)
_SGLANG_CACHES = ("bf16", "fp16", "fp32", "fp8", "fp8_e4m3", "fp8_e5m2")
_VLLM_GPU_BLOCK = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a cache memory holds, of one data-parallel copy: engines print it so.

    Args:
        tokens: as the engine counts or prints them.
        concurrency: sequences of the longest length.
        num_blocks: blocks, for engines that page.
        block_size: tokens of a block.
        starts: whether the engine starts with it.
        needed_bytes: bytes it needs to start.
    """

    tokens: int
    concurrency: float
    num_blocks: int | None
    block_size: int | None
    starts: bool
    needed_bytes: int


class Pool(Protocol):
    """An engine's cache, for one model on one arrangement of GPUs."""

    @property
    def name(self) -> str:
        """The engine and the version that is described."""

    @property
    def starts_whole(self) -> bool:
        """Whether it refuses to start unless one sequence of its longest length fits."""

    @property
    def most_sequences(self) -> int:
        """Sequences it takes at once, whatever the memory."""

    def bytes_for(self, *, context: int, batch: int) -> int:
        """Return the bytes that must be there on the fullest rank for a batch of sequences of that length."""

    def reserved(self, *, context: int, batch: int) -> Reserved:
        """Return the bytes that the batch itself takes on the fullest rank, keys and values apart from states."""

    def held(self, kv_bytes: int, *, max_model_len: int) -> Held:
        """Return what that memory holds when the engine is started for sequences of that length."""


@dataclass(frozen=True, slots=True)
class _Plain:
    """An engine that allocates as sequences grow: nothing is refused before it is full."""

    name: str
    model: ModelProfile
    formats: Formats
    parallel: Parallel
    starts_whole: bool = False
    most_sequences: int = _MOST_SEQUENCES

    def bytes_for(self, *, context: int, batch: int) -> int:
        return rank_cache_bytes(self.model, self.formats, self.parallel, tokens=context, batch=batch)

    def reserved(self, *, context: int, batch: int) -> Reserved:
        held = rank_cache(self.model, self.formats, self.parallel, tokens=context, batch=batch)
        return _reserved(self.name, held.growing, held.state, cross_bytes=held.cross)

    def held(self, kv_bytes: int, *, max_model_len: int) -> Held:
        one = self.bytes_for(context=max_model_len, batch=1)
        concurrency = kv_bytes / one if one else float("inf")
        tokens = int(concurrency * max_model_len) if one else 0
        return Held(
            tokens=tokens,
            concurrency=concurrency,
            num_blocks=None,
            block_size=None,
            starts=one <= kv_bytes,
            needed_bytes=one,
        )


@dataclass(frozen=True, slots=True)
class _Static(_Plain):
    """A cache allocated at its full length for every sequence, however short it is."""

    length: int = 1

    def bytes_for(self, *, context: int, batch: int) -> int:
        return _Plain.bytes_for(self, context=max(context, self.length), batch=batch)

    def reserved(self, *, context: int, batch: int) -> Reserved:
        return _Plain.reserved(self, context=max(context, self.length), batch=batch)


@dataclass(frozen=True, slots=True)
class _Paged:
    """VLLM: blocks drawn from one pool."""

    name: str
    layouts: Callable[[int], tuple[Layout, ...]]
    parallel: Parallel
    version: str
    most_sequences: int
    starts_whole: bool = True

    def bytes_for(self, *, context: int, batch: int) -> int:
        sequences = ceil_div(batch, self.parallel.data)
        # one block is the null block
        return max((sequences * layout.needed_blocks + 1) * layout.bytes_per_block for layout in self.layouts(context))

    def reserved(self, *, context: int, batch: int) -> Reserved:
        sequences = ceil_div(batch, self.parallel.data)
        layout = max(self.layouts(context), key=lambda one: one.needed_bytes)
        blocks = {False: 0, True: 0}
        for group in layout.groups:
            blocks[group.kind == "state"] += sequences * group.needed_blocks
        return _reserved(self.name, blocks[False] * layout.bytes_per_block, blocks[True] * layout.bytes_per_block)

    def held(self, kv_bytes: int, *, max_model_len: int) -> Held:
        layouts = self.layouts(max_model_len)
        needed = max(layout.start_bytes for layout in layouts)
        # the stage with the largest blocks has the fewest, and decides for all
        fullest = max(layouts, key=lambda layout: layout.bytes_per_block)
        found = vllm.capacity(fullest, kv_memory_bytes=kv_bytes, version=self.version)
        return Held(
            tokens=found.kv_tokens,
            concurrency=found.max_concurrency,
            num_blocks=found.num_blocks,
            block_size=fullest.block_size,
            starts=needed <= kv_bytes,
            needed_bytes=needed,
        )


@dataclass(frozen=True, slots=True)
class _Tokens:
    """SGLang: one pool of tokens for all layers of a rank, in pages."""

    name: str
    stages: tuple[sglang.TokenBytes, ...]
    parallel: Parallel
    page_size: int
    starts_whole: bool = False
    most_sequences: int = _MOST_SEQUENCES

    def _rows(self, context: int, batch: int) -> int:
        sequences = ceil_div(batch, self.parallel.data)
        return sequences * ceil_div(context, self.page_size) * self.page_size

    @property
    def _fullest(self) -> sglang.TokenBytes:
        return max(self.stages, key=lambda stage: stage.total)

    def bytes_for(self, *, context: int, batch: int) -> int:
        return self._rows(context, batch) * self._fullest.total

    def reserved(self, *, context: int, batch: int) -> Reserved:
        return _reserved(self.name, self.bytes_for(context=context, batch=batch), 0)

    def held(self, kv_bytes: int, *, max_model_len: int) -> Held:
        tokens = sglang.max_total_tokens(self._fullest, memory_bytes=kv_bytes, page_size=self.page_size)
        one = self.bytes_for(context=max_model_len, batch=1)
        return Held(
            tokens=tokens,
            concurrency=tokens / max_model_len,
            num_blocks=tokens // self.page_size if self.page_size > 1 else None,
            block_size=self.page_size if self.page_size > 1 else None,
            starts=one <= kv_bytes,
            needed_bytes=one,
        )


@dataclass(frozen=True, slots=True)
class _Preallocated:
    """llama.cpp: every cell is allocated when the context is made, for ``slots`` sequences of ``length`` tokens."""

    name: str
    model: ModelProfile
    options: llama_cpp.LlamaCppOptions
    length: int | None

    @property
    def starts_whole(self) -> bool:
        return self.length is not None

    @property
    def most_sequences(self) -> int:
        return self.options.parallel if self.options.parallel > 1 else llama_cpp.MOST_SEQUENCES

    def bytes_for(self, *, context: int, batch: int) -> int:
        slots = max(batch, self.options.parallel)
        asked = replace(self.options, context=max(context, self.length or 0) * slots, parallel=slots)
        return llama_cpp.layout(self.model, asked).total_bytes

    def reserved(self, *, context: int, batch: int) -> Reserved:
        """Reserve as the tools do: ``context`` is that of all ``--parallel`` sequences, or of each of a batch."""
        alone = self.options.parallel > 1 or batch == 1
        longest = max(context, self.length or 0)
        asked = replace(
            self.options,
            context=longest if alone else longest * batch,
            parallel=self.options.parallel if alone else batch,
        )
        memory = llama_cpp.layout(self.model, asked)
        return _reserved(self.name, memory.kv_bytes, memory.state_bytes)

    def held(self, kv_bytes: int, *, max_model_len: int) -> Held:
        one = self.bytes_for(context=max_model_len, batch=1)
        most = 0
        while most < self.most_sequences and self.bytes_for(context=max_model_len, batch=most + 1) <= kv_bytes:
            most += 1
        return Held(
            tokens=most * max_model_len,
            concurrency=float(most),
            num_blocks=None,
            block_size=None,
            starts=one <= kv_bytes,
            needed_bytes=one,
        )


def _reserved(engine: str, kv_bytes: int, state_bytes: int, *, cross_bytes: int = 0) -> Reserved:
    total = kv_bytes + state_bytes + cross_bytes
    return Reserved(engine=engine, kv_bytes=kv_bytes, state_bytes=state_bytes, total_bytes=total)


def _most_sequences(options: EngineOptions, parallel: Parallel) -> int:
    return _MOST_SEQUENCES if options.max_num_seqs is None else options.max_num_seqs * parallel.data


def _check_caches(engine: str, formats: Formats, known: tuple[str, ...]) -> None:
    for found in (formats.key.name, formats.value.name):
        if found not in known:
            raise InputError(f"{engine} keeps no cache in {found}", hint=f"its formats are {', '.join(known)}")


def _check_split(model: ModelProfile, parallel: Parallel) -> None:
    if not splits_evenly(model, parallel.tensor):
        raise InputError(
            f"the heads of {model.name} are not shared evenly by {parallel.tensor} tensor-parallel ranks",
            hint="engines refuse such a size; take one that divides them, or pipeline stages",
        )


def check_vllm(model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions) -> None:
    """Check that vLLM starts with a cache format, parallel size and block size.

    Raises:
        InputError: it does not.
    """
    _check_caches("vLLM", formats, _VLLM_CACHES)
    _check_split(model, parallel)
    if options.platform == "gpu" and (options.block_size or _VLLM_GPU_BLOCK) % _VLLM_GPU_BLOCK:
        raise InputError(f"vLLM's blocks on a GPU are multiples of {_VLLM_GPU_BLOCK} tokens, not {options.block_size}")


def _vllm(model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions) -> Pool:
    check_vllm(model, formats, parallel, options)

    @lru_cache(maxsize=_MOST_LAYOUTS)
    def layouts(max_model_len: int) -> tuple[Layout, ...]:
        asked = vllm.VllmOptions(
            max_model_len=max_model_len,
            block_size=options.block_size,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_in_flight_batches=options.max_in_flight_batches,
            prefix_caching=options.prefix_caching,
            platform=options.platform,
        )
        return vllm.stage_layouts(model, formats, asked, tensor=parallel.tensor, pipeline=parallel.pipeline)

    version = options.version or vllm.VERSION
    return _Paged(
        name=f"vllm {version}",
        layouts=layouts,
        parallel=parallel,
        version=version,
        most_sequences=_most_sequences(options, parallel),
    )


def _llama_cpp(model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions) -> Pool:
    del formats
    if parallel.gpus > 1:
        raise UnsupportedError(
            "llama.cpp on several GPUs is not modelled: its split depends on what each of them has free",
            hint="ask for one GPU, or use --engine vllm",
        )
    asked = llama_cpp.LlamaCppOptions(
        parallel=options.parallel,
        kv_unified=options.kv_unified,
        cache_type_k=options.cache_type_k,
        cache_type_v=options.cache_type_v,
        swa_full=options.swa_full,
        ubatch=options.ubatch,
        flash_attn=options.flash_attn,
    )
    return _Preallocated(
        name=f"llama.cpp {llama_cpp.VERSION}", model=model, options=asked, length=options.max_model_len
    )


def _transformers(model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions) -> Pool:
    _check_split(model, parallel)
    version = options.version or transformers.VERSION
    if options.max_model_len is None:
        return _Plain(f"transformers {version}", transformers.as_cached(model, version), formats, parallel)
    static = transformers.decompressed(model, version)
    return _Static(
        f"transformers {version}, StaticCache",
        static,
        formats,
        parallel,
        starts_whole=True,
        length=options.max_model_len,
    )


def _sglang(model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions) -> Pool:
    _check_caches("SGLang", formats, _SGLANG_CACHES)
    _check_split(model, parallel)
    stages = tuple(
        sglang.token_bytes(replace(model, blocks=blocks), formats, tensor=parallel.tensor)
        for blocks in stage_blocks(model, parallel.pipeline)
    )
    return _Tokens(
        f"sglang {sglang.VERSIONS}",
        stages,
        parallel,
        options.block_size or 1,
        most_sequences=_most_sequences(options, parallel),
    )


def _ideal(model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions) -> Pool:
    del options
    return _Plain("ideal", model, formats, parallel)


ENGINES: dict[str, Callable[..., Pool]] = {
    "ideal": _ideal,
    "vllm": _vllm,
    "llama.cpp": _llama_cpp,
    "sglang": _sglang,
    "transformers": _transformers,
}


def pool(engine: str, model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions) -> Pool:
    """Return an engine's cache for a model on an arrangement of GPUs.

    Raises:
        InputError: an engine whose memory is not modelled, or options it refuses.
        UnsupportedError: a model or arrangement that its memory model does not describe.
    """
    if engine not in ENGINES:
        hint = did_you_mean(engine, ENGINES) or f"engines: {', '.join(ENGINES)}"
        raise InputError(f"the memory of engine {engine!r} is not modelled", hint=hint)
    return _pool(engine, Same(model), Same(formats), parallel, options)


@lru_cache(maxsize=_MOST_POOLS)
def _pool(
    engine: str, model: Same[ModelProfile], formats: Same[Formats], parallel: Parallel, options: EngineOptions
) -> Pool:
    return ENGINES[engine](model.it, formats.it, parallel, options)
