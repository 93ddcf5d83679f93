"""SGLang's pools in the memory that weights leave: tokens, tokens of windows, slots of states, and requests.

Slots of states are taken off first, by a ratio; what is left is divided by the bytes of a token. Windowed layers have a
pool of their own, by a ratio of the other's tokens. The buffers have one page more than the tokens, for padding. A
table of where each request's tokens lie is allocated beside the pools and counts to no budget.

Source: SGLang 0.5.23, ``mem_cache/kv_cache_configurator.py`` and ``model_executor/pool_configurator.py``.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.core.reports.fit import PoolBuffer
from kvcalc.core.search import largest
from kvcalc.core.units import GIB, ceil_div
from kvcalc.engines.sglang.compressed import CompressedLayers
from kvcalc.engines.sglang.layers import RankLayers

if TYPE_CHECKING:
    from kvcalc.engines.sglang.options import SglangOptions

__all__ = ["Need", "PoolSizes", "RankPools"]

_REQUESTS_AT_CONTEXT, _MIN_REQUESTS, _MAX_REQUESTS = 512, 2048, 4096
_MIN_TOKENS_OF_REQUEST = 2
# Tokens between evictions from the windows' pool, and bytes of an entry of the table of requests.
_EVICTION_TOKENS, _TABLE_ENTRY_BYTES, _TABLE_TOKENS = 128, 4, 4
_KEPT_SIZES = 64
# Where the search for the least memory stops.
_MAX_BYTES = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Need of a batch in the pools of one copy: tokens, tokens of windows, and requests."""

    tokens: int
    window_tokens: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes:
    """Parts of a memory, of one data-parallel copy.

    Args:
        tokens: ``max_total_num_tokens``.
        window_tokens: of the windowed layers' pool; none without one.
        state_slots: slots of recurrent states; none without such layers.
        requests: ``max_running_requests``.
        refusal: why the engine does not start with that memory; empty where it does.
    """

    tokens: int = 0
    window_tokens: int | None = None
    state_slots: int | None = None
    requests: int = 0
    refusal: str = ""

    def hold(self, need: Need) -> bool:
        """Whether they hold a batch."""
        return (
            not self.refusal
            and need.tokens <= self.tokens
            and need.requests <= self.requests
            and (self.window_tokens is None or need.window_tokens <= self.window_tokens)
        )


