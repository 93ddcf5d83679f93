"""The decode bound over large grids: the same one formula, evaluated where it bends and laid out as columns.

All that a decode step costs is a sum of two parts: what depends on the batch alone (matrices, experts, collectives,
head) and what each sequence adds at its context (its cache). Both come from `forward_cost`: the first once for each
batch, the second once for each end of a stretch of contexts on which it is a straight line. The rest is arithmetic on
columns, so that a hundred thousand rows take about as long as a hundred.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcalc.core.cost_types import OpCost
from kvcalc.core.model import Mixture
from kvcalc.core.units import GIB
from kvcalc.core.workload import decode_step
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.roofline import op_seconds, stage_seconds
from kvcalc.cost.sharding import rank_cache_bytes
from kvcalc.plan.economics import cost_fields
from kvcalc.plan.rank_memory import rank_weights
from kvcalc.plan.room import largest_batch, longest_context
from kvcalc.plan.steps import required_hardware

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from numpy.typing import NDArray

    from kvcalc.core.cost_types import StepCost
    from kvcalc.core.hardware import HardwareProfile, Link
    from kvcalc.core.model import Mixer
    from kvcalc.plan.deployment import Deployment

    Numbers = NDArray[Any]

__all__ = ["DecodeCosts", "decode_blocks", "decode_costs"]

_MAX_ROWS = 16_384
_FIELDS = tuple(field.name for field in fields(OpCost) if field.name not in ("name", "part", "unit"))
_TOTALS = ("flop", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "compulsory_bytes")
_LIMITERS = np.array(["memory", "compute", "interconnect"])


@dataclass(frozen=True, slots=True)
class _Part:
    """Operators of the busiest rank of each stage, their fields columns, and sums over all ranks."""

    stages: list[tuple[OpCost, ...]]
    totals: dict[str, Numbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCosts:
    """Costs of decode steps over batches and contexts, on any accelerator.

    Args:
        batches: sequences decoded together.
        contexts: tokens attended.
        by_batch: what depends on the batch.
        by_context: what each sequence adds.
        sequences: sequences of the busiest rank, for each batch.
        cache_bytes: cache of one sequence on the fullest rank, for each context.
    """

    batches: Numbers
    contexts: Numbers
    by_batch: _Part
    by_context: _Part
    sequences: Numbers
    cache_bytes: Numbers

    def blocks(self, deployment: Deployment, *, most_rows: int = _MAX_ROWS) -> Iterator[dict[str, Numbers]]:
        """Yield the rows on a deployment's accelerator as columns, contexts outside and batches inside.

        Args:
            deployment: what the costs were computed for, on any accelerator.
            most_rows: rows cached at once.
        """
        step = max(1, most_rows // len(self.batches))
        for start in range(0, len(self.contexts), step):
            for first in range(0, len(self.batches), most_rows):
                yield _rows(self, deployment, slice(start, start + step), slice(first, first + most_rows))


def decode_costs(deployment: Deployment, *, batches: Sequence[int], contexts: Sequence[int]) -> DecodeCosts:
    """Return the costs of decode steps over batches and contexts; the accelerator has no part in them.

    Raises:
        InputError: a batch or context below one.
    """
    model, formats, parallel = deployment.model, deployment.formats, deployment.parallel

    def cost(batch: int, context: int) -> StepCost:
        group = decode_step(batch=batch, context=context)
        return forward_cost(model, (group,), formats, parallel=parallel)

    ranks = parallel.data
    routed = any(isinstance(block.mlp, Mixture) for block in model.block_counts)
    bends = routed or ranks > 1
    lengths = np.array(contexts, dtype=np.int64)
    sizes = np.array(batches, dtype=np.int64)
    points = _ends(contexts, lambda context: tuple(_stretch(mixer, context) for mixer in model.mixers))
    cached = [rank_cache_bytes(model, formats, parallel, tokens=tokens, batch=1) for tokens in points]
    return DecodeCosts(
        batches=sizes,
        contexts=lengths,
        by_batch=_part(lambda batch: cost(batch, 1), _ends(batches, lambda size: bends and size), sizes, cache=False),
        by_context=_part(lambda context: cost(ranks, context), points, lengths, cache=True, per=ranks),
        sequences=-(-sizes // ranks),
        cache_bytes=np.rint(np.interp(lengths, points, cached)).astype(np.int64),
    )


def decode_blocks(
    deployment: Deployment, *, batches: Sequence[int], contexts: Sequence[int], most_rows: int = _MAX_ROWS
) -> Iterator[dict[str, Numbers]]:
    """Yield the rows of `kvcalc.plan.decode.decode_report` as columns, without parts, at most ``most_rows`` at once.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        batches: sequences decoded together.
        contexts: tokens attended.
        most_rows: rows cached at once.

    Raises:
        InputError: no accelerator, or a batch or context below one.
    """
    required_hardware(deployment)
    yield from decode_costs(deployment, batches=batches, contexts=contexts).blocks(deployment, most_rows=most_rows)


def _stretch(mixer: Mixer, context: int) -> Hashable:
    """Name the stretch of contexts on which what a mixer does for the next token, and holds, is a straight line."""
    return mixer.bends.stretch(context), tuple(context >= knee for knee in mixer.cache_knees)


def _ends(values: Sequence[int], stretch: Callable[[int], Hashable]) -> list[int]:
    """Return the first and the last value of each stretch."""
    first: dict[Hashable, int] = {}
    last: dict[Hashable, int] = {}
    for value in sorted(values):
        first.setdefault(stretch(value), value)
        last[stretch(value)] = value
    return sorted({*first.values(), *last.values()})


def _part(
    cost: Callable[[int], StepCost], points: Sequence[int], values: Numbers, *, cache: bool, per: int = 1
) -> _Part:
    """Evaluate costs at some points and lay them out over all values, with the cache's operators or with the others.

    Args:
        cost: the cost of a step for one value.
        points: where it is evaluated, in order; between two of them it is a straight line wherever a value lies.
        values: where it is wanted.
        cache: whether the operators wanted are those of the cache.
        per: sequences that the sums over ranks are divided by.
    """
    evaluated = [_kept(cost(point), cache=cache) for point in points]
    stages = [
        tuple(
            replace(ops[0], **{name: np.interp(values, points, [getattr(op, name) for op in ops]) for name in _FIELDS})
            for ops in zip(*same_stage, strict=True)
        )
        for same_stage in zip(*(each.stages for each in evaluated), strict=True)
    ]
    totals = {name: np.interp(values, points, [each.totals[name] / per for each in evaluated]) for name in _TOTALS}
    return _Part(stages, totals)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The operators of a pass that one part consists of."""

    stages: list[list[OpCost]]
    totals: dict[str, float]


