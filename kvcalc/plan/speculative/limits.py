"""Limits of speculation: over the batch, and over the size of the draft."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvcalc.core.reports.speculative import BatchLimit, LargestDraft, PayingRange
from kvcalc.cost.speculation import largest_draft_ratio
from kvcalc.plan.room import largest_batch
from kvcalc.plan.speculative.passes import Kind
from kvcalc.plan.steps import required_hardware

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.reports.speculative import Pays
    from kvcalc.plan.speculative.passes import Speculation

__all__ = ["batch_limit", "largest_draft"]

_MAX_BATCH = 2**17
_MAX_FITTING = 2**24
# Batches tried one after another grow by a quarter; between two of them the crossing is bisected.
_GROWTH = 1.25
_KINDS: tuple[Kind, Kind] = ("latency_s", "serial_s")


def batch_limit(asked: Speculation, context: int, gamma: int | None) -> BatchLimit:
    """Return at which batches speculation pays, of batches up to 131,072.

    Args:
        asked: target, draft and acceptance.
        context: tokens attended.
        gamma: the length of the draft; none for the best at each batch.
    """
    ideal, serial = (_paying(asked, context, gamma, kind) for kind in _KINDS)
    last = ideal[-1] if ideal else PayingRange(first_batch=1, last_batch=1)
    tree = asked.asked_for(last.last_batch or last.first_batch, context, gamma).tree
    passes = asked.passes
    return BatchLimit(
        context=context,
        gamma=gamma,
        break_even_batch=_last(ideal),
        pays=_words(ideal),
        paying=ideal,
        serial_break_even_batch=_last(serial),
        serial_pays=_words(serial),
        serial_paying=serial,
        searched_batch=_MAX_BATCH,
        largest_fitting_batch=largest_batch(passes.with_draft(tree), context=context, limit=_MAX_FITTING),
        estimate_paying=None if passes.estimated is None else _paying(asked, context, gamma, "estimate_s"),
    )


def _paying(asked: Speculation, context: int, gamma: int | None, kind: Kind) -> tuple[PayingRange, ...]:
    """Return the ranges of batches at which it pays, an estimate where its whole interval is above 1."""
    gammas = asked.gammas if gamma is None else (gamma,)
    estimated = asked.passes.estimated if kind == "estimate_s" else None

    def pays(batch: int) -> bool:
        low = 1.0 if estimated is None else estimated.terms.spread(batch).low
        return any(asked.at(batch, context, length, kind=kind).speedup * low > 1 for length in gammas)

    ranges: list[PayingRange] = []
    first: int | None = None
    before = 0
    for batch in _batches():
        now = pays(batch)
        if now and first is None:
            first = _crossing(pays, before, batch)
        elif not now and first is not None:
            ranges.append(
                PayingRange(first_batch=first, last_batch=_crossing(lambda n: not pays(n), before, batch) - 1)
            )
            first = None
        before = batch
    if first is not None:
        ranges.append(PayingRange(first_batch=first, last_batch=None))
    return tuple(ranges)


def _last(ranges: tuple[PayingRange, ...]) -> int | None:
    return ranges[-1].last_batch if ranges else 0


def _words(ranges: tuple[PayingRange, ...]) -> Pays:
    if len(ranges) != 1:
        return "in several ranges" if ranges else "never"
    if ranges[0].first_batch == 1:
        return "at every batch" if ranges[0].last_batch is None else "up to a batch"
    return "from a batch on" if ranges[0].last_batch is None else "between two batches"


def _batches() -> list[int]:
    batches = [1]
    while batches[-1] < _MAX_BATCH:
        batches.append(min(_MAX_BATCH, max(batches[-1] + 1, math.floor(batches[-1] * _GROWTH))))
    return batches


def _crossing(reached: Callable[[int], bool], below: int, above: int) -> int:
    """Return the smallest number for which something holds that holds at ``above`` and not at ``below``."""
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if reached(middle) else (middle, above)
    return above


def largest_draft(asked: Speculation, batch: int, context: int) -> LargestDraft:
    """Return the slowest draft that pays at a batch and context, whatever its length.

    The parameters are those of a dense draft in the target's weight format, spread like it, whose step does nothing but
    read and multiply its weights.
    """
    target = asked.passes.target
    hardware = required_hardware(target)
    drafts = []
    for gamma in asked.gammas:
        outcome = asked.at(batch, context, gamma)
        steps = len(asked.passes.drafter.steps(outcome.tree)) or gamma
        ratio = largest_draft_ratio(
            expected=outcome.expected_tokens, gamma=steps, verify_ratio=outcome.times.verify_ratio
        )
        drafts.append((ratio, -gamma, outcome.times.plain_s))
    ratio, lost, plain_s = max(drafts)
    ratio = max(0.0, ratio)
    seconds = ratio * plain_s
    stored = target.formats.weights
    read = seconds * hardware.memory_bandwidth_bytes_per_s / stored.bytes_per_element
    multiplied = seconds * hardware.peak(target.formats.multiplied_as("mlp")) / (2 * batch)
    ranks = target.parallel.tensor * target.parallel.data
    return LargestDraft(
        gamma=-lost,
        draft_ratio=ratio,
        step_s=seconds,
        parameters=math.floor(min(read * target.parallel.tensor, multiplied * ranks)),
        weight_format=stored.name,
    )
