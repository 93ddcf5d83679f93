"""The simulator's word on a candidate: the highest load of a replica, and all replicas that the load needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.reports.simulate import SERVED_RATE
from kvcalc.core.requests import Segment
from kvcalc.plan.deployment import started
from kvcalc.plan.room import room
from kvcalc.simulate.capacity import StationaryRuns, highest_rate
from kvcalc.simulate.run import Serving, ServingRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.reports.simulate import ServingSummary
    from kvcalc.core.requests import Request
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.capacity import HighestRate
    from kvcalc.simulate.load import Load
    from kvcalc.simulate.maxima import AffineRun
    from kvcalc.simulate.metrics import Limit
    from kvcalc.simulate.planner.candidates import Candidate, Demand
    from kvcalc.simulate.stationary import Measured
    from kvcalc.simulate.timer import StepTimer

__all__ = ["Bodies", "Confirmed", "confirm", "confirm_apart"]

# The load, so many times, beyond which the capacity of a replica is not searched for.
_ENOUGH = 3.0
# How close the capacity of a replica is searched, as a share, and the first step of the search.
_TOLERANCE = 0.04
_FACTOR = 1.1
# Arrivals of the search are others than those of the load that is confirmed.
_SEARCH_SEED = 1
# Times the usual requests of a run at the load, which is below the capacity, and of one with slower steps.
_AT_LOAD = 0.5
_SLOWER = 0.3
# The same with speculative decoding, whose every verification is a step of its own.
_DRAFTED = 0.4
# Further replicas that are tried where the simulated load breaks a limit.
_MAX_MORE = 3
# The tokens of a block where another engine than vLLM keeps the cache.
_BLOCK = 16


class Bodies:
    """Requests of a load, made once and asked for again and again at other rates.

    Args:
        load: the load.
        prefix_share: share of each prompt that all prompts begin with.
    """

    def __init__(self, load: Load, *, prefix_share: float) -> None:
        self.load, self._share = load, prefix_share
        self._made: dict[int | None, tuple[Request, ...]] = {}

    def first(self, requests: int | None) -> tuple[Request, ...]:
        """Return so many requests; of a trace, all that it has."""
        many = None if self.load.trace is not None else self.load.requests or requests
        if many not in self._made:
            kept = replace(self.load, requests=many if many is not None else self.load.requests).kept_bodies()
            shared = (_sharing(request, number, self._share) for number, request in enumerate(kept, 1))
            self._made[many] = tuple(shared) if self._share else kept
        return self._made[many]


def _sharing(request: Request, number: int, share: float) -> Request:
    """Return a request whose prompt begins with the tokens that all share."""
    shared = int(share * request.prompt_tokens)
    own = Segment(number, 0, request.prompt_tokens - shared)
    return request._replace(prompt=(Segment(0, 0, shared), own) if shared else (own,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A candidate that the simulator has served.

    Args:
        candidate: it.
        capacity_per_s: requests a second of one replica within the limits.
        replicas: replicas that carry the load, those to spare included.
        binds: the limit that breaks first above the capacity; empty where the search ended before one did.
        summary: the run of all replicas but the spare ones at the load.
        holds: whether its limits held.
        high_end: whether they hold if every step takes as long as the interval's high end; none without an interval.
        runs: simulations made.
        notes: what is simulated otherwise than the engine does it.
        prefill_replicas: replicas that only prefill, beside the others, which then only decode.
    """

    candidate: Candidate
    capacity_per_s: float
    replicas: int
    binds: str
    summary: ServingSummary
    holds: bool
    high_end: bool | None
    runs: int
    notes: tuple[str, ...]
    prefill_replicas: int = 0


def confirm(candidate: Candidate, demand: Demand, bodies: Bodies, *, slo: str) -> Confirmed | None:
    """Serve the load on a candidate in the simulator; none where no load keeps its limits.

    Args:
        candidate: layout and limits.
        demand: what a plan must do.
        bodies: the requests.
        slo: the limits as text.

    Raises:
        KvcalcError: what the simulator does not model.
    """
    runs = _Runs(candidate, bodies, demand.limits, slo=slo)
    rate = demand.traffic.rate_per_s
    enough = _ENOUGH * rate / demand.load_share
    search = runs.at(
        copies=1,
        seed=_SEARCH_SEED,
        tries_short=candidate.state.rate_per_s >= enough,
        running=candidate.state.running,
    )
    highest, binds = _capacity(search, start=candidate.state.rate_per_s, enough=enough, binds=candidate.binds)
    capacity = highest.rate_per_s * candidate.copies
    if not capacity:
        return None
    needed = max(1, math.ceil(rate / (capacity * demand.load_share)))
    for replicas in range(needed, needed + _MAX_MORE + 1):
        if (replicas + demand.spare) * candidate.deployment.parallel.gpus > demand.max_gpus:
            return None
        at_load = runs.at(copies=replicas * candidate.copies, factor=_AT_LOAD)
        measured = at_load.measured(rate)
        if not isinstance(measured, str) and measured.likely_pressure <= 1:
            return Confirmed(
                candidate=candidate,
                capacity_per_s=capacity,
                replicas=replicas + demand.spare,
                binds=binds,
                summary=_summary(at_load, measured, candidate.deployment, replicas),
                holds=True,
                high_end=_at_high_end(runs, rate, replicas),
                runs=runs.made,
                notes=runs.notes,
            )
    return None


