"""A whole plan: candidates ranked, the best of each card confirmed, and why the others are not among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.reports.plan import PlanCounts
from kvcalc.simulate.planner.apart import Pair, pairs_of
from kvcalc.simulate.planner.confirmed import confirm, confirm_apart
from kvcalc.simulate.planner.options import option_of, ranked_options
from kvcalc.simulate.planner.ranked import rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvcalc.core.reports.plan import PlanOption
    from kvcalc.simulate.planner.candidates import Candidate, Demand, Ranking, Variant
    from kvcalc.simulate.planner.confirmed import Confirmed
    from kvcalc.simulate.planner.runs import Bodies

__all__ = ["MAX_SIMULATED", "Asked", "Outcome", "Planned", "in_order", "planned", "simulated"]

MAX_SIMULATED = 50
# Candidates of a card that the simulator is asked about beyond those that are wanted, where some do not hold.
_MORE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Candidates, or pairs of them, that the simulator is asked about one after the other, until one of them holds.

    Args:
        number: their place among those that are asked about.
        candidates: one, or several of a card; pairs where prefill and decode run on replicas of their own.
        demand: what a plan must do.
        bodies: the requests.
        slo: the limits as text.
    """

    number: int
    candidates: tuple[Candidate, ...] | tuple[Pair, ...]
    demand: Demand
    bodies: Bodies
    slo: str


class Outcome(NamedTuple):
    """The end of a simulation.

    Args:
        place: of the candidate that it is about, among those asked about.
        confirmed: it, where it holds.
        why: why none does.
    """

    place: int
    confirmed: Confirmed | None
    why: str = ""


class Confirming(Protocol):
    """Confirms candidates, in this process or in others: `kvcalc.workers.run_tasks`."""

    def __call__(
        self, function: Callable[[Asked], Outcome], tasks: Sequence[Asked], /
    ) -> Iterable[tuple[Asked, Outcome]]:
        """Yield each task with what the function returns of it, in any order."""


