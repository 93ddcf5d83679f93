"""Where speculation begins and stops to pay: over the batch, and over the size of the draft."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvcalc.core.reports.speculative import BatchLimit, LargestDraft
from kvcalc.cost.speculation import largest_draft_ratio
from kvcalc.plan.speculative.memory import largest_fitting_batch
from kvcalc.plan.steps import required_hardware

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.reports.speculative import Pays
    from kvcalc.plan.speculative.passes import Kind, Speculation

__all__ = ["MOST_BATCH", "batch_limit", "largest_draft"]

MOST_BATCH = 2**17
# Batches tried one after another grow by a quarter; between two of them the crossing is bisected.
_GROWTH = 1.25


def batch_limit(asked: Speculation, context: int, gamma: int | None) -> BatchLimit:
    """Return from which to which batch speculation pays, of batches up to `MOST_BATCH`.

    Args:
        asked: target, draft and acceptance.
        context: tokens attended.
        gamma: the length of the draft; none for the best at each batch.
    """
    first, last = _paying(asked, context, gamma, "latency_s")
    serial_first, serial_last = _paying(asked, context, gamma, "serial_s")
    tree = asked.asked_for(last or first or 1, context, gamma).tree
    passes = asked.passes
    return BatchLimit(
        context=context,
        gamma=gamma,
        first_batch=first,
        break_even_batch=last,
        pays=_words(first, last),
        serial_first_batch=serial_first,
        serial_break_even_batch=serial_last,
        serial_pays=_words(serial_first, serial_last),
        largest_fitting_batch=largest_fitting_batch(passes.target, passes.drafter, tree, context=context),
    )


def _paying(asked: Speculation, context: int, gamma: int | None, kind: Kind) -> tuple[int | None, int | None]:
    """Return the smallest and the largest batch at which it pays; none for neither, and for the second at any batch."""
    gammas = asked.gammas if gamma is None else (gamma,)

    def pays(batch: int) -> bool:
        return any(asked.at(batch, context, length, kind=kind).speedup > 1 for length in gammas)

    batches = _batches()
    paying = [place for place, batch in enumerate(batches) if pays(batch)]
    if not paying:
        return None, None
    start, end = paying[0], paying[-1]
    first = _crossing(pays, batches[start - 1], batches[start]) if start else batches[0]
    if end == len(batches) - 1:
        return first, None
    return first, _crossing(lambda batch: not pays(batch), batches[end], batches[end + 1]) - 1


def _words(first: int | None, last: int | None) -> Pays:
    if first is None:
        return "never"
    if first == 1:
        return "at every batch" if last is None else "up to a batch"
    return "from a batch on" if last is None else "between two batches"


def _batches() -> list[int]:
    found = [1]
    while found[-1] < MOST_BATCH:
        found.append(min(MOST_BATCH, max(found[-1] + 1, math.floor(found[-1] * _GROWTH))))
    return found


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
    found = []
    for gamma in asked.gammas:
        outcome = asked.at(batch, context, gamma)
        steps = len(asked.passes.drafter.steps(outcome.tree)) or gamma
        ratio = largest_draft_ratio(
            expected=outcome.expected_tokens, gamma=steps, verify_ratio=outcome.times.verify_ratio
        )
        found.append((ratio, -gamma, outcome.times.plain_s))
    ratio, lost, plain_s = max(found)
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
