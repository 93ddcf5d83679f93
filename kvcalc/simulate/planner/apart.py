"""Prefill and decode on replicas of their own: how many of each, and which layouts and cards are tried as a pair."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.plan.formats import format_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.simulate.planner.candidates import Candidate, Demand

__all__ = ["Pair", "pairs_of", "replicas_apart"]

# Pairs of a card that decodes, the cheapest by the estimate, that the simulator is asked about until one holds.
_PAIRS = 3


class Pair(NamedTuple):
    """Layouts of engines that share the work on a request.

    Args:
        decode: the layout of those that decode.
        prefill: the layout of those that prefill, on the same card or another.
    """

    decode: Candidate
    prefill: Candidate


def replicas_apart(pair: Pair, demand: Demand) -> tuple[int, int]:
    """Return the first numbers of replicas that prefill and that decode, those to spare left out.

    They follow from the time of a prompt alone, and from that of a step that only decodes.
    """
    full = demand.traffic.rate_per_s / demand.load_share
    state = pair.decode.state
    answers_per_s = state.running / (demand.traffic.output_tokens * state.decode_s)
    return max(1, math.ceil(full * pair.prefill.state.prefill_s)), max(1, math.ceil(full / answers_per_s))


def pairs_of(
    own: Sequence[Candidate], pool: Sequence[Candidate], confirmed: Iterable[Candidate], demand: Demand
) -> tuple[Pair, ...]:
    """Return pairs to try with the decoding engines on one card, cheapest by the estimate first.

    The price of a pair is that of its parts, so that the cheapest are among the pairs of the cheapest parts. Layouts
    that hold without a split are tried as both parts, too.

    Args:
        own: layouts of the card.
        pool: layouts of all cards.
        confirmed: layouts of the card that hold without a split.
        demand: what a plan must do.
    """

    def costs(pair: Pair) -> tuple[float, ...]:
        prefills, decodes = (replicas + demand.spare for replicas in replicas_apart(pair, demand))
        parts = pair.prefill.cost(prefills), pair.decode.cost(decodes)
        is_bound = any(one.variant.calibration is None for one in pair)
        return is_bound, sum(usd for usd, _ in parts), sum(gpus for _, gpus in parts), pair.decode.state.decode_s

    pairs = [Pair(one, one) for one in confirmed if _can_split(one)]
    decoding = sorted((one for one in own if _can_split(one)), key=lambda one: costs(Pair(one, one)))
    for formats in dict.fromkeys(map(_formats, decoding)):
        same = [one for one in decoding if _formats(one) == formats]
        prefilling = [one for one in pool if _can_split(one) and _formats(one) == formats and _is_in_time(one, demand)]
        if not prefilling:
            continue
        best = sorted(prefilling, key=lambda one: costs(Pair(same[0], one)))[:_PAIRS]
        same.sort(key=lambda one: costs(Pair(one, best[0])))
        pairs += [Pair(*both) for both in product(same[:_PAIRS], best)]
    apart = {(id(pair.decode), id(pair.prefill)): pair for pair in pairs}
    ordered = sorted(apart.values(), key=costs)
    fitting = [pair for pair in ordered if costs(pair)[2] <= demand.max_gpus]
    return tuple(pair for index, pair in enumerate(fitting) if index < _PAIRS or pair.decode is pair.prefill)


def _formats(candidate: Candidate) -> tuple[str, str]:
    """Return the formats that both parts must have: those of the weights and of the cache that is sent."""
    names = format_names(candidate.deployment.formats)
    return names.weights, names.kv


def _can_split(candidate: Candidate) -> bool:
    """Whether prefill and decode of a candidate can be simulated on replicas of their own."""
    served = candidate.deployment.served_by == "vllm"
    return served and candidate.copies == 1 and candidate.variant.drafting is None


def _is_in_time(candidate: Candidate, demand: Demand) -> bool:
    """Whether a prompt that waits for nothing has its first token within the limits of TTFT."""
    traffic = demand.traffic
    return all(
        candidate.state.prefill_s * traffic.prompts[limit.statistic] / traffic.prompt_tokens <= limit.most_s
        for limit in demand.limits
        if limit.latency == "ttft"
    )
