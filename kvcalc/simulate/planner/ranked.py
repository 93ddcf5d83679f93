"""Every layout of every card, estimated: the limits it is best started with, and the replicas that the load needs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.search import largest
from kvcalc.core.units import counted
from kvcalc.plan.planner.bounds import least_times
from kvcalc.plan.planner.space import across, layouts, limits_of
from kvcalc.plan.room import room
from kvcalc.simulate.planner.candidates import Candidate, Ranking
from kvcalc.simulate.planner.steady import Drafts, Steady, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvcalc.core.workload import Parallel
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.planner.space import Limits
    from kvcalc.plan.planner.traffic import Traffic
    from kvcalc.plan.room import Room
    from kvcalc.simulate.planner.candidates import Demand, Variant
    from kvcalc.simulate.planner.steady import State

__all__ = ["rank"]


def rank(variants: Sequence[Variant], demand: Demand) -> Ranking:
    """Return every layout that the load could run on, cheapest first.

    Each layout is estimated with the engine's own limits first; others are tried where it is near the cheapest of its
    card, or cannot do without.

    Args:
        variants: cards, formats and engines.
        demand: what a plan must do.
    """
    ranking = Ranking()
    first: list[tuple[_Layout, Candidate | None]] = []
    cheapest: dict[str, float] = {}
    for variant in variants:
        for each in _of(variant, demand, ranking, cheapest):
            candidate = each.best(each.given[:1])
            first.append((each, candidate))
            if candidate is not None:
                cost = candidate.cost()[0]
                cheapest[each.card] = min(cost, cheapest.get(each.card, cost))
    for each, own in first:
        candidate = own
        if own is None or own.cost()[0] <= _NEAR * cheapest[each.card]:
            candidate = each.best(each.given)
        ranking.ranked += len(each.given)
        if candidate is None:
            ranking.short.setdefault(each.card, []).append(each.short())
        else:
            ranking.candidates.append(candidate)
    ranking.candidates.sort(key=_order)
    return ranking


def _order(candidate: Candidate) -> tuple[float, ...]:
    """Return the place of a candidate: estimates before bounds, which promise too much, and cheap before dear."""
    is_bound = candidate.variant.calibration is None
    return is_bound, *candidate.cost(), candidate.deployment.parallel.gpus, candidate.state.tpot_s


def _of(variant: Variant, demand: Demand, ranking: Ranking, cheapest: Mapping[str, float]) -> Iterator[_Layout]:
    """Yield a variant's layouts that its engine starts with and that no bound rules out."""
    base = variant.deployment
    hardware, engine = base.hardware, base.served_by
    assert hardware is not None
    options = base.options
    given = limits_of(engine, pass_tokens=options.max_num_batched_tokens, sequences=options.max_num_seqs)
    for parallel in layouts(base.model, hardware, engine, max_gpus=demand.max_gpus):
        ranking.tried += len(given)
        if variant.cost(parallel.gpus * (1 + demand.spare)) > _FAR * cheapest.get(hardware.name, math.inf):
            ranking.pruned += len(given)  # one replica alone costs many times the cheapest
            continue
        deployment = replace(base, parallel=parallel, hardware=across(hardware, parallel))
        try:
            here = _started(variant.with_draft(deployment), given[0], demand)
            reason = here.reason(context=min(demand.traffic.longest, here.max_model_len), batch=1)
        except (InputError, UnsupportedError) as error:
            reason = error.what
        if reason:
            ranking.refused += len(given)
            ranking.out(hardware.name, parallel, reason)
            continue
        times, reason = _below_bound(variant, deployment, demand)
        if reason:
            ranking.pruned += len(given)
            ranking.bounds[hardware.name] = min((times, reason), ranking.bounds.get(hardware.name, (times, reason)))
            continue
        yield _Layout(variant, deployment, here, given, demand)


def with_limits(deployment: Deployment, limits: Limits, demand: Demand) -> Deployment:
    """Return a deployment whose engine is started with limits, and for the longest request."""
    options = deployment.options
    longest = options.max_model_len or _length(deployment, demand.traffic.longest)
    if deployment.served_by == "llama.cpp":
        slots = limits.sequences or 1
        made = replace(options, max_model_len=longest, parallel=slots, ctx_size=slots * longest)
    else:
        # SGLang's requests are those of all copies together
        shared = deployment.parallel.data if deployment.served_by == "sglang" else 1
        made = replace(
            options,
            max_model_len=longest,
            max_num_batched_tokens=limits.pass_tokens or options.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs if limits.sequences is None else limits.sequences * shared,
        )
    return replace(deployment, options=made)


