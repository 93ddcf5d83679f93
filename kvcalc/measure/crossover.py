"""The batch from which compute, not memory, limits a decode step: by the bound, by the estimate, and measured."""

from __future__ import annotations

from statistics import linear_regression
from typing import TYPE_CHECKING

from kvcalc.core.reports.measure import BatchCrossing
from kvcalc.core.search import largest
from kvcalc.core.workload import decode_step
from kvcalc.measure.verdicts import rows_along
from kvcalc.plan.steps import timed_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.core.reports.measure import CrosscheckRow
    from kvcalc.plan.deployment import Deployment

__all__ = ["bound_crossover", "crossings", "knee_batch"]

# No crossover is sought above this batch.
_MAX_BATCH = 2**20
# A cache is short where reading it takes at most this share of the compute time; both grow with the batch alike.
_SHORT_CACHE = 0.1
# A line through fewer steps follows the scatter of their times.
_STEPS_PER_LINE = 3
# A knee bends: a sequence adds at least so many times as much after it as before.
_BEND = 2
# The knee of the middle repetitions differs by no more than this from that of the fast ones.
_SCATTER = 0.25


def bound_crossover(deployment: Deployment, *, context: int) -> int | None:
    """Return the least batch whose compute time reaches its memory time; None where memory limits every batch.

    Memory time over compute time never rises with the batch: weights are read once for all sequences, the cache once
    for each.

    Args:
        deployment: model and formats, with the accelerator whose ceilings count.
        context: tokens attended, the new one included.

    Raises:
        InputError: the deployment has no accelerator.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785 (the two terms of the roofline).
    """

    def memory_limits(batch: int) -> bool:
        time = timed_step(deployment, decode_step(batch=batch, context=context)).time
        return time.compute_s < time.memory_s

    below = largest(memory_limits, _MAX_BATCH)
    return below + 1 if below < _MAX_BATCH else None


def knee_batch(batches: Sequence[int], times_s: Sequence[float]) -> float | None:
    """Return the batch at which two straight lines meet that times follow, one before the knee and one after it.

    Each line has at least three steps; of all ways to part the steps, the one with the smallest relative error counts.
    None where there are fewer than six, or where no knee lies between the smallest and the largest batch.

    Args:
        batches: in ascending order.
        times_s: of a step at each of them.

    >>> batches = [1, 2, 4, 8, 16, 32, 64]
    >>> knee_batch(batches, [max(10.0, float(batch)) for batch in batches])
    10.0
    >>> knee_batch(batches, [10.0 + batch for batch in batches]) is None
    True
    """
    splits = range(_STEPS_PER_LINE, len(batches) - _STEPS_PER_LINE + 1)
    fits = [_two_lines(batches, times_s, split) for split in splits]
    if not fits:
        return None
    _, (slope_before, start_before), (slope_after, start_after) = min(fits)
    if slope_after <= 0 or slope_after < _BEND * slope_before:
        return None
    knee = (start_before - start_after) / (slope_after - slope_before)
    return knee if batches[0] < knee < batches[-1] else None


def _two_lines(
    batches: Sequence[int], times_s: Sequence[float], split: int
) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """Relative squared error, and slope and intercept of the least-squares lines before and after a split."""
    error = 0.0
    lines = []
    for part in (slice(split), slice(split, None)):
        slope, intercept = linear_regression(batches[part], times_s[part])
        lines.append((slope, intercept))
        error += sum(
            ((intercept + slope * batch) / seconds - 1) ** 2
            for batch, seconds in zip(batches[part], times_s[part], strict=True)
        )
    return error, lines[0], lines[1]


def crossings(rows: Sequence[CrosscheckRow], deployments: Iterable[Deployment]) -> list[BatchCrossing]:
    """Return the crossover of each model, format and context that was measured at several batches.

    Estimate and measurement have one only where the context is short: over a long one a step grows with the batch by
    the cache that it reads, which is memory's.

    Args:
        rows: measured steps.
        deployments: what they are steps of, with the accelerator whose ceilings count.
    """
    by_name = {(each.model.name, each.formats.weights.name): each for each in deployments}
    return [
        _crossing(steps, by_name[steps[0].model, steps[0].format])
        for steps in rows_along(rows, apart="context", along="batch")
    ]


def _crossing(steps: Sequence[CrosscheckRow], deployment: Deployment) -> BatchCrossing:
    """Crossover of one model, format and context, from its steps in ascending batches."""
    batches, context = [row.batch for row in steps], steps[0].context
    last = timed_step(deployment, decode_step(batch=batches[-1], context=context))
    cache_s = last.time.memory_s * last.cost.total("kv_read_bytes") / last.cost.compulsory_bytes
    short = cache_s <= _SHORT_CACHE * last.time.compute_s
    estimates = [row.estimate_s for row in steps if row.estimate_s is not None]
    return BatchCrossing(
        model=steps[0].model,
        format=steps[0].format,
        context=context,
        bound_batch=bound_crossover(deployment, context=context),
        estimate_batch=knee_batch(batches, estimates) if short and len(estimates) == len(batches) else None,
        measured_batch=_measured_knee(steps) if short else None,
        largest_batch=batches[-1],
        largest_batch_limiter=last.time.limiter,
        short_context=short,
    )


def _measured_knee(steps: Sequence[CrosscheckRow]) -> float | None:
    """Knee of the measured times; None where that of the middle repetitions is another: they scatter too much."""
    batches = [row.batch for row in steps]
    knee = knee_batch(batches, [row.measured_s for row in steps])
    middle = knee_batch(batches, [row.median_s for row in steps])
    return knee if knee and middle and abs(middle / knee - 1) <= _SCATTER else None
