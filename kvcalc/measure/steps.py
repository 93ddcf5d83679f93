"""Decode steps of a real loop, timed in turn over batches and contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import weight_bytes
from kvcalc.measure.clock import Stopped, Timing, back_to_back_s, in_turn, recorded
from kvcalc.measure.decoder import Decoder
from kvcalc.measure.kernels import Plain, kernels_of
from kvcalc.measure.library import told_memory
from kvcalc.measure.loop import LoopRun, timed_loop
from kvcalc.measure.products import fastest_products
from kvcalc.measure.scale import check_memory, in_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvcalc.measure.decoder import Cache
    from kvcalc.measure.library import Device
    from kvcalc.measure.probes import Case, Probe
    from kvcalc.plan.deployment import Deployment

__all__ = ["Memory", "Step", "longest", "timed_steps"]

# Share of the free memory that caches of steps timed in turn may take together.
_ROOM = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Figures of torch's allocator, in bytes.

    Args:
        weights: asked of it for the weights.
        cache: asked of it for the cache.
        peak: the most it had handed out for weights, cache and the step together.
    """

    weights: int
    cache: int
    peak: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A decode step as it was measured.

    Args:
        deployment: model and formats.
        layers: layers that were built.
        batch: sequences.
        context: tokens attended.
        kv_bytes: bytes of the cache's tensors.
        weight_bytes: bytes of the weight tensors.
        memory: what torch's allocator says of them, where it does.
        copied_bytes: of these, what is held a second time, prepacked.
        timing: the repetitions.
        experts: experts used in all mixtures, where there are any.
        kernels: the variant of the loop's kernels.
        in_graph: whether it was replayed from a graph.
        replay_error: how far a replay's logits are from the step's own, as a share of the largest; none on a CPU.
        variant_error: how far its logits are from those of the plain kernels, as such a share; none of the plain ones.
        back_to_back_s: time of one among many in a row; none on a CPU.
    """

    deployment: Deployment
    layers: int
    batch: int
    context: int
    kv_bytes: int
    weight_bytes: int
    copied_bytes: int
    timing: Timing
    experts: int | None
    memory: Memory | None = None
    kernels: str = "plain"
    in_graph: bool = False
    replay_error: float | None = None
    variant_error: float | None = None
    back_to_back_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    batch: int
    context: int
    cache: Cache
    kernels: Plain
    memory: Memory | None
    experts: int | None
    call: Callable[[], Any]
    in_graph: bool
    replay_error: float | None
    variant_error: float | None


def timed_steps(
    deployment: Deployment,
    device: Device,
    *,
    batches: Sequence[int],
    contexts: Sequence[int],
    rounds: int,
    progress: Callable[[str], None],
    beside: Sequence[Case] = (),
    kernels: Sequence[str] = ("plain",),
    loops: Sequence[int] = (),
) -> Iterator[Step | Probe | LoopRun]:
    """Yield the decode steps of one model, what was timed in turn with them, and tokens decoded in a row.

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
        kernels: variants of the loop's kernels, each timed.
        loops: numbers of tokens that are decoded in a row, at the shortest context.

    Raises:
        InputError: the largest of them needs more memory than is free.
    """
    model, formats = deployment.model, deployment.formats
    check_memory(
        model,
        formats,
        batch=max(batches),
        context=longest(contexts, loops),
        free_bytes=device.free_bytes(),
        device=device.kind,
    )
    name = formats.weights.name
    with told_memory(f"{model.name} in {name} with {max(batches)} x {max(contexts):,} tokens", device):
        progress(f"{model.name}: weights in {name}")
        before = device.requested_bytes()
        products = fastest_products(name, device, read_bytes=int(weight_bytes(model, formats)))
        decoder = Decoder(model, weights=name, device=device, products=products)
        decoder_bytes = None if before is None else (device.requested_bytes() or 0) - before - decoder.make.pool_bytes
        variants = [kernels_of(variant, device) for variant in kernels]
        cells = [(batch, context) for context in contexts for batch in batches]
        room = int(_ROOM * device.free_bytes()) // len(variants)
        for group in in_groups(cells, lambda cell: _cache_size(deployment, *cell), room):
            progress(f"{model.name} in {name}: {len(group) * len(variants)} steps, {rounds} rounds")
            prepared = [
                _prepare(decoder, *cell, variant, device, decoder_bytes) for cell in group for variant in variants
            ]
            calls = [*(cell.call for cell in prepared), *(case.call for case in beside)]
            stopped = None
            try:
                timings = in_turn(calls, rounds=rounds, device=device)
            except Stopped as interruption:
                timings, stopped = interruption.timings, interruption
            for cell, timing in zip(prepared, timings, strict=False):
                yield _step(deployment, decoder, cell, timing, device)
            for case, timing in zip(beside, timings[len(prepared) :], strict=True):
                yield case.probe(timing)
            if stopped is not None:
                raise stopped
            # the calls hold their caches, which the next group needs the room of
            del prepared, cell, calls
            device.release()
        for batch, tokens, variant in product(batches, loops, variants):
            progress(f"{model.name} in {name}: {tokens} tokens in a row at batch {batch}, {variant.name}")
            yield timed_loop(deployment, decoder, variant, batch=batch, context=min(contexts), tokens=tokens)
            device.release()


def longest(contexts: Sequence[int], loops: Sequence[int]) -> int:
    """Tokens in the fullest cache of steps at these contexts and of loops after the shortest of them.

    >>> longest((8, 24), ()), longest((8, 24), (64,))
    (24, 71)
    """
    return max(*contexts, min(contexts) + max(loops, default=1) - 1)


def _cache_size(deployment: Deployment, batch: int, context: int) -> int:
    each = cache_bytes(deployment.model, context, deployment.formats)
    return batch * (each.growing + each.state)


def _prepare(
    decoder: Decoder, batch: int, context: int, kernels: Plain, device: Device, weights: int | None
) -> _Prepared:
    before = device.requested_bytes()
    device.peak_bytes(reset=True)
    start = device.peak_bytes()
    cache = decoder.new_cache(batch=batch, capacity=context)
    after = device.requested_bytes()
    cache.fill(decoder.make)
    generator = torch.Generator().manual_seed(batch * context)
    tokens = torch.randint(0, decoder.vocabulary, (batch, 1), generator=generator).to(device.kind)
    restore = cache.snapshot()
    run = decoder.new_pass(tokens, cache, touched=[], kernels=kernels)
    eager = decoder.forward(tokens, cache, run=run)
    memory, peak = None, device.peak_bytes()
    if weights is not None and before is not None and after is not None and peak is not None and start is not None:
        memory = Memory(weights=weights, cache=after - before, peak=weights + peak - start)
    variant_error = None
    if kernels.name != Plain.name:
        restore()
        plain = decoder.forward(tokens, cache, run=decoder.new_pass(tokens, cache, kernels=Plain()))
        variant_error = _apart(eager, plain)
    call, in_graph = recorded(
        lambda: decoder.forward(tokens, cache, run=decoder.new_pass(tokens, cache, kernels=kernels)),
        device,
        reset=restore,
    )
    restore()
    return _Prepared(
        batch=batch,
        context=context,
        cache=cache,
        kernels=kernels,
        memory=memory,
        experts=sum(run.touched) if run.touched else None,
        call=call,
        in_graph=in_graph,
        replay_error=_apart(call(), eager) if in_graph else None,
        variant_error=variant_error,
    )


def _apart(logits: Any, reference: Any) -> float:
    """Return the distance of logits from a reference, as a share of its largest; infinite where one is no number."""
    apart = float((logits - reference).abs().max() / reference.abs().max())
    return apart if math.isfinite(apart) else math.inf


def _step(deployment: Deployment, decoder: Decoder, cell: _Prepared, timing: Timing, device: Device) -> Step:
    return Step(
        deployment=deployment,
        layers=len(decoder.layers),
        batch=cell.batch,
        context=cell.context,
        kv_bytes=cell.cache.allocated_bytes,
        weight_bytes=decoder.weight_bytes,
        copied_bytes=decoder.copied_bytes,
        timing=timing,
        experts=cell.experts,
        memory=cell.memory,
        kernels=cell.kernels.name,
        in_graph=cell.in_graph,
        replay_error=cell.replay_error,
        variant_error=cell.variant_error,
        back_to_back_s=back_to_back_s(cell.call, device),
    )
