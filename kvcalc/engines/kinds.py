"""Kinds of caches: growing as it must, at full length, in blocks, in a pool of tokens, cell by cell beforehand."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from kvcalc.core.records import dataclass
from kvcalc.core.reports.size import Reserved
from kvcalc.core.search import largest
from kvcalc.core.units import ceil_div
from kvcalc.cost.sharding import rank_cache
from kvcalc.engines import llama_cpp, sglang, vllm

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.fit import PoolBuffer
    from kvcalc.core.workload import Formats, Parallel
    from kvcalc.cost.cache import CacheBytes
    from kvcalc.engines.drafts import Draft
    from kvcalc.engines.vllm import Layout

__all__ = [
    "MAX_SEQUENCES",
    "ByBytes",
    "CacheCapacity",
    "Paged",
    "Plain",
    "Pool",
    "Preallocated",
    "StartedPools",
    "Static",
    "TokenPools",
]

# No engine's limit: where the search for the largest batch stops.
MAX_SEQUENCES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedPools:
    """Pools that an engine makes when it starts, of one data-parallel copy.

    Args:
        window_tokens: tokens of the windowed layers' pool; none without one.
        state_slots: slots of recurrent states; none without such layers.
        requests: most running requests.
        buffers: the buffers of the fullest rank.
        table_bytes: the table of requests, which counts to no budget.
        refusal: why the engine does not start with that memory; empty where it does.
    """

    window_tokens: int | None
    state_slots: int | None
    requests: int
    buffers: tuple[PoolBuffer, ...]
    table_bytes: int
    refusal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCapacity:
    """Capacity of a cache memory, of one data-parallel copy, as engines print it.

    Args:
        tokens: as the engine counts or prints them.
        concurrency: sequences of the longest length.
        num_blocks: blocks, for engines that page.
        block_size: tokens of a block.
        starts: whether the engine starts with it.
        needed_bytes: bytes it needs to start.
        pools: the pools that it makes of them, for engines that make several.
    """

    tokens: int
    concurrency: float
    num_blocks: int | None
    block_size: int | None
    starts: bool
    needed_bytes: int
    pools: StartedPools | None = None


class Pool(Protocol):
    """An engine's cache, for one model on one arrangement of GPUs."""

    @property
    def name(self) -> str:
        """The engine and the version that is described."""

    @property
    def starts_whole(self) -> bool:
        """Whether it refuses to start unless one sequence of its longest length fits."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Options that it takes otherwise than they were given."""

    @property
    def most_sequences(self) -> int:
        """Sequences it takes at once, whatever the memory."""

    def bytes_for(self, *, context: int, batch: int) -> int:
        """Return the bytes that must be there on the fullest rank for a batch of sequences of that length."""

    def holds(self, kv_bytes: int, *, context: int, batch: int) -> bool:
        """Whether that memory on the fullest rank holds a batch of sequences of that length."""

    def reserved(self, *, context: int, batch: int) -> Reserved:
        """Return the bytes that the batch itself takes on the fullest rank, keys and values apart from states."""

    def held(self, kv_bytes: int, *, max_model_len: int) -> CacheCapacity:
        """Return the contents of that memory when the engine is started for sequences of that length."""


class ByBytes:
    """A cache that holds whatever needs no more bytes than there are."""

    __slots__ = ()

    @abstractmethod
    def bytes_for(self, *, context: int, batch: int) -> int:
        """See `Pool.bytes_for`."""

    def holds(self, kv_bytes: int, *, context: int, batch: int) -> bool:
        """See `Pool.holds`."""
        return self.bytes_for(context=context, batch=batch) <= kv_bytes