def in_order(function: Callable[[Asked], Outcome], tasks: Sequence[Asked]) -> Iterable[tuple[Asked, Outcome]]:
    """Yield each task with what a function returns of it, one after the other."""
    return ((task, function(task)) for task in tasks)


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
    confirming: Confirming = in_order,
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
        confirming: confirms candidates; the answer is the same whatever does.
    """
    ranking = rank(variants, demand)
    cards = list(dict.fromkeys(_card(variant.deployment.hardware) for variant in variants))
    own = {card: [one for one in ranking.candidates if _card(one.deployment.hardware) == card] for card in cards}
    simulations = _Simulations(demand, bodies, slo, confirming, progress)
    by_card = simulations.confirmed({card: _worth_asking(own[card])[: each + _MORE] for card in cards}, each)
    if apart:
        simulations.split(by_card, own)
    reasons = {}
    for card in (card for card in cards if not by_card[card]):
        unasked = f"none of its layouts was simulated: a plan simulates {MAX_SIMULATED} at most" if own[card] else ""
        reasons[card] = simulations.failed.get(card) or unasked or _reason(card, ranking, demand)
    candidates = [one for card in cards for one in by_card[card]]
    options = [option_of(one, demand, api_usd_per_million_tokens=api_usd_per_million_tokens) for one in candidates]
    ranked = ranked_options(options)
    behind = {_key(option): one for option, one in zip(options, candidates, strict=True)}
    return Planned(
        options=ranked,
        confirmed=tuple(behind[_key(option)] for option in ranked),
        counts=PlanCounts(
            candidates=ranking.tried,
            refused=ranking.refused,
            pruned=ranking.pruned,
            ranked=ranking.ranked,
            simulated=simulations.made,
        ),
        reasons=reasons,
    )


# A confirmed candidate, or why it is not.
_Result = tuple["Confirmed | None", str]


class _Simulations:
    """Candidates that the simulator has been asked about.

    Args:
        demand: what a plan must do.
        bodies: the requests.
        slo: the limits as text.
        confirming: confirms candidates.
        progress: is told how many were simulated.
    """

    def __init__(
        self,
        demand: Demand,
        bodies: Bodies,
        slo: str,
        confirming: Confirming,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._demand, self._bodies, self._slo = demand, bodies, slo
        self._confirming, self._progress = confirming, progress
        self.made = 0
        self.failed: dict[str, str] = {}

    def confirmed(self, candidates: Mapping[str, Sequence[Candidate]], each: int) -> dict[str, list[Confirmed]]:
        """Return the first so many candidates of each card that hold, in the order that they are in.

        As many as are wanted are simulated at once, then as many further ones as did not hold.
        """
        by_card: dict[str, list[Confirmed]] = {card: [] for card in candidates}
        left = {card: list(own) for card, own in candidates.items()}
        while True:
            asked: list[tuple[str, Candidate]] = []
            for card, own in left.items():
                wanted = min(each - len(by_card[card]), MAX_SIMULATED - self.made - len(asked))
                asked += [(card, candidate) for candidate in own[:wanted]]
                del own[: max(0, wanted)]
            if not asked:
                return by_card
            for (card, _), (confirmed, why) in zip(asked, self._run([(one,) for _, one in asked]), strict=True):
                if confirmed is None:
                    self.failed[card] = why
                else:
                    by_card[card].append(confirmed)

    def split(self, by_card: Mapping[str, list[Confirmed]], ranked: Mapping[str, Sequence[Candidate]]) -> None:
        """Add for each card that decodes the first pair that holds, with prefill on replicas of their own.

        Args:
            by_card: the confirmed candidates of each card, to which pairs are added.
            ranked: all candidates of each card.
        """
        pool = [one for own in ranked.values() for one in own]
        pairs = {
            card: pairs_of(own, pool, (one.candidate for one in by_card[card]), self._demand)
            for card, own in ranked.items()
        }
        cards = [card for card, each in pairs.items() if each][: MAX_SIMULATED - self.made]
        for card, (confirmed, _) in zip(cards, self._run([pairs[card] for card in cards]), strict=True):
            by_card[card] += [] if confirmed is None else [confirmed]

    def _run(self, candidates: Sequence[tuple[Candidate, ...] | tuple[Pair, ...]]) -> list[_Result]:
        """Return each candidate confirmed, or the reason that it is not, in their order."""
        tasks = [
            Asked(number=number, candidates=_to_send(each), demand=self._demand, bodies=self._bodies, slo=self._slo)
            for number, each in enumerate(candidates)
        ]
        results: dict[int, _Result] = {}
        for task, (index, confirmed, why) in self._confirming(simulated, tasks):
            self.made += 1
            if self._progress is not None:
                self._progress(self.made, 0)
            whole = confirmed and _with_steady(confirmed, candidates[task.number][index])
            results[task.number] = whole, why
        return [results[number] for number in range(len(tasks))]


def simulated(asked: Asked) -> Outcome:
    """Return the first candidate that holds in the simulator, or why none does."""
    demand, last = asked.demand, Outcome(0, None)
    candidates: tuple[Candidate | Pair, ...] = asked.candidates
    for index, candidate in enumerate(candidates):
        try:
            if isinstance(candidate, Pair):
                made = confirm_apart(candidate, demand, asked.bodies, slo=asked.slo)
            else:
                made = confirm(candidate, demand, asked.bodies, slo=asked.slo)
        except (InputError, UnsupportedError) as error:
            last = Outcome(index, None, error.what)
            continue
        if made is not None and made.holds:
            return Outcome(index, made)
        broken = f"the simulator's load breaks the limits on the {demand.max_gpus:,} GPUs of --gpus-at-most"
        last = Outcome(index, None, broken)
    return last


def _to_send(candidates: tuple[Candidate, ...] | tuple[Pair, ...]) -> tuple[Any, ...]:
    """Return candidates without their steady states: no simulation asks for them, and they stay in this process."""

    def bare(one: Candidate | Pair) -> Candidate | Pair:
        return (
            Pair(*(replace(part, steady=None) for part in one)) if isinstance(one, Pair) else replace(one, steady=None)
        )

    return tuple(map(bare, candidates))


def _with_steady(confirmed: Confirmed, asked: Candidate | Pair) -> Confirmed:
    """Put the candidates that were asked about, with their steady states, back into a result."""
    if isinstance(asked, Pair):
        return replace(confirmed, candidate=asked.decode, prefill=asked.prefill)
    return replace(confirmed, candidate=asked)


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
        option.prefill and (option.prefill.gpu, option.prefill.command),
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
