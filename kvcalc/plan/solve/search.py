"""Searches for the unknown: each ends at the edge of the values that hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.search import largest
from kvcalc.plan.arrangements import candidates
from kvcalc.plan.decode import decode_row
from kvcalc.plan.economics import price_per_hour_usd
from kvcalc.plan.solve.question import MAX_BYTES_PER_S, Solution, Trial
from kvcalc.plan.steps import required_hardware

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.solve.question import Question

__all__ = ["SOLVERS"]

# Where searches stop: no cache holds so many sequences or tokens.
_MAX_BATCH = 2**40
_MAX_CONTEXT = 10**9
_MIN_BYTES_PER_S = 1.0
# How far apart the two ends of a searched rate may lie, and a step below an answer that must fail.
_MIN_RANGE = 1e-12
_MIN_STEP = 1e-9


def _solve_batch(start: Trial, question: Question) -> Solution:
    """The largest batch: memory and the speed of a sequence fall with it, what all do together and its price rise."""

    def at(size: int) -> Trial:
        return replace(start, batch=size)

    ends = ("memory_bytes", "tokens_per_s_per_sequence", "ttft_s")

    def upper(size: int) -> bool:
        return all(check.holds for check in question.checks(at(size)) if check.quantity in ends)

    size = largest(upper, _MAX_BATCH)
    if size == 0:
        return Solution(answer=None, trial=at(1), beyond=None)
    if size == _MAX_BATCH:
        return Solution(answer=None, trial=at(1), beyond=None, stop="nothing bounds the batch")
    answer = size if question.holds(at(size)) else None
    return Solution(answer=answer, trial=at(size), beyond=at(size + 1))


def _solve_context(start: Trial, question: Question) -> Solution:
    """The longest context, up to the model's limit or the max-model-len that was asked for."""
    known = start.deployment.options.max_model_len or start.deployment.model.context_limit
    limit = known or _MAX_CONTEXT

    def at(tokens: int) -> Trial:
        return replace(start, context=tokens)

    tokens = _longest(lambda length: question.holds(at(length)), limit, start.deployment)
    if tokens == 0:
        return Solution(answer=None, trial=at(1), beyond=None)
    if tokens == limit and known is None:
        return Solution(answer=None, trial=start, beyond=None, stop="nothing bounds the context")
    if tokens == limit:
        return Solution(answer=tokens, trial=at(tokens), beyond=None, stop="context_limit")
    return Solution(answer=tokens, trial=at(tokens), beyond=at(tokens + 1))