def _capacity(search: StationaryRuns, *, start: float, enough: float, binds: str) -> tuple[HighestRate, str]:
    """Search for the highest rate, no higher than is enough, and name what breaks first above it.

    There the limits hold with what chance may add to them, as at the load: a plan is a promise.

    Args:
        search: runs of what is searched.
        start: the first guess.
        enough: a rate beyond which the search ends, with nothing named.
        binds: what is named where no run says more.
    """
    broken = [binds]

    def pressure(rate: float) -> float:
        if rate > enough:
            return math.inf  # a capacity many times the load is not searched for
        measured = search.measured(rate)
        if isinstance(measured, str):
            broken.append(measured)
            return math.inf
        broken.extend([measured.tightest] * (measured.likely_pressure > 1))
        return measured.likely_pressure

    highest = highest_rate(pressure, start_per_s=min(start, enough), tolerance=_TOLERANCE, factor=_FACTOR)
    beyond = highest.above_rate_per_s is None or highest.above_rate_per_s > enough
    return highest, "" if beyond else broken[-1]


def _summary(runs: StationaryRuns, measured: Measured, deployment: Deployment, replicas: int) -> ServingSummary:
    """Return the figures of the last run, with the latencies of its stationary part."""
    assert runs.last is not None
    gpus = deployment.parallel.gpus * replicas
    whole = runs.last.metrics.summary(gpus=gpus, memory_bytes=deployment.memory_bytes * gpus)
    latencies = measured.latencies_s
    return replace(
        whole,
        ttft_s=latencies["ttft"],
        tpot_s=latencies["tpot"],
        e2e_s=latencies["e2e"],
        queue_s=latencies["queue"],
    )


def confirm_apart(candidate: Candidate, demand: Demand, bodies: Bodies, *, slo: str) -> Confirmed | None:
    """Serve the load with prefill and decode on replicas of their own; none where a few more do not keep the limits.

    The first numbers of replicas follow from the times of a prompt alone and of a step that only decodes; there are
    more where these do not carry the load over the share that a plan may be loaded to. The capacity is that of all.

    Args:
        candidate: the layout of both.
        demand: what a plan must do.
        bodies: the requests.
        slo: the limits as text.

    Raises:
        KvcalcError: what the simulator does not model.
    """
    runs = _Runs(candidate, bodies, demand.limits, slo=slo)
    traffic, gpus = demand.traffic, candidate.deployment.parallel.gpus
    full = traffic.rate_per_s / demand.load_share
    prefills = max(1, math.ceil(full * candidate.state.prefill_s))
    decodes = max(1, math.ceil(full / (candidate.state.running / (traffic.output_tokens * candidate.state.decode_s))))
    broken = candidate.binds
    for _ in range(2 * _MAX_MORE):
        if (prefills + decodes + 2 * demand.spare) * gpus > demand.max_gpus:
            return None
        measured = runs.at(copies=decodes, prefills=prefills, factor=_AT_LOAD, seed=_SEARCH_SEED).measured(full)
        if not isinstance(measured, str) and measured.likely_pressure <= 1:
            break
        broken = measured if isinstance(measured, str) else measured.tightest
        waits = broken.startswith(("ttft", "queue", SERVED_RATE))
        prefills, decodes = prefills + waits, decodes + (not waits)
    else:
        return None
    search = runs.at(copies=decodes, prefills=prefills, factor=_AT_LOAD, seed=_SEARCH_SEED)
    highest, binds = _capacity(search, start=full, enough=_ENOUGH * full, binds=broken)
    at_load = runs.at(copies=decodes, prefills=prefills, factor=_AT_LOAD)
    measured = at_load.measured(traffic.rate_per_s)
    if isinstance(measured, str) or measured.likely_pressure > 1 or not highest.rate_per_s:
        return None
    return Confirmed(
        candidate=candidate,
        capacity_per_s=highest.rate_per_s / decodes,
        replicas=decodes + demand.spare,
        binds=binds,
        summary=_summary(at_load, measured, candidate.deployment, prefills + decodes),
        holds=True,
        high_end=None,
        runs=runs.made,
        notes=runs.notes,
        prefill_replicas=prefills + demand.spare,
    )