@dataclass(frozen=True, slots=True)
class Plain(ByBytes):
    """An engine that allocates as sequences grow: nothing is refused before it is full."""

    name: str
    model: ModelProfile
    formats: Formats
    parallel: Parallel
    draft: Draft | None = None
    starts_whole: bool = False
    most_sequences: int = MAX_SEQUENCES
    notes: tuple[str, ...] = ()

    def bytes_for(self, *, context: int, batch: int) -> int:
        """See `Pool.bytes_for`."""
        return self._needed(context, batch).total

    def _needed(self, context: int, batch: int) -> CacheBytes:
        """Return the bytes of a batch by kind, the draft's layers and a state for each drafted token among them."""
        own = rank_cache(self.model, self.formats, self.parallel, tokens=context, batch=batch)
        if self.draft is None:
            return own
        drafted = self.draft.cache(self.formats, self.parallel, tokens=context, batch=batch)
        kept = replace(own, state=own.state * (1 + self.draft.tokens))
        return kept if drafted is None else kept + drafted

    def reserved(self, *, context: int, batch: int) -> Reserved:
        """See `Pool.reserved`."""
        needed = self._needed(context, batch)
        return _reserved(self.name, needed.growing, needed.state, cross_bytes=needed.cross)

    def held(self, kv_bytes: int, *, max_model_len: int) -> CacheCapacity:
        """See `Pool.held`."""
        one = self.bytes_for(context=max_model_len, batch=1)
        concurrency = kv_bytes / one if one else float("inf")
        tokens = int(concurrency * max_model_len) if one else 0
        return CacheCapacity(
            tokens=tokens,
            concurrency=concurrency,
            num_blocks=None,
            block_size=None,
            starts=one <= kv_bytes,
            needed_bytes=one,
        )


@dataclass(frozen=True, slots=True)
class Static(Plain):
    """A cache allocated at its full length for every sequence, however short it is."""

    length: int = 1

    def bytes_for(self, *, context: int, batch: int) -> int:
        """See `Pool.bytes_for`."""
        return Plain.bytes_for(self, context=max(context, self.length), batch=batch)

    def reserved(self, *, context: int, batch: int) -> Reserved:
        """See `Pool.reserved`."""
        return Plain.reserved(self, context=max(context, self.length), batch=batch)


@dataclass(frozen=True, slots=True)
class Paged(ByBytes):
    """VLLM: blocks drawn from one pool."""

    name: str
    layouts: Callable[[int], tuple[Layout, ...]]
    parallel: Parallel
    needed: Callable[[int], int]
    version: str
    most_sequences: int
    starts_whole: bool = True
    notes: tuple[str, ...] = ()

    def bytes_for(self, *, context: int, batch: int) -> int:
        """See `Pool.bytes_for`."""
        sequences = ceil_div(batch, self.parallel.data)
        # one block is the null block
        needed = max(
            (sequences * layout.needed_blocks + 1) * layout.bytes_per_block for layout in self.layouts(context)
        )
        return max(needed, self.needed(context)) if vllm.checks_all_layers(self.version) else needed

    def reserved(self, *, context: int, batch: int) -> Reserved:
        """See `Pool.reserved`."""
        sequences = ceil_div(batch, self.parallel.data)
        layout = max(self.layouts(context), key=lambda one: one.needed_bytes)
        blocks = {False: 0, True: 0}
        for group in layout.groups:
            blocks[group.kind == "state"] += sequences * group.needed_blocks
        return _reserved(self.name, blocks[False] * layout.bytes_per_block, blocks[True] * layout.bytes_per_block)

    def held(self, kv_bytes: int, *, max_model_len: int) -> CacheCapacity:
        """See `Pool.held`."""
        layouts = self.layouts(max_model_len)
        needed = self.needed(max_model_len)
        # the stage with the largest blocks has the fewest, and decides for all
        fullest = max(layouts, key=lambda layout: layout.bytes_per_block)
        capacity = vllm.capacity(fullest, kv_memory_bytes=kv_bytes, version=self.version)
        return CacheCapacity(
            tokens=capacity.kv_tokens,
            concurrency=capacity.max_concurrency,
            num_blocks=capacity.num_blocks,
            block_size=fullest.block_size,
            starts=needed <= kv_bytes,
            needed_bytes=needed,
        )


