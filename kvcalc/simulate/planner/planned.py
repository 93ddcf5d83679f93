"""A whole plan: candidates ranked, the best of each card confirmed, and why the others are not among them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.reports.plan import PlanCounts
from kvcalc.simulate.planner.confirmed import confirm, confirm_apart
from kvcalc.simulate.planner.options import option_of, ranked_options
from kvcalc.simulate.planner.ranked import rank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.reports.plan import PlanOption
    from kvcalc.simulate.planner.candidates import Candidate, Demand, Ranking, Variant
    from kvcalc.simulate.planner.confirmed import Bodies, Confirmed

__all__ = ["MAX_SIMULATED", "Planned", "planned"]

MAX_SIMULATED = 50
# Candidates of a card that the simulator is asked about beyond those that are wanted, where some do not hold.
_MORE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The end of a plan.

    Args:
        options: options in order.
        confirmed: the confirmed candidate of each.
        counts: how many deployments were looked at.
        reasons: for each card without an option, why.
    """

    options: tuple[PlanOption, ...]
    confirmed: tuple[Confirmed, ...]
    counts: PlanCounts
    reasons: dict[str, str]


def planned(
    variants: Sequence[Variant],
    demand: Demand,
    bodies: Bodies,
    *,
    slo: str,
    each: int,
    apart: bool = False,
    api_usd_per_million_tokens: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Planned:
    """Return the options that meet a demand.

    Args:
        variants: cards, formats and engines.
        demand: what a plan must do.
        bodies: the requests.
        slo: the limits as text.
        each: candidates of each card that are confirmed.
        apart: whether prefill and decode on replicas of their own are looked at too.
        api_usd_per_million_tokens: price of an API that options are compared with.
        progress: is told how many candidates were simulated.
    """
    ranking = rank(variants, demand)
    cards = list(dict.fromkeys(_card(variant.deployment.hardware) for variant in variants))
    simulated = 0
    found: list[Confirmed] = []
    reasons: dict[str, str] = {}
    for card in cards:
        own = [one for one in ranking.candidates if _card(one.deployment.hardware) == card]
        held, failed = 0, ""
        for candidate in _worth_asking(own)[: each + _MORE]:
            if held == each or simulated == MAX_SIMULATED:
                break
            simulated += 1
            if progress is not None:
                progress(simulated, 0)
            try:
                confirmed = confirm(candidate, demand, bodies, slo=slo)
            except (InputError, UnsupportedError) as error:
                failed = error.what
                continue
            if confirmed is None or not confirmed.holds:
                failed = f"the simulator's load breaks the limits on the {demand.max_gpus:,} GPUs of --gpus-at-most"
                continue
            held += 1
            found.append(confirmed)
        if apart and held and simulated < MAX_SIMULATED:
            simulated += 1
            found += _apart(found[-held:], demand, bodies, slo)
        if not held:
            unasked = f"none of its layouts was simulated: a plan simulates {MAX_SIMULATED} at most" if own else ""
            reasons[card] = failed or unasked or _reason(card, ranking, demand)
    options = [option_of(one, demand, api_usd_per_million_tokens=api_usd_per_million_tokens) for one in found]
    ranked = ranked_options(options)
    behind = {_key(option): one for option, one in zip(options, found, strict=True)}
    return Planned(
        options=ranked,
        confirmed=tuple(behind[_key(option)] for option in ranked),
        counts=PlanCounts(
            candidates=ranking.tried,
            refused=ranking.refused,
            pruned=ranking.pruned,
            ranked=ranking.ranked,
            simulated=simulated,
        ),
        reasons=reasons,
    )


def _apart(confirmed: Sequence[Confirmed], demand: Demand, bodies: Bodies, slo: str) -> list[Confirmed]:
    """Return the first confirmed candidate that can, with prefill and decode on replicas of their own."""
    for one in confirmed:
        candidate = one.candidate
        if candidate.copies > 1 or candidate.deployment.served_by != "vllm" or candidate.variant.drafting is not None:
            continue
        with suppress(InputError, UnsupportedError):
            made = confirm_apart(candidate, demand, bodies, slo=slo)
            return [made] if made is not None and made.holds else []
    return []


def _card(hardware: object) -> str:
    return str(getattr(hardware, "name", ""))


def _key(option: PlanOption) -> tuple[object, ...]:
    return (
        option.gpu,
        option.engine,
        option.weights,
        option.kv_dtype,
        option.gamma,
        option.command,
        option.expert_parallel,
    )


def _worth_asking(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates in order without those that cost more than an earlier one and decode no faster."""
    kept: list[Candidate] = []
    for candidate in candidates:
        beaten = any(
            other.cost() <= candidate.cost() and other.alone_s <= candidate.alone_s and other.cost() != candidate.cost()
            for other in kept
        )
        if not beaten:
            kept.append(candidate)
    return kept


def _reason(card: str, ranking: Ranking, demand: Demand) -> str:
    """Say why no layout of a card can.

    The fewest GPUs that the load needs come first: a bound is the reason only where it rules every layout out that the
    engine starts, and what the engine says of the most GPUs only where it starts none.
    """
    if card in ranking.short:
        return min(ranking.short[card])[1]
    if card in ranking.bounds:
        return ranking.bounds[card][1]
    out = ranking.why.get(card, [])
    if not out:
        return f"no layout of at most {demand.max_gpus:,} GPUs"
    return max(out, key=lambda each: each[0])[1]
