"""The memory of the fullest GPU under one engine's start: its budget, and what its cache holds.

`fit`, `decode`, `compare`, `solve` and every other question that says "fits" ask here, so that they agree.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.identity import ById
from kvcalc.core.records import dataclass
from kvcalc.core.reports.fit import Budget
from kvcalc.core.search import largest
from kvcalc.core.units import bytes_text, counted
from kvcalc.engines.budget import Interval, engine_budget
from kvcalc.plan.loaded import as_loaded, loaded_weights
from kvcalc.plan.rank_memory import draft_weights, memory_needed

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.engines.options import EngineOptions
    from kvcalc.engines.pools import CacheCapacity, Pool
    from kvcalc.engines.start import EngineStart
    from kvcalc.plan.deployment import Deployment

__all__ = [
    "NO_TERMS",
    "BudgetTerms",
    "Room",
    "assumed_capacity",
    "assumed_text",
    "budget",
    "fit_reason",
    "largest_batch",
    "longest_context",
    "room",
    "unmodelled_notes",
]

# A default is told where the engine's other value would move the capacity by more than this share.
_TOLD_SHARE = 0.02
_MAX_KEPT = 512
# Engines that refuse lengths beyond the model's, and the variable that lets them.
_LONGER_ALLOWED = {"vllm": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "sglang": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetTerms:
    """Terms of the budget that a user knows better.

    Args:
        kv_bytes: memory for the cache on each GPU; skips the budget.
        activation_bytes: peak of activations.
        overhead_bytes: context, buffers and graphs.
    """

    kv_bytes: int | None = None
    activation_bytes: int | None = None
    overhead_bytes: int | None = None


NO_TERMS = BudgetTerms()


@dataclass(frozen=True, kw_only=True)
class Room:
    """One arrangement started for a longest sequence, its budget and what its cache holds.

    Args:
        start: the engine's start.
        budget: the memory of the fullest GPU, term by term; none where the cache's memory was given.
        kv_bytes: bytes for the cache on each GPU.
        max_model_len: longest sequence it is started for.
    """

    start: EngineStart
    budget: Budget | None
    kv_bytes: int
    max_model_len: int

    @property
    def pool(self) -> Pool:
        """The engine's cache."""
        return self.start.pool

    @cached_property
    def held(self) -> CacheCapacity:
        """Capacity of the cache."""
        return self.pool.held(max(0, self.kv_bytes), max_model_len=self.max_model_len)

    @property
    def max_sequences(self) -> int:
        """Sequences it takes at once, whatever the memory; vLLM's default for the card is a limit like any other."""
        pool_sequences, start = self.pool.most_sequences, self.start
        if start.engine == "vllm":
            return min(pool_sequences, start.pass_sequences * start.parallel.data)
        pools = self.held.pools
        return pool_sequences if pools is None else min(pool_sequences, pools.requests * start.parallel.data)

    @property
    def refusal(self) -> str:
        """Why the engine refuses the length before it looks at memory; empty where it does not.

        Source: vLLM 0.32, ``_get_and_verify_max_len``; SGLang 0.5.23, ``ModelConfig._derive_context_length``.
        """
        limit, allowed = self.start.context_limit, _LONGER_ALLOWED.get(self.start.engine)
        if limit is None or allowed is None or self.max_model_len <= limit:
            return ""
        return f"max-model-len {self.max_model_len:,} is beyond the model's {limit:,}: refused without {allowed}=1"

    @property
    def refused(self) -> bool:
        """Whether the engine refuses the length, or its pools with so much memory."""
        return bool(self.refusal or self._pools_refusal)

    @property
    def concurrency(self) -> float:
        """Longest sequences that its cache has room for; none where the engine refuses to start."""
        return 0.0 if self.refused else self.held.concurrency

    @property
    def starts(self) -> bool:
        """Whether the engine starts: some want room for one sequence of the longest length."""
        if self.kv_bytes <= 0 or self.refused:
            return False
        return not self.pool.starts_whole or self.held.starts

    @property
    def _pools_refusal(self) -> str:
        """Why the engine does not start with so much memory for its pools, or beside them; empty where it does."""
        pools, budget = self.held.pools, self.budget
        if pools is None or pools.refusal:
            return "" if pools is None else pools.refusal
        if budget is None or pools.table_bytes <= budget.outside_bytes:
            return ""
        return (
            f"the table of {counted(pools.requests, 'request')} takes {bytes_text(pools.table_bytes)}, and "
            f"{bytes_text(budget.outside_bytes)} are left outside of the share: fewer requests or a shorter context do"
        )

    def holds(self, *, context: int, batch: int, beside_bytes: int = 0) -> bool:
        """Whether the cache holds a batch beside other bytes; the engine's start is another question."""
        if batch > self.max_sequences:
            return False
        return self.pool.holds(self.kv_bytes - beside_bytes, context=context, batch=batch)

    def max_batch(self, context: int) -> int:
        """Return the sequences of that length it holds at once; none if it does not start."""
        return largest(lambda size: self.holds(context=context, batch=size), self.max_sequences) * self.starts

    def reason(self, *, context: int, batch: int, beside_bytes: int = 0) -> str:
        """Say why a batch does not fit; nothing where it does."""
        if self.kv_bytes <= 0:
            return "weights and overhead leave nothing for the cache"
        if self.refusal or self._pools_refusal:
            return self.refusal or self._pools_refusal
        if not self.starts:
            return f"the cache does not hold one sequence of max-model-len {self.max_model_len:,}"
        if batch > self.max_sequences:
            slots = None if self.held.pools is None else self.held.pools.state_slots
            states = "" if slots is None else f": it has {counted(slots, 'slot')} of recurrent states"
            return f"the engine takes at most {counted(self.max_sequences, 'sequence')} at once{states}"
        if not self.holds(context=context, batch=batch, beside_bytes=beside_bytes):
            return f"the cache does not hold {counted(batch, 'sequence')} of {counted(context, 'token')}"
        return ""