@dataclass(frozen=True)
class RankPools:
    """The pools of one rank of each pipeline stage.

    Args:
        stages: the layers of each stage.
        options: what decides the pools.
    """

    stages: tuple[RankLayers | CompressedLayers, ...]
    options: SglangOptions
    _kept: dict[int, PoolSizes] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes of a slot of states on the stage with the most of them; 0 without."""
        slots = [stage.slot.total for stage in self.stages if isinstance(stage, RankLayers) and stage.slot is not None]
        return max(slots, default=0)

    @cached_property
    def _intermediate_bytes(self) -> int:
        """Bytes that the states of a request's drafted tokens are priced at."""
        return self.slot_bytes * self.options.draft_tokens

    @cached_property
    def _cells(self) -> tuple[tuple[float, float], ...]:
        """Bytes of a token of the pool and of one of the windows' pool, with the draft's, of each stage."""
        return tuple(_cell(stage, self.options) for stage in self.stages)

    @property
    def notes(self) -> tuple[str, ...]:
        """Limits that an option lifts for nothing: the tokens of a model that keeps states alone."""
        if any(full for full, _ in self._cells) or self.options.max_total_tokens is not None:
            return ()
        return (
            f"its pool is of {self.options.context_length:,} tokens, which cost nothing: --max-total-tokens takes more",
        )

    def need(self, *, context: int, sequences: int) -> Need:
        """Return the need of sequences of that length: whole pages, and of the windows no more than is kept for one."""
        page = self.options.page_size
        tokens = ceil_div(context, page) * page
        window = min(tokens, ceil_div(self._window_tokens_of_request(), page) * page)
        return Need(tokens=sequences * tokens, window_tokens=sequences * window, requests=sequences)

    def batch_bytes(self, need: Need) -> tuple[int, int]:
        """Return the bytes that a batch takes of the pools of the fullest stage: for tokens, and for states."""
        tokens = max(need.tokens * full + need.window_tokens * window for full, window in self._cells)
        scores = (
            stage.fixed_bytes(need.requests, self.options)
            for stage in self.stages
            if isinstance(stage, CompressedLayers)
        )
        states = need.requests * self.options.slots_per_request * self.slot_bytes
        return int(tokens), states + max(scores, default=0)

    def _window_tokens_of_request(self) -> int:
        """Tokens that a running request keeps in the windows' pool at most: up to the next eviction, in whole pages.

        Source: SGLang 0.5.23, ``compute_swa_request_cap``.
        """
        options = self.options
        drafted = options.draft_tokens
        window = max((stage.window for stage in self.stages), default=0)
        ahead = 2 * drafted if drafted else options.page_size
        return window + _EVICTION_TOKENS * max(1, drafted) + options.page_size + ahead

    def sizes(self, memory_bytes: int) -> PoolSizes:
        """Divide a memory into its pools."""
        if memory_bytes not in self._kept:
            if len(self._kept) >= _KEPT_SIZES:
                self._kept.clear()
            self._kept[memory_bytes] = self._sizes(memory_bytes)
        return self._kept[memory_bytes]

    def _sizes(self, memory_bytes: int) -> PoolSizes:
        options = self.options
        slots = self._slots(memory_bytes) if self.slot_bytes else None
        if slots is not None and slots <= 0:
            return PoolSizes(state_slots=0, refusal="the share of recurrent states does not hold one slot")
        left = memory_bytes if slots is None else memory_bytes - self._state_bytes(slots)
        if left <= 0:
            what = "weights" if slots is None else f"{slots:,} slots of recurrent states"
            return PoolSizes(state_slots=slots, refusal=f"{what} leave no memory for tokens")
        sized = min(
            (self._tokens(stage_index, left) for stage_index in range(len(self.stages))), key=lambda each: each.tokens
        )
        if sized.refusal:
            return sized
        requests = self._requests(sized.tokens, slots)
        if requests <= 0:
            return PoolSizes(
                state_slots=slots,
                refusal=f"{slots:,} slots of recurrent states, {options.slots_per_request} a request, hold no request"
                if slots is not None
                else f"{sized.tokens} tokens hold no request",
            )
        return PoolSizes(tokens=sized.tokens, window_tokens=sized.window_tokens, state_slots=slots, requests=requests)

    def _slots(self, memory_bytes: int) -> int:
        """Slots of states: as asked for, one for each request without a radix cache, or a share of the memory.

        Source: SGLang 0.5.23, ``KVCacheConfigurator._handle_max_mamba_cache``.
        """
        options = self.options
        if options.max_state_slots is not None:
            return options.max_state_slots
        if not options.radix_cache and options.max_requests is not None:
            return options.max_requests
        slot, drafted = self.slot_bytes, options.draft_tokens
        share = memory_bytes * options.state_ratio / (1 + options.state_ratio)
        return int((share - slot * (1 + drafted)) // (slot * (1 + drafted / options.slots_per_request)))

    def _state_bytes(self, slots: int) -> int:
        """Bytes of the slots, one of padding, and of the states of drafted tokens for the requests they are for."""
        options = self.options
        taken = (slots + 1) * self.slot_bytes
        if not options.draft_tokens:
            return taken
        requests = slots // options.slots_per_request
        requests = min(requests, options.max_requests or requests)
        return taken + self._intermediate_bytes * (requests + 1)

    def _tokens(self, stage_index: int, memory_bytes: int) -> PoolSizes:
        """Return tokens, and those of windows, that one stage's memory holds; the user's cap included."""
        stage, options = self.stages[stage_index], self.options
        full, window = self._cells[stage_index]
        if isinstance(stage, CompressedLayers):
            left = max(memory_bytes - stage.fixed_bytes(options.max_requests or 0, options), 0)
            return self._with_windows(int(left / (options.window_ratio * window + full)))
        if not stage.windows:
            if not full:  # states alone: tokens cost nothing
                return self._uniform(options.max_total_tokens or options.context_length)
            return self._capped(int(memory_bytes // full))
        if not stage.full:
            return self._capped(int(memory_bytes // window), alone=True)
        if options.caps_windows:
            return self._beside_capped_windows(stage_index, memory_bytes)
        return self._with_windows(int(memory_bytes // (full + options.window_ratio * window)))

    def _uniform(self, tokens: int, *, alone: bool = False) -> PoolSizes:
        page = self.options.page_size
        whole = tokens // page * page
        if whole <= 0:
            return PoolSizes(refusal="the memory does not hold one page of tokens")
        return PoolSizes(tokens=whole, window_tokens=whole if alone else None)

    def _capped(self, tokens: int, *, alone: bool = False) -> PoolSizes:
        return self._uniform(min(tokens, self.options.max_total_tokens or tokens), alone=alone)

    def _with_windows(self, tokens: int) -> PoolSizes:
        options, page = self.options, self.options.page_size
        whole = tokens // page * page
        if options.max_total_tokens is not None:
            whole = min(whole, options.max_total_tokens) // page * page
        inside = int(whole * options.window_ratio) // page * page
        window = max(stage.window for stage in self.stages)
        if inside <= window + page:
            return PoolSizes(
                refusal=f"{inside:,} tokens in the pool for windows do not hold one request: "
                f"a window of {window:,} and a page of {page:,}"
            )
        return PoolSizes(tokens=whole, window_tokens=inside)

    def _beside_capped_windows(self, stage_index: int, memory_bytes: int) -> PoolSizes:
        """Return the tokens beside a pool for the windows of all requests asked for: no prefix is kept in it.

        Source: SGLang 0.5.23, ``SWARequestCapPoolConfigurator``.
        """
        options, page = self.options, self.options.page_size
        full, window = self._cells[stage_index]
        chunks = (2 if options.overlap else 1) * (options.chunk_tokens or 0)
        cap = self._window_tokens_of_request() * (options.max_requests or 1) + chunks + page
        inside = ceil_div(cap, page) * page
        tokens = int((memory_bytes - inside * window) // full) // page * page
        if tokens <= 0:
            return PoolSizes(
                refusal=f"the pool for the windows of {options.max_requests:,} requests takes {inside:,} tokens, "
                f"{inside * window / GIB:.2f} GiB, and leaves no memory for tokens"
            )
        if options.max_total_tokens is not None and options.max_total_tokens < tokens:
            tokens, inside = options.max_total_tokens // page * page, min(inside, options.max_total_tokens)
        return PoolSizes(tokens=tokens, window_tokens=inside)

    def _requests(self, tokens: int, slots: int | None) -> int:
        """Return the most running requests.

        Source: SGLang 0.5.23, ``KVCacheConfigurator.resolve_max_num_reqs``.
        """
        options = self.options
        usual = max(min(int(tokens / options.context_length * _REQUESTS_AT_CONTEXT), _MAX_REQUESTS), _MIN_REQUESTS)
        max_requests = min(options.max_requests or usual, tokens // _MIN_TOKENS_OF_REQUEST)
        return max_requests if slots is None else min(max_requests, slots // options.slots_per_request)

    def buffers(self, sizes: PoolSizes) -> tuple[PoolBuffer, ...]:
        """Return the buffers of the fullest stage, the draft's own left out."""
        if sizes.refusal:
            return ()
        return max((self._stage_buffers(stage, sizes) for stage in self.stages), key=_total)

    def _stage_buffers(self, stage: RankLayers | CompressedLayers, sizes: PoolSizes) -> tuple[PoolBuffer, ...]:
        options, page = self.options, self.options.page_size
        inside = sizes.window_tokens or 0
        if isinstance(stage, CompressedLayers):
            named = stage.buffers(tokens=sizes.tokens, window_tokens=inside, requests=sizes.requests, options=options)
            return tuple(PoolBuffer(name=name, bytes=taken) for name, taken in named)
        buffers = [PoolBuffer(name=each.name, bytes=(sizes.tokens + page) * each.token_bytes) for each in stage.full]
        buffers += [PoolBuffer(name=each.name, bytes=(inside + page) * each.token_bytes) for each in stage.windows]
        slot = stage.slot
        if slot is None:
            return tuple(buffers)
        slots = (sizes.state_slots or 0) + 1
        buffers += [PoolBuffer(name="mamba_cache.conv", bytes=slots * taken) for taken in slot.conv_bytes]
        if slot.recurrent_bytes:
            buffers.append(PoolBuffer(name="mamba_cache.temporal", bytes=slots * slot.recurrent_bytes))
        if options.draft_tokens:
            requests = sizes.requests + 1
            drafted = requests * options.draft_tokens * slot.recurrent_bytes
            windows = requests * slot.drafted_window_bytes(options.draft_tokens)
            buffers += [
                PoolBuffer(name="mamba_cache.intermediate_ssm", bytes=drafted),
                PoolBuffer(name="mamba_cache.intermediate_conv_window", bytes=windows),
            ]
        return tuple(buffers)

    def table_bytes(self, sizes: PoolSizes) -> int:
        """Return the bytes of the table of requests, which no budget counts.

        Source: SGLang 0.5.23, ``ReqToTokenPool``.
        """
        options = self.options
        ahead = options.draft_tokens + options.page_size - 1 if options.draft_tokens else 0
        return (sizes.requests + 1) * (options.context_length + _TABLE_TOKENS + ahead) * _TABLE_ENTRY_BYTES

    def least_memory(self, need: Need) -> int:
        """Return the least memory with which they hold a batch, of more requests than are ever run those that are."""
        max_requests = self.options.max_requests or _MAX_REQUESTS
        asked = replace(need, requests=min(need.requests, max_requests))
        return largest(lambda memory: not self._sizes(memory).hold(asked), _MAX_BYTES) + 1


def _total(buffers: tuple[PoolBuffer, ...]) -> int:
    return sum(buffer.bytes for buffer in buffers)


@lru_cache(maxsize=256)
def _cell(stage: RankLayers | CompressedLayers, options: SglangOptions) -> tuple[float, float]:
    """Return the bytes of a token of the pool and of one of the windows' pool, layers that draft priced as the model's.

    Source: SGLang 0.5.23, ``DefaultPoolConfigurator.__init__`` and ``HybridSWAPoolConfigurator``.
    """
    if isinstance(stage, CompressedLayers):
        return stage.token_bytes(options)
    full, window = stage.full_bytes, stage.window_bytes
    drafting, drafting_windows = options.draft_layers
    if stage.windows:
        own = full // stage.layers if stage.layers else 0
        return full + own * drafting, window + window // max(1, stage.window_layers) * drafting_windows
    if drafting and stage.layers:
        index = next((each.token_bytes for each in stage.full if "index_key" in each.name), 0)
        full += (full - index) * drafting // stage.layers + stage.index_bytes * drafting
    return full, window