def _longest(holds: Callable[[int], bool], limit: int, deployment: Deployment) -> int:
    """Return the largest context for which something holds.

    Chunks and compressed entries come in periods, inside which costs rise and at whose end they fall back a little: the
    last period is found by its cheapest place, then the place in it.
    """
    bends = [mixer.bends for mixer in deployment.model.mixers]
    chunks = any(bend.restart is not None for bend in bends)
    period = max((bend.period for bend in bends), default=1)
    first = 1 if chunks else 0
    if period == 1:
        return largest(holds, limit)
    last = largest(lambda number: holds(min(limit, number * period + first)), limit // period)
    start = max(1, last * period + first)
    places = range(start, min(limit, start + period - 1) + 1)
    if chunks:
        return largest(lambda length: holds(start - 1 + length), len(places)) + start - 1 if holds(start) else 0
    return next((tokens for tokens in reversed(places) if holds(tokens)), 0)


def _solve_gpus(start: Trial, question: Question) -> Solution:
    """The fewest GPUs, over the ways to spread the model that `fit` tries."""
    # the arrangements on as many GPUs, and those on fewer, that came nearest
    before: Trial | None = None
    fewer: Trial | None = None
    trial = start
    untried = ""  # why none of the numbers of GPUs after the last that was tried could be
    for parallel in candidates(start.deployment):
        trial = replace(start, deployment=replace(start.deployment, parallel=parallel))
        try:
            met = question.holds(trial)
        except UnsupportedError as error:
            if parallel.gpus == 1:
                raise
            untried = untried or error.message
            continue
        untried = ""
        if before is not None and before.deployment.parallel.gpus < parallel.gpus:
            fewer = before
        if met:
            stop = "" if fewer is not None else "no model runs on fewer"
            return Solution(answer=parallel.gpus, trial=trial, beyond=fewer, stop=stop)
        before = _closer(before, trial, question)
    return Solution(answer=None, trial=before or trial, beyond=None, stop=untried)


def _closer(one: Trial | None, other: Trial, question: Question) -> Trial:
    """Return the arrangement on more GPUs, or the one that fails less on as many."""
    if one is None or other.deployment.parallel.gpus > one.deployment.parallel.gpus:
        return other

    def failures(trial: Trial) -> int:
        return sum(not check.holds for check in question.checks(trial))

    return other if failures(other) < failures(one) else one


def _solve_bandwidth(start: Trial, question: Question) -> Solution:
    """The least memory bandwidth at which the targets are met, whether or not the batch fits."""
    if not question.targets.given:
        raise InputError("a bandwidth is bounded by a speed", hint="give --tokens-per-s, --ttft or another target")

    def at(rate: float) -> Trial:
        hardware = replace(required_hardware(start.deployment), memory_bandwidth_bytes_per_s=rate)
        return replace(start, deployment=replace(start.deployment, hardware=hardware))

    low, high = _MIN_BYTES_PER_S, MAX_BYTES_PER_S
    if not question.holds(at(high)):
        return Solution(answer=None, trial=at(high), beyond=None)
    if question.holds(at(low)):
        return Solution(answer=None, trial=at(low), beyond=None, stop="any bandwidth is enough")
    while high / low > 1 + _MIN_RANGE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if question.holds(at(middle)) else (middle, high)
    return Solution(answer=high, trial=at(high), beyond=at(low))


def _solve_price(start: Trial, question: Question) -> Solution:
    """The most that a GPU-hour may cost for a million tokens to cost what they may."""
    target = question.targets.usd_per_million_tokens
    if target is None:
        raise InputError("a price needs a target for the cost per 1M tokens", hint="give --usd-per-million-tokens")

    def at(price: float) -> Trial:
        hardware = replace(required_hardware(start.deployment), price_per_hour_usd=price)
        return replace(start, deployment=replace(start.deployment, hardware=hardware))

    speed = decode_row(start.deployment, batch=start.batch, context=start.context).tokens_per_s
    gpus = start.deployment.parallel.gpus
    price = price_per_hour_usd(usd_per_million_tokens=target, gpus=gpus, tokens_per_s=speed) * (1 - _MIN_RANGE)
    answer = price if question.holds(at(price)) else None
    return Solution(answer=answer, trial=at(price), beyond=at(price * (1 + _MIN_STEP)))


def _solve_acceptance(start: Trial, question: Question) -> Solution:
    """The least acceptance at which speculation gains what it should; break-even where no speed-up is asked for."""

    def at(rate: float) -> Trial:
        return replace(start, acceptance=rate)

    if not question.holds(at(1.0)):
        return Solution(answer=None, trial=at(1.0), beyond=None)
    low, high = 0.0, 1.0
    if question.holds(at(low)):
        return Solution(answer=low, trial=at(low), beyond=None, stop="any acceptance is enough")
    while high - low > _MIN_RANGE:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if question.holds(at(middle)) else (middle, high)
    return Solution(answer=high, trial=at(high), beyond=at(low))


SOLVERS: dict[str, Callable[[Trial, Question], Solution]] = {
    "batch": _solve_batch,
    "context": _solve_context,
    "gpus": _solve_gpus,
    "bandwidth": _solve_bandwidth,
    "price": _solve_price,
    "acceptance": _solve_acceptance,
}