@dataclass(frozen=True, slots=True)
class TokenPools:
    """SGLang: pools of tokens, of windows and of states, sized from the memory before any request comes."""

    name: str
    pools: sglang.RankPools
    parallel: Parallel
    starts_whole: bool = False
    most_sequences: int = MAX_SEQUENCES
    notes: tuple[str, ...] = ()

    def _need(self, context: int, batch: int) -> sglang.Need:
        return self.pools.need(context=context, sequences=ceil_div(batch, self.parallel.data))

    def bytes_for(self, *, context: int, batch: int) -> int:
        """See `Pool.bytes_for`."""
        return self.pools.least_memory(self._need(context, batch))

    def holds(self, kv_bytes: int, *, context: int, batch: int) -> bool:
        """See `Pool.holds`."""
        return self.pools.sizes(kv_bytes).hold(self._need(context, batch))

    def reserved(self, *, context: int, batch: int) -> Reserved:
        """See `Pool.reserved`."""
        tokens, states = self.pools.batch_bytes(self._need(context, batch))
        return _reserved(self.name, tokens, states)

    def held(self, kv_bytes: int, *, max_model_len: int) -> CacheCapacity:
        """See `Pool.held`."""
        sizes, page = self.pools.sizes(kv_bytes), self.pools.options.page_size
        one = self.pools.need(context=max_model_len, sequences=1)
        shares = [sizes.tokens / max_model_len, float(sizes.requests)]
        if sizes.window_tokens is not None:
            shares.append(sizes.window_tokens / one.window_tokens)
        return CacheCapacity(
            tokens=sizes.tokens,
            concurrency=min(shares),
            num_blocks=sizes.tokens // page if page > 1 else None,
            block_size=page if page > 1 else None,
            starts=sizes.hold(one),
            needed_bytes=self.pools.least_memory(one),
            pools=StartedPools(
                window_tokens=sizes.window_tokens,
                state_slots=sizes.state_slots,
                requests=sizes.requests,
                buffers=self.pools.buffers(sizes),
                table_bytes=self.pools.table_bytes(sizes),
                refusal=sizes.refusal,
            ),
        )


@dataclass(frozen=True, slots=True)
class Preallocated(ByBytes):
    """llama.cpp: every cell is allocated when the context is made, for ``slots`` sequences of ``length`` tokens."""

    name: str
    model: ModelProfile
    options: llama_cpp.LlamaCppOptions
    length: int | None
    draft: ModelProfile | None = None
    notes: tuple[str, ...] = ()

    @property
    def starts_whole(self) -> bool:
        """Whether a length was asked for."""
        return self.length is not None

    @property
    def most_sequences(self) -> int:
        """Slots, or as many as llama.cpp has."""
        return self.options.parallel if self.options.parallel > 1 else llama_cpp.MAX_SEQUENCES

    def bytes_for(self, *, context: int, batch: int) -> int:
        """See `Pool.bytes_for`."""
        slots = max(batch, self.options.parallel)
        cells = max(context, self.length or 0) * slots
        if self.options.kv_unified:  # sequences that are not there leave their cells to the others
            cells = max(context * batch, (self.length or 0) * slots)
        asked = replace(self.options, context=cells, parallel=slots)
        return sum(memory.total_bytes for memory in self._contexts(asked))

    def _contexts(self, asked: llama_cpp.LlamaCppOptions) -> tuple[llama_cpp.LlamaCppMemory, ...]:
        """Return the memory of the model's context and of the draft's, which is as long and keeps 16-bit entries."""
        own = llama_cpp.layout(self.model, asked)
        if self.draft is None:
            return (own,)
        beside = replace(asked, cache_type_k="f16", cache_type_v="f16", rollback_tokens=0)
        return own, llama_cpp.layout(self.draft, beside)

    def reserved(self, *, context: int, batch: int) -> Reserved:
        """Reserve as the tools do: ``context`` is that of all ``--parallel`` sequences, or of each of a batch."""
        alone = self.options.parallel > 1 or batch == 1
        # a length of each sequence takes as many times the cells
        together = max(context, (self.length or 0) * self.options.parallel)
        asked = replace(
            self.options,
            context=together if alone else together * batch,
            parallel=self.options.parallel if alone else batch,
        )
        contexts = self._contexts(asked)
        return _reserved(
            self.name, sum(memory.kv_bytes for memory in contexts), sum(memory.state_bytes for memory in contexts)
        )

    def held(self, kv_bytes: int, *, max_model_len: int) -> CacheCapacity:
        """See `Pool.held`."""
        one = self.bytes_for(context=max_model_len, batch=1)
        max_tokens = largest(
            lambda batch: self.bytes_for(context=max_model_len, batch=batch) <= kv_bytes, self.most_sequences
        )
        return CacheCapacity(
            tokens=max_tokens * max_model_len,
            concurrency=float(max_tokens),
            num_blocks=None,
            block_size=None,
            starts=one <= kv_bytes,
            needed_bytes=one,
        )


def _reserved(engine: str, kv_bytes: int, state_bytes: int, *, cross_bytes: int = 0) -> Reserved:
    total = kv_bytes + state_bytes + cross_bytes
    return Reserved(engine=engine, kv_bytes=kv_bytes, state_bytes=state_bytes, total_bytes=total)