def room(deployment: Deployment, *, max_model_len: int, terms: BudgetTerms = NO_TERMS) -> Room:
    """Return the memory of a deployment whose engine is started for a longest sequence, unless its options say another.

    Args:
        deployment: model, accelerator, formats, parallel sizes and engine.
        max_model_len: longest sequence where the options name none.
        terms: terms of the budget that are given instead of computed.

    Raises:
        InputError: neither an accelerator nor a memory for the cache, or options that the engine refuses.
        UnsupportedError: a model or arrangement that the engine's memory model does not describe.
    """
    start = deployment.start(max_model_len=max_model_len)
    computed = None if terms.kv_bytes is not None else budget(deployment, start, terms)
    kv_bytes = computed.kv_bytes_available if computed is not None else terms.kv_bytes or 0
    return Room(
        start=start,
        budget=computed,
        kv_bytes=kv_bytes,
        max_model_len=start.options.max_model_len or max_model_len,
    )


@lru_cache(maxsize=_MAX_KEPT)
def _room_for(deployment: ById[Deployment], context: int) -> Room:
    return room(deployment.value, max_model_len=context)


def fit_reason(deployment: Deployment, *, context: int, batch: int, beside_bytes: int = 0) -> str:
    """Say why a batch does not fit under the deployment's engine, started for that context; nothing where it does.

    Where the engine's memory is not modelled for the model, or no engine was asked for and the usual one would refuse,
    weights and cache alone are held against the memory.

    Args:
        deployment: model, accelerator, formats, parallel sizes and engine.
        context: tokens of each sequence.
        batch: sequences.
        beside_bytes: further bytes on the fullest GPU, such as a draft model's.
    """
    longest = deployment.options.max_model_len
    if longest is not None and context > longest:
        return f"context {context:,} is longer than max-model-len {longest:,}"
    try:
        return _room_for(ById(deployment), context).reason(context=context, batch=batch, beside_bytes=beside_bytes)
    except UnsupportedError:
        pass
    except InputError:
        if deployment.engine is not None:
            raise
    needed = memory_needed(deployment, tokens=context, batch=batch) + beside_bytes
    return "" if needed <= deployment.memory_bytes else "weights and cache alone are more than the memory"