def _kept(cost: StepCost, *, cache: bool) -> _Kept:
    def wanted(ops: Sequence[OpCost]) -> list[OpCost]:
        return [op for op in ops if (op.part == "cache") == cache]

    totals = {
        name: cost.total(name, part="cache") if cache else cost.total(name) - cost.total(name, part="cache")
        for name in _TOTALS
    }
    return _Kept([wanted(stage) for stage in cost.stages], totals)


def _rows(costs: DecodeCosts, deployment: Deployment, some_contexts: slice, some_batches: slice) -> dict[str, Numbers]:
    hardware, gpus = required_hardware(deployment), deployment.parallel.gpus
    batches, contexts = costs.batches[some_batches], costs.contexts[some_contexts]
    on_rank = costs.sequences[some_batches]
    outer, inner = costs.by_batch.totals, costs.by_context.totals

    def grid(fixed: Numbers, each: Numbers, sequences: Numbers) -> Numbers:
        """Combine the part that depends on the batch with that of each sequence, which depends on the context."""
        columns: Numbers = fixed[some_batches][None, :] + sequences[None, :] * each[some_contexts][:, None]
        return columns.ravel()

    totals = {name: grid(outer[name], inner[name], batches) for name in _TOTALS}
    link = hardware.link(deployment.parallel.exchange_gpus)
    stages = [
        {name: grid(fixed[name], each[name], on_rank) for name in fixed}
        for fixed, each in zip(
            (_seconds(stage, hardware, link, costs.batches) for stage in costs.by_batch.stages),
            (_seconds(stage, hardware, link, costs.contexts) for stage in costs.by_context.stages),
            strict=True,
        )
    ]
    seconds = np.array([[stage[name] for name in _LIMITERS] for stage in stages])
    slowest = seconds.max(axis=1).argmax(axis=0)
    shown: Numbers = np.take_along_axis(seconds, slowest[None, None, :], axis=0)[0]
    ideal: Numbers = shown.max(axis=0)
    batch = np.tile(batches, len(contexts))
    needed = rank_weights(deployment) + np.outer(costs.cache_bytes[some_contexts], on_rank).ravel()
    tokens_per_s = batch / ideal
    return {
        "batch": batch,
        "context": np.repeat(contexts, len(batches)),
        **{name: totals[name] for name in ("flop", "weight_bytes", "kv_read_bytes", "kv_write_bytes")},
        "intensity_flop_per_byte": totals["flop"] / totals["compulsory_bytes"],
        "ideal_s": ideal,
        "serial_s": sum(stage["serial"] for stage in stages),
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_sequence": 1 / seconds.max(axis=1).sum(axis=0),
        "tokens_per_s_per_gib": tokens_per_s / (needed * gpus / GIB),
        "limiter": _LIMITERS[shown.argmax(axis=0)],
        **{f"shares.{name}": shown[index] / ideal for index, name in enumerate(_LIMITERS)},
        "fits": _fits(deployment, batches, contexts),
        "memory_needed_bytes": needed,
        **{
            name: np.full(len(batch), np.nan) if rate is None else rate / tokens_per_s
            for name, rate in cost_fields(deployment, 1.0).items()
        },
    }


def _fits(deployment: Deployment, batches: Numbers, contexts: Numbers) -> Numbers:
    """Whether each batch fits at each context: what fewer sequences need is never more, nor what shorter ones need.

    Chunks and compressed entries fall back at the end of a period, so that each of their contexts is asked about.
    """
    falls = any(mixer.bends.period > 1 for mixer in deployment.model.mixers)
    if falls or len(contexts) <= len(batches):
        max_batch = int(batches.max())
        largest = np.array([largest_batch(deployment, context=int(context), limit=max_batch) for context in contexts])
        fitting: Numbers = batches[None, :] <= largest[:, None]
    else:
        max_batch = int(contexts.max())
        longest = np.array([longest_context(deployment, batch=int(batch), limit=max_batch) for batch in batches])
        fitting = contexts[:, None] <= longest[None, :]
    return fitting.ravel()


def _seconds(
    ops: Sequence[OpCost], hardware: HardwareProfile, link: Link | None, values: Numbers
) -> dict[str, Numbers]:
    """Return the totals of a stage, and its operators one after another, for each value."""
    compute, memory, wire = stage_seconds(ops, hardware, link)
    serial = sum(op_seconds(op, hardware, link, larger=np.maximum) for op in ops)
    times = {"memory": memory, "compute": compute, "interconnect": wire, "serial": serial}
    return {name: np.broadcast_to(seconds, len(values)) for name, seconds in times.items()}
