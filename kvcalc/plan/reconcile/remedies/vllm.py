"""Flags with which vLLM would start where it refused: each checked by its rules before it is named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.cost.sharding import splits_evenly
from kvcalc.engines.drafts import Draft
from kvcalc.engines.logs.refusals import LOADING, PROFILING, SAMPLING
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.vllm.releases import release_of
from kvcalc.plan.reconcile.findings import bytes_of_gib
from kvcalc.plan.reconcile.remedies.attempt import (
    Attempt,
    Remedies,
    both,
    contradiction,
    loaded_weights,
    longest_length,
    rounded_length,
    rounded_share,
    tried,
    unnamed_gpu,
)
from kvcalc.plan.reconcile.remedies.vllm_memory import printed_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.engines.logs import StartUp
    from kvcalc.plan.reconcile.remedies.attempt import Change
    from kvcalc.plan.reconcile.remedies.vllm_memory import PrintedMemory
    from kvcalc.plan.reconcile.setups import Setup

__all__ = ["vllm_remedies"]

# What is left free beside an allocation that failed after the cache was sized.
_MARGIN = 0.02
_RANKS = (2, 4, 8)
_FEWER_TOKENS = (2048, 1024, 512)
_FEWER_SEQUENCES = (256, 128, 64, 32, 16)
# Copies of the logits in 32 bits that stand at once while the sampler is warmed up.
_COPIES = 2
_BY_VERSION = {True: "0.15.0", False: None}


def vllm_remedies(start_up: StartUp, setup: Setup, hardware: HardwareProfile | None) -> Remedies:
    """Return flags with which a start that was refused would succeed, the gentlest first.

    Args:
        start_up: the start, with its refusal.
        setup: how it was set up.
        hardware: the accelerator, where it is known.
    """
    refusal = start_up.refusal
    if refusal is None:
        return Remedies()
    memory = printed_memory(start_up, setup, hardware)
    loaded, unknown = loaded_weights(start_up, setup.model, memory.ranks.gpus)
    if hardware is None and memory.total is not None:
        hardware = unnamed_gpu(memory.total)
    first = replace(_first(start_up, setup, None if unknown else hardware, memory), loaded=loaded)
    if refusal.kind in ("no_cache_memory", "out_of_memory") and memory.utilization <= memory.most_utilization:
        refuted = contradiction(first, memory.of(first))
        if refuted is not None:
            return refuted
    if refusal.kind == "out_of_memory" and refusal.stage not in _BEFORE_SIZING:
        changes = list(_after_sizing(start_up, first, memory))
    elif refusal.kind == "out_of_memory":
        changes = list(_before_sizing(first, memory))
    elif refusal.kind == "too_many_sequences":
        blocks = int(refusal.sizes["blocks"].value)
        changes = [lambda one: one.changed(f"--max-num-seqs {blocks}", max_num_seqs=blocks)]
    elif refusal.kind == "beyond_model":
        limit = int(refusal.sizes["limit"].value)
        changes = [lambda one: _length(one, limit), lambda one: _shorter(replace(one, length=limit), memory)]
    elif refusal.kind == "uneven_heads":
        changes = [_ranks(size) for size in range(first.parallel.tensor - 1, 0, -1) if splits_evenly(first.model, size)]
        first = replace(first, parallel=replace(first.parallel, tensor=1))
    else:
        changes = list(_more_room(start_up, first, memory))
    remedies = tried(first, changes, memory.of)
    return replace(remedies, why_none=unknown) if unknown and not remedies.found else remedies


_BEFORE_SIZING = (LOADING, PROFILING)


def _first(start_up: StartUp, setup: Setup, hardware: HardwareProfile | None, memory: PrintedMemory) -> Attempt:
    """Return the start as it was tried."""
    if hardware is not None and memory.total is not None:
        hardware = replace(hardware, runtime_memory_bytes=memory.total)
    version = start_up.version if release_of(start_up.version) else _BY_VERSION[setup.checks_all_layers]
    # what no printed number depends on is the engine's default on that card
    pinned = start_up.printed.keys() & {"needed_kv_gib", "kv_cache_tokens"}
    tokens = setup.options.max_num_batched_tokens if pinned else start_up.count("max_num_batched_tokens")
    options = EngineOptions(
        version=version,
        block_size=setup.options.block_size,
        max_num_batched_tokens=tokens,
        max_in_flight_batches=setup.options.max_in_flight_batches if pinned else None,
        max_num_seqs=start_up.count("max_num_seqs"),
        prefix_caching=setup.options.prefix_caching,
        utilization=memory.utilization,
        platform=setup.options.platform,
        generation=setup.options.generation,
    )
    return Attempt(
        engine="vllm",
        model=setup.model,
        length=setup.options.max_model_len,
        options=options,
        parallel=memory.ranks,
        kv="/".join(dict.fromkeys((setup.formats.key.name, setup.formats.value.name))),
        hardware=hardware,
        draft=_draft(start_up, setup),
    )


def _draft(start_up: StartUp, setup: Setup) -> Draft | None:
    """Return the draft of tokens; layers that keep a cache for it are among the setup's model already."""
    tokens = setup.options.speculative_tokens
    return Draft(method=start_up.text("speculative_method") or "mtp", tokens=tokens) if tokens else None


