"""A plan in words: the recommendation, why a card's options are not the first, and what was taken for granted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.reports.simulate import limit_text
from kvcalc.core.units import counted, number_text, request_rate, seconds_text, usd_text
from kvcalc.plan.formats import format_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.reports.plan import PlanOption, Role
    from kvcalc.simulate.planner.candidates import Demand, Variant
    from kvcalc.simulate.planner.planned import Planned

__all__ = ["answer_text", "layout_text", "plan_notes", "why_lines"]


def layout_text(option: PlanOption | Role) -> str:
    """Return the spread of a replica: ``TP 2``."""
    return " ".join(f"{name} {size}" for name, size in option.parallel_sizes.items()) or "TP 1"


def answer_text(outcome: Planned, demand: Demand) -> str:
    """Return the recommendation, or why there is none, in one line."""
    if not outcome.options:
        cards = list(outcome.reasons)
        named = cards[0] if len(cards) == 1 else f"{', '.join(cards[:-1])} or {cards[-1]}"
        reasons = list(dict.fromkeys(outcome.reasons.values()))
        each = "; ".join(f"{card}: {reason}" for card, reason in outcome.reasons.items())
        return f"no {named} can: {reasons[0] if len(reasons) == 1 else each}"
    first = outcome.options[0]
    usd = first.usd_per_month
    price = "" if usd is None else f", {usd_text(usd)} a month"
    replicas = f"{counted(first.replicas, 'replica')} of {first.engine} at {layout_text(first)}"
    if first.prefill is not None:
        replicas += f" to decode and {first.prefill.replicas} at {layout_text(first.prefill)} to prefill"
    spare = f", {demand.spare} of them to spare" if demand.spare else ""
    at_least = "" if first.binds else "at least "
    breaks = "" if first.holds_at_high_end is not False else " At the interval's high end a limit breaks."
    return (
        f"Rent {first.rented}: {replicas}{spare}{price}. It carries "
        f"{at_least}{request_rate(first.capacity_requests_per_s)} within the limits, "
        f"{at_least}{first.margin:.0%} of it free.{breaks}"
    )


def why_lines(card: str, outcome: Planned) -> tuple[str, ...]:
    """Say why the options of a card are not the first.

    Raises:
        InputError: a card that the plan did not look at.
    """
    wanted = card.strip().lower()
    if wanted in {name.lower() for name in outcome.reasons}:
        return tuple(f"{name} cannot: {reason}" for name, reason in outcome.reasons.items() if name.lower() == wanted)
    own = [option for option in outcome.options if option.gpu.lower() == wanted]
    if not own:
        cards = dict.fromkeys([*(option.gpu for option in outcome.options), *outcome.reasons])
        raise InputError(f"{card} is not among the cards", hint=f"cards: {', '.join(cards)}", parameter="why")
    first, best = outcome.options[0], own[0]
    if best is first:
        return (f"{best.gpu} is the first",)
    lines = []
    if bool(best.calibration) != bool(first.calibration):
        lines.append(f"{best.gpu} has no calibration: its times are bounds, which promise too much to be put first")
    if best.usd_per_hour is not None and first.usd_per_hour is not None and best.usd_per_hour > first.usd_per_hour:
        more = best.usd_per_hour / first.usd_per_hour - 1
        lines.append(f"{best.gpu} costs {usd_text(best.usd_per_hour)} an hour, {more:.0%} more than {first.gpu}")
    elif best.gpus > first.gpus:
        lines.append(f"{best.rented} are needed, where {first.rented} do")
    binds = f"; {limit_text(best.binds)} binds" if best.binds else ""
    each, theirs = (option.capacity_requests_per_s / option.gpus for option in (best, first))
    lines.append(
        f"a {best.gpu} carries {request_rate(each)} at {layout_text(best)}, a {first.gpu} "
        f"{number_text(theirs)} at {layout_text(first)}{binds}"
    )
    if best.tpot_p95_s < first.tpot_p95_s:
        lines.append(
            f"it is faster: TPOT p95 {seconds_text(best.tpot_p95_s)} instead of {seconds_text(first.tpot_p95_s)}"
        )
    return tuple(lines)


def plan_notes(variants: Sequence[Variant], demand: Demand, outcome: Planned) -> tuple[str, ...]:
    """Return notes on what was taken for granted."""
    notes = []
    if all(variant.price is None for variant in variants):
        notes.append("no price is given: options are ranked by GPUs; --price h100-sxm=2.5 ranks them by dollars")
    bounds = {option.gpu for option in outcome.options if not option.calibration}
    notes += [f"{card}: no calibration: its times are bounds, ranked after the estimates" for card in sorted(bounds)]
    notes.append(
        f"loaded to at most {demand.load_share:.0%} of the capacity; simulated with vLLM's scheduling, on steps by the "
        "calibration named"
    )
    notes += _multiplied(variants)
    if demand.traffic.hit_tokens:
        share = demand.traffic.hit_tokens / demand.traffic.prompt_tokens
        notes.append(f"{share:.0%} of each prompt is taken to be shared by all")
    return tuple(notes)


def _multiplied(variants: Sequence[Variant]) -> list[str]:
    """Name the formats in which engines multiply on some cards, where other questions take another for granted."""
    cards: dict[tuple[str, str, str], list[str]] = {}
    for variant in variants:
        placed = variant.deployment
        if placed.asked.activations is not None and placed.hardware is not None:
            kind = (placed.served_by, format_names(placed.formats).weights, placed.asked.activations)
            named = cards.setdefault(kind, [])
            named += [placed.hardware.name] * (placed.hardware.name not in named)
    return [
        f"started so, {engine} multiplies weights in {weights} by activations in {activations} on {', '.join(named)}; "
        f"decode and simulate do so with --activations {activations}"
        for (engine, weights, activations), named in cards.items()
    ]
