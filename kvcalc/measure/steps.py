"""Decode steps of a real loop, timed in turn over batches and contexts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvcalc.cost.cache import cache_bytes
from kvcalc.measure.clock import Stopped, Timing, in_turn
from kvcalc.measure.decoder import Decoder
from kvcalc.measure.graphs import recorded
from kvcalc.measure.library import told_memory
from kvcalc.measure.scale import check_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvcalc.measure.decoder import Cache
    from kvcalc.measure.library import Device
    from kvcalc.measure.machine import Case, Probe
    from kvcalc.plan.deployment import Deployment

__all__ = ["Step", "timed_steps"]

# Share of the free memory that caches of steps timed in turn may take together.
_ROOM = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A decode step as it was measured.

    Args:
        deployment: model and formats.
        layers: layers that were built.
        batch: sequences.
        context: tokens attended.
        kv_bytes: bytes of the cache's tensors.
        allocator_bytes: what torch's allocator gave out for them, where it tells.
        weight_bytes: bytes of the weight tensors.
        copied_bytes: of these, what is held a second time, prepacked.
        timing: the repetitions.
        experts: experts used in all mixtures, where there are any.
        in_graph: whether it was replayed from a graph.
    """

    deployment: Deployment
    layers: int
    batch: int
    context: int
    kv_bytes: int
    allocator_bytes: int | None
    weight_bytes: int
    copied_bytes: int
    timing: Timing
    experts: int | None
    in_graph: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    batch: int
    context: int
    cache: Cache
    allocator_bytes: int | None
    experts: int | None
    call: Callable[[], object]
    in_graph: bool


def timed_steps(
    deployment: Deployment,
    device: Device,
    *,
    batches: Sequence[int],
    contexts: Sequence[int],
    rounds: int,
    progress: Callable[[str], None],
    beside: Sequence[Case] = (),
) -> Iterator[Step | Probe]:
    """Yield the decode steps of one model, and what was timed in turn with them.

    Steps whose caches find room together are timed in turn.

    The cache is filled with random entries, as a prompt would have filled it, and the step at its end is repeated.

    Args:
        deployment: model and formats.
        device: where it runs.
        batches: sequences.
        contexts: tokens attended, the new one included.
        rounds: repetitions.
        progress: told what is done next.
        beside: benchmarks that are timed in turn with the steps.

    Raises:
        InputError: the largest of them needs more memory than is free.
    """
    model, formats = deployment.model, deployment.formats
    check_memory(
        model,
        formats,
        batch=max(batches),
        context=max(contexts),
        free_bytes=device.free_bytes(),
        device=device.kind,
    )
    name = formats.weights.name
    with told_memory(f"{model.name} in {name} with {max(batches)} x {max(contexts):,} tokens", device):
        progress(f"{model.name}: weights in {name}")
        decoder = Decoder(model, weights=name, device=device)
        cells = [(batch, context) for context in contexts for batch in batches]
        for group in _groups(deployment, cells, int(_ROOM * device.free_bytes())):
            progress(f"{model.name} in {name}: {len(group)} steps, {rounds} rounds")
            prepared = [_prepare(decoder, batch, context, device) for batch, context in group]
            calls = [*(cell.call for cell in prepared), *(case.call for case in beside)]
            stopped = None
            try:
                timings = in_turn(calls, rounds=rounds, device=device)
            except Stopped as interruption:
                timings, stopped = interruption.timings, interruption
            for cell, timing in zip(prepared, timings, strict=False):
                yield _step(deployment, decoder, cell, timing)
            for case, timing in zip(beside, timings[len(prepared) :], strict=True):
                yield case.probe(timing)
            if stopped is not None:
                raise stopped
            # the calls hold their caches, which the next group needs the room of
            del prepared, cell, calls
            device.release()


def _groups(deployment: Deployment, cells: Sequence[tuple[int, int]], room: int) -> Iterator[list[tuple[int, int]]]:
    """Deal out steps so that the caches of each group fit into the room together; a larger one stands alone."""
    group: list[tuple[int, int]] = []
    taken = 0
    for batch, context in cells:
        size = _cache_size(deployment, batch, context)
        if group and taken + size > room:
            yield group
            group, taken = [], 0
        group.append((batch, context))
        taken += size
    if group:
        yield group


def _cache_size(deployment: Deployment, batch: int, context: int) -> int:
    held = cache_bytes(deployment.model, context, deployment.formats)
    return batch * (held.growing + held.state)


def _prepare(decoder: Decoder, batch: int, context: int, device: Device) -> _Prepared:
    before = device.allocated_bytes()
    cache = decoder.new_cache(batch=batch, capacity=context)
    after = device.allocated_bytes()
    cache.fill(decoder.make)
    generator = torch.Generator().manual_seed(batch * context)
    tokens = torch.randint(0, decoder.vocabulary, (batch, 1), generator=generator).to(device.kind)
    run = decoder.new_pass(tokens, cache, touched=[])
    decoder.forward(tokens, cache, run=run)
    call, in_graph = recorded(lambda: decoder.forward(tokens, cache), device)
    return _Prepared(
        batch=batch,
        context=context,
        cache=cache,
        allocator_bytes=None if before is None or after is None else after - before,
        experts=sum(run.touched) if run.touched else None,
        call=call,
        in_graph=in_graph,
    )


def _step(deployment: Deployment, decoder: Decoder, cell: _Prepared, timing: Timing) -> Step:
    return Step(
        deployment=deployment,
        layers=len(decoder.layers),
        batch=cell.batch,
        context=cell.context,
        kv_bytes=cell.cache.allocated_bytes,
        allocator_bytes=cell.allocator_bytes,
        weight_bytes=decoder.weight_bytes,
        copied_bytes=decoder.copied_bytes,
        timing=timing,
        experts=cell.experts,
        in_graph=cell.in_graph,
    )