def _more_room(start_up: StartUp, first: Attempt, memory: PrintedMemory) -> Iterator[Change]:
    """Yield more room for the cache, smaller caches and shorter requests: these late where a length was asked for."""
    asked = "asked for a length" in start_up.events or first.length != first.model.context_limit
    max_share = memory.most_utilization
    shares = [share for share in (0.92, 0.95) if memory.utilization < share <= max_share]
    if "cache memory set" in start_up.events:
        shares, max_share = [], 1.0
    if memory.utilization > max_share:
        shares = [max_share]
    raised = [_utilization(share) for share in shares] if memory.total is not None else []
    if memory.utilization <= max_share:
        raised.insert(0, _unchanged)
    smaller: list[Change] = [_fp8, *(_tokens(count) for count in _FEWER_TOKENS)]
    yield from raised
    if not asked:
        yield from (both(share, lambda one: _shorter(one, memory)) for share in raised)
    for change in smaller:
        yield from (both(share, change) for share in raised)
    if asked:
        yield from (both(share, lambda one: _shorter(one, memory)) for share in raised)
    yield from (both(share, both(_fp8, lambda one: _shorter(one, memory))) for share in raised)
    yield from (both(raised[0], more) for more in _more_ranks(first, memory))


def _after_sizing(start_up: StartUp, first: Attempt, memory: PrintedMemory) -> Iterator[Change]:
    """Yield options that leave more memory beside the cache, by as much as was missing."""
    sizes = start_up.refusal.sizes if start_up.refusal else {}
    tried_size, free = sizes.get("tried_gib"), sizes.get("free_gib")
    if memory.total is None:
        return
    missing = 0 if tried_size is None or free is None else max(0, bytes_of_gib(tried_size)[1] - bytes_of_gib(free)[0])
    share = min(rounded_share(memory.utilization - missing / memory.total - _MARGIN), memory.most_utilization)
    if share <= 0:
        return
    lower = _utilization(share)
    yield lower
    yield from _fewer_samples(start_up)
    yield both(lower, lambda one: _shorter(one, memory))
    yield both(lower, _fp8)
    yield from (both(lower, more) for more in _more_ranks(first, memory))


def _fewer_samples(start_up: StartUp) -> Iterator[Change]:
    """Yield fewer sequences where sampling ran out of memory: its copies of the logits are in proportion to them."""
    refusal = start_up.refusal
    if (
        refusal is None
        or refusal.stage != SAMPLING
        or not {"tried_gib", "free_gib", "sequences"} <= refusal.sizes.keys()
    ):
        return
    each = refusal.sizes["tried_gib"].most / refusal.sizes["sequences"].value
    fitting = (count for count in _FEWER_SEQUENCES if _COPIES * each * count <= refusal.sizes["free_gib"].least)
    count = next(fitting, None)
    if count is not None:
        yield _sequences(count)


def _before_sizing(first: Attempt, memory: PrintedMemory) -> Iterator[Change]:
    """Yield options that leave other processes their memory, make the largest pass smaller, or spread the weights."""
    others = memory.utilization > memory.most_utilization
    share = _utilization(memory.most_utilization) if others else _unchanged
    yield share
    yield from (both(share, change) for change in _smaller_passes(first))
    if others:
        yield both(share, lambda one: _shorter(one, memory))
    yield from (both(share, change) for change in _more_ranks(first, memory))


def _unchanged(one: Attempt) -> Attempt:
    return one


def _smaller_passes(first: Attempt) -> Iterator[Change]:
    """Yield options that make the largest pass smaller, whose activations the engine holds while it profiles itself."""
    for tokens in _FEWER_TOKENS:
        yield _tokens(tokens)
        for sequences in _FEWER_SEQUENCES:
            yield both(_tokens(tokens), _sequences(sequences))
    if first.options.max_num_seqs is None:
        yield from (_sequences(count) for count in _FEWER_SEQUENCES)


def _more_ranks(first: Attempt, memory: PrintedMemory) -> Iterator[Change]:
    for size in _RANKS:
        ranks = size * first.parallel.tensor
        if splits_evenly(first.model, ranks):
            yield _ranks(ranks)
            yield both(_ranks(ranks), lambda one: _shorter(one, memory))


def _utilization(share: float) -> Change:
    return lambda one: one.changed(f"--gpu-memory-utilization {share:g}", utilization=share)


def _tokens(count: int) -> Change:
    """Return a smaller pass; it changes the cache of models with windows alone."""

    def change(one: Attempt) -> Attempt | None:
        if count >= (one.options.max_num_batched_tokens or count):
            return None
        return one.changed(f"--max-num-batched-tokens {count}", max_num_batched_tokens=count)

    return change


def _sequences(count: int) -> Change:
    return lambda one: one.changed(f"--max-num-seqs {count}", max_num_seqs=count)


def _fp8(one: Attempt) -> Attempt | None:
    return None if one.kv is not None and one.kv.startswith("fp8") else one.changed("--kv-cache-dtype fp8", kv="fp8")


def _ranks(size: int) -> Change:
    return lambda one: one.spread(f"--tensor-parallel-size {size}", size)


def _length(one: Attempt, length: int) -> Attempt | None:
    return one.changed(f"--max-model-len {length}", length=length) if length > 0 else None


def _shorter(one: Attempt, memory: PrintedMemory) -> Attempt | None:
    longest = rounded_length(longest_length(one, memory.of(one)))
    return _length(one, longest) if longest < one.length else None