_LENGTH_STEP = 256
_MAX_HELD = 20_000
# Running requests that speculative decoding is looked at for: with more it does not pay.
_MAX_DRAFTED = 128
# Layouts whose cost by the engine's own limits is within so much of the cheapest are tried with others.
_NEAR = 1.5
# Share of the rate that a replica must serve from which its states are looked at: near saturation more running requests
# are served at a rate that rises no more, or falls by less than a thousandth.
_CLOSE = 0.99
# Layouts of which one replica costs so many times the cheapest are not estimated.
_FAR = 8.0


def _length(deployment: Deployment, longest: int) -> int:
    """Return the longest sequence to start for: the longest request, rounded up, but no more than the model's limit."""
    limit = deployment.model.context_limit
    rounded = -(-(longest + 1) // _LENGTH_STEP) * _LENGTH_STEP
    return rounded if limit is None else min(rounded, max(limit, longest))


def _started(deployment: Deployment, limits: Limits, demand: Demand) -> Room:
    started = with_limits(deployment, limits, demand)
    return room(started, max_model_len=started.options.max_model_len or demand.traffic.longest)


def _below_bound(variant: Variant, deployment: Deployment, demand: Demand) -> tuple[float, str]:
    """Name the limit that every run of a layout breaks most, and by how many times; nothing where each can be met."""
    gamma = 0 if variant.drafting is None else variant.drafting.gamma
    bound = least_times(deployment, demand.traffic, demand.limits, tokens_per_pass=gamma + 1.0)
    at = _named(deployment.parallel)
    broken = [
        (bound.of(limit.latency, limit.statistic) / limit.most_s, f"{reason} for this model at {at}")
        for limit in demand.limits
        if (reason := bound.broken(limit.latency, limit.statistic, limit.most_s))
    ]
    return max(broken, default=(0.0, ""))


def _named(parallel: Parallel) -> str:
    sizes = {"TP": parallel.tensor, "PP": parallel.pipeline, "EP": parallel.expert, "DP": parallel.data}
    return " ".join(f"{name} {size}" for name, size in sizes.items() if size > 1 or name == "TP")


class _Layout:
    """One layout that an engine starts with, to be estimated with this and that limit.

    Args:
        variant: card, formats and engine.
        deployment: spread.
        here: its memory with the first of the limits.
        given: limits to try.
        demand: what a plan must do.
    """

    def __init__(
        self, variant: Variant, deployment: Deployment, here: Room, given: Sequence[Limits], demand: Demand
    ) -> None:
        self.variant, self.deployment, self.given = variant, deployment, given
        self._demand, self._start = demand, here.start
        pools = here.held.pools
        self._slots = here.start.pass_sequences if pools is None else pools.requests
        self._steady: dict[int, Steady] = {}
        max_running = _held(here, demand.traffic, deployment.parallel.data)
        self._held: dict[Limits | None, int] = {
            None: max_running if variant.drafting is None else min(max_running, _MAX_DRAFTED)
        }
        self._fewest_gpus: int | None = None
        self._steps: Steps | None = None
        self._drafts: Drafts | None = None

    @property
    def card(self) -> str:
        """The accelerator's name."""
        return self.deployment.hardware.name if self.deployment.hardware is not None else ""

    def short(self) -> tuple[float, str]:
        """Return the GPUs that the load needs where these are too many, and why it is out."""
        max_gpus = counted(self._demand.max_gpus, "GPU")
        by = "bound" if self.variant.calibration is None else "estimate"
        if self._fewest_gpus is None:
            return math.inf, f"no layout of at most {max_gpus} keeps the limits at any load, by the {by}"
        needed = f"the load needs at least {counted(self._fewest_gpus, 'GPU')} by the {by}"
        allowed = f"--gpus-at-most allows {self._demand.max_gpus:,}"
        return self._fewest_gpus, f"{needed}, at {_named(self.deployment.parallel)}, and {allowed}"

    def best(self, given: Sequence[Limits]) -> Candidate | None:
        """Return it with those limits under which it needs the fewest replicas; none where it cannot carry the load."""
        demand, parallel = self._demand, self.deployment.parallel
        best: Candidate | None = None
        fewest: int | None = None  # replicas, more than are allowed too
        for limits in given:
            fewer = None if fewest is None else fewest - demand.spare - 1
            if fewer == 0:
                break  # no plan has less than one replica beside those to spare
            steady = self._steady_of(limits.pass_tokens or self._start.pass_tokens)
            slots = limits.sequences or self._slots
            room = self._room_of(limits)
            least_per_s = 0.0 if fewer is None else _CLOSE * _load_of(fewer, demand) / parallel.data
            state = (
                steady.highest(demand.limits, slots=slots, cache_requests=room, least_per_s=least_per_s)
                if room
                else None
            )
            if state is None:
                continue
            replicas = _replicas(parallel.data * state.rate_per_s, demand)
            if fewest is not None and replicas >= fewest:
                continue
            fewest, gpus = replicas, replicas * parallel.gpus
            if gpus > demand.max_gpus:
                self._fewest_gpus = min(gpus, self._fewest_gpus or gpus)
                continue
            best = Candidate(
                variant=self.variant,
                deployment=with_limits(self.deployment, limits, demand),
                limits=limits,
                state=state,
                slots=slots,
                replicas=replicas,
                binds=steady.breaks(state, demand.limits, slots=slots),
                alone_s=_alone(steady, state),
                steady=steady,
            )
        return best

    def _steady_of(self, pass_tokens: int) -> Steady:
        traffic = self._demand.traffic
        if self._steps is None:
            self._steps = Steps(self.variant.timer(self.deployment), traffic.context)
            self._drafts = _drafts(self.variant, self.deployment, traffic)
        if pass_tokens not in self._steady:
            self._steady[pass_tokens] = Steady(self._steps, traffic, pass_tokens, self._drafts)
        return self._steady[pass_tokens]

    def _room_of(self, limits: Limits) -> int:
        """Return the running requests whose tokens the cache holds: llama.cpp makes its cells when it starts."""
        if self._start.engine != "llama.cpp":
            return self._held[None]
        if limits not in self._held:
            self._held[limits] = _slots_held(self.variant.with_draft(self.deployment), limits, self._demand)
        return self._held[limits]


def _alone(steady: Steady, state: State) -> float:
    """Return the time per output token of a request that runs alone."""
    return (steady.state(1) or state).tpot_s


def _held(here: Room, traffic: Traffic, copies: int) -> int:
    """Return the running requests of a copy whose tokens the cache holds, however many may run.

    It depends little on the other limits; the simulator asks the winner's own start again.
    """
    tokens = min(traffic.held_tokens, here.max_model_len)

    def holds(batch: int) -> bool:
        try:
            return here.pool.holds(here.kv_bytes, context=tokens, batch=batch)
        except InputError:  # more than the engine runs at once
            return False

    sequences = largest(holds, _MAX_HELD)
    return max(1, sequences // copies)


def _slots_held(deployment: Deployment, limits: Limits, demand: Demand) -> int:
    """Return the slots of llama.cpp if their memory is there, else none."""
    slots = limits.sequences or 1
    here = _started(deployment, limits, demand)
    return slots if not here.reason(context=here.max_model_len, batch=slots) else 0


def _replicas(capacity_per_s: float, demand: Demand) -> int:
    """Return the replicas that carry the load at no more than the share of their capacity, and those to spare."""
    return max(1, math.ceil(demand.traffic.rate_per_s / (capacity_per_s * demand.load_share))) + demand.spare


def _load_of(replicas: int, demand: Demand) -> float:
    """Return the capacity of a replica with which so many carry the load."""
    return demand.traffic.rate_per_s / (replicas * demand.load_share)


def _drafts(variant: Variant, deployment: Deployment, traffic: Traffic) -> Drafts | None:
    drafting = variant.drafting
    if drafting is None:
        return None
    model = variant.draft_on(deployment.parallel)
    return Drafts(
        gamma=drafting.gamma,
        tokens_per_pass=drafting.tokens_per_pass,
        steps=None if model is None else Steps(variant.draft_timer(model), traffic.context),
        terms=variant.round_terms(deployment),
    )