def _at_high_end(runs: _Runs, rate: float, replicas: int) -> bool | None:
    """Return whether the limits hold if every step takes as long as the high end of the interval says."""
    candidate = runs.candidate
    calibration = candidate.variant.calibration
    if calibration is None:
        return None
    mixture = candidate.deployment.model.is_mixture
    share = tuple(calibration.of_phase(phase, is_mixture=mixture).high for phase in ("decode", "prefill"))
    measured = runs.at(copies=replicas * candidate.copies, slower=share, factor=_SLOWER).measured(rate)
    return not isinstance(measured, str) and measured.pressure <= 1


class _Runs:
    """Simulations of one candidate."""

    def __init__(self, candidate: Candidate, bodies: Bodies, limits: Sequence[Limit], *, slo: str) -> None:
        self.candidate, self.made = candidate, 0
        self._bodies, self._limits, self._slo = bodies, limits, slo
        deployment = candidate.deployment
        self._timer = candidate.variant.timer(deployment)
        self._draft = candidate.variant.draft_on(deployment.parallel)
        self._draft_timer = None if self._draft is None else candidate.variant.draft_timer(self._draft)
        self._terms = candidate.variant.round_terms(deployment)
        self._served, self._blocks, self.notes = _as_vllm(candidate)

    def at(
        self,
        *,
        copies: int,
        prefills: int = 0,
        slower: tuple[float, ...] = (),
        seed: int = 0,
        factor: float = 1.0,
        tries_short: bool = False,
        running: float = 0.0,
    ) -> StationaryRuns:
        """Return runs of so many copies at any rate.

        Args:
            copies: engines.
            prefills: engines beside them that only prefill.
            slower: times that steps take so many times as long: those that decode, and those with a prompt.
            seed: of the arrivals, beside the load's own.
            factor: times the usual number of requests.
            tries_short: whether a shorter run may do, far below the limits.
            running: requests that are expected in all of them at once.
        """
        drafting = self.candidate.variant.drafting
        timer = Slowed(self._timer, decode=slower[0], prefill=slower[1]) if slower else self._timer
        serving = Serving(
            options=self._served.options,
            num_blocks=self._blocks,
            replicas=copies,
            prefill_replicas=prefills,
            routing="least-loaded" if copies > 1 else "round-robin",
            slo=self._slo,
            gamma=0 if drafting is None else drafting.gamma,
            accepted_length=None if drafting is None else drafting.tokens_per_pass,
        )

        def make_run() -> ServingRun:
            self.made += 1
            return ServingRun(
                self._served,
                serving,
                timer=timer,
                draft=self._draft,
                draft_timer=self._draft_timer,
                round_terms=self._terms,
                is_reported=False,
            )

        load = replace(self._bodies.load, seed=self._bodies.load.seed + seed)
        factor *= 1.0 if drafting is None else _DRAFTED
        return StationaryRuns(
            make_run,
            load,
            self._limits,
            bodies=self._bodies.first,
            factor=factor,
            tries_short=tries_short,
            running=running,
        )


def _as_vllm(candidate: Candidate) -> tuple[Deployment, int | None, tuple[str, ...]]:
    """Return a deployment whose scheduler is simulated, the blocks of its cache, and notes.

    Another engine's cache is that of its own memory model, in blocks of 16 tokens; its requests are scheduled as vLLM
    does it.
    """
    deployment = candidate.deployment
    options = deployment.options
    if deployment.served_by == "vllm":
        return deployment, None, ()
    here = room(deployment, max_model_len=options.max_model_len or 1)
    blocks = here.held.tokens // _BLOCK + 1
    asked = replace(options, max_num_seqs=candidate.slots, max_num_batched_tokens=here.start.pass_tokens)
    asked = replace(asked, block_size=None, utilization=None)
    note = f"scheduled as vLLM does it, with the cache of {deployment.served_by}"
    try:
        return started(deployment, "vllm", asked), blocks, (note,)
    except InputError:
        return replace(deployment, engine="vllm", options=asked), blocks, (note,)


class Slowed:
    """A timer whose every step takes so many times as long.

    Args:
        timer: the timer.
        decode: of steps that only decode; 1.1 for a tenth longer.
        prefill: of steps with a part of a prompt.
    """

    def __init__(self, timer: StepTimer, *, decode: float, prefill: float) -> None:
        self._timer, self._decode, self._prefill = timer, round(100 * decode), round(100 * prefill)
        self.caps, self.periods = timer.caps, timer.periods

    def line(
        self, tokens: int, logits: int, sums: Sequence[int], slopes: Sequence[int], chunks: Sequence[tuple[int, int]]
    ) -> AffineRun:
        """Return the duration of a step, and of those that follow while the same sequences advance."""
        first, slope, steps, limiter = self._timer.line(tokens, logits, sums, slopes, chunks)
        percent = self._prefill if chunks else self._decode
        return first * percent // 100, slope * percent // 100, steps, limiter