def unmodelled_notes(deployment: Deployment, *, context: int) -> tuple[str, ...]:
    """Say that "fits" counts weights and cache alone, where the engine's memory is not modelled, and why."""
    try:
        _room_for(ById(deployment), context).reason(context=context, batch=1)
    except (InputError, UnsupportedError) as error:
        return (f"fit counts weights and KV cache only: {error.what}",)
    return ()


def largest_batch(deployment: Deployment, *, context: int, limit: int) -> int:
    """Return the largest batch up to a limit for which `fit_reason` says nothing; 0 where none fits."""
    return largest(lambda size: not fit_reason(deployment, context=context, batch=size), limit)


def longest_context(deployment: Deployment, *, batch: int, limit: int) -> int:
    """Return the longest context up to a limit for which `fit_reason` says nothing; 0 where none fits."""
    return largest(lambda tokens: not fit_reason(deployment, context=tokens, batch=batch), limit)


def assumed_text(start: EngineStart, figure: Callable[[EngineOptions], float]) -> str:
    """Say in one line which of an engine's defaults move a figure by more than 2 %; nothing where none does.

    Args:
        start: the engine's start.
        figure: the figure under some options.
    """
    here = figure(start.options)
    moved = [each.text for each in start.assumed if abs(figure(each.instead) - here) > _TOLD_SHARE * abs(here)]
    return f"assumed: {', '.join(moved)}" if moved else ""


def assumed_capacity(space: Room, deployment: Deployment, terms: BudgetTerms = NO_TERMS) -> str:
    """Name the engine's defaults that move the number of longest sequences that fit by more than 2 %."""

    def concurrency(options: EngineOptions) -> float:
        other = replace(deployment, options=options)
        return room(other, max_model_len=space.max_model_len, terms=terms).held.concurrency

    return assumed_text(space.start, concurrency)


def budget(deployment: Deployment, start: EngineStart, terms: BudgetTerms = NO_TERMS) -> Budget:
    """Return the memory of the fullest GPU, term by term.

    Raises:
        InputError: no accelerator, or an engine whose memory is not modelled.
    """
    hardware = deployment.hardware
    if hardware is None:
        raise InputError(
            "whether it fits depends on the accelerator", hint="give --gpu, or --kv-memory for the cache alone"
        )
    memory, max_memory = hardware.usable_memory_range
    engine = engine_budget(start, hardware)
    activations = _given(terms.activation_bytes, engine.activations)
    overhead = _given(terms.overhead_bytes, engine.overhead)
    drafting = draft_weights(as_loaded(deployment))
    weights = loaded_weights(deployment) + drafting
    beside = activations.plus(overhead)
    left = int(engine.utilization * memory) - weights - beside.most
    return Budget(
        memory_bytes=memory,
        utilization=engine.utilization,
        weight_bytes=weights,
        draft_weight_bytes=drafting,
        activation_bytes=activations.most,
        overhead_bytes=overhead.most,
        kv_bytes_available=left,
        outside_bytes=memory - int(engine.utilization * memory),
        intervals={
            "memory_bytes": (memory, max_memory),
            "activation_bytes": (activations.least, activations.most),
            "overhead_bytes": (overhead.least, overhead.most),
            "kv_bytes_available": (left, int(engine.utilization * max_memory) - weights - beside.least),
        },
    )


def _given(term: int | None, computed: Interval) -> Interval:
    return computed if term is None else Interval(least=term, most=term)
