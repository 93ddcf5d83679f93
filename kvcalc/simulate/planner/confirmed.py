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
from kvcalc.simulate.capacity import broken_by, highest_rate
from kvcalc.simulate.run import Serving, ServingRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.reports.simulate import ServingSummary
    from kvcalc.core.requests import Request
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.load import Load
    from kvcalc.simulate.planner.ranked import Candidate, Demand
    from kvcalc.simulate.timer import AffineRun, StepTimer

__all__ = ["Bodies", "Confirmed", "confirm", "confirm_apart"]

# The load, so many times, beyond which the capacity of a replica is not searched for.
_ENOUGH = 3.0
# How close the capacity of a replica is searched, as a share, and the first step of the search.
_TOLERANCE = 0.06
_FACTOR = 1.15
# Requests of a run: enough that those at its beginning and end, where fewer run, are few.
_MIN_REQUESTS = 600
_PER_RUNNING = 6
_MAX_REQUESTS = 5_000
_MAX_CLUSTER_REQUESTS = 12_000
# Percent of them in the runs of a search, whose end the longer runs confirm.
_SEARCHED = 60
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
    runs = _Runs(candidate, bodies, slo=slo)
    broken = [candidate.binds]
    rate = demand.traffic.rate_per_s
    enough = _ENOUGH * rate / demand.load_share

    def holds(rate: float) -> bool:
        if rate > enough:
            return False  # a capacity many times the load is not searched for
        run = runs.served(rate, copies=1, searching=True)
        wrong = broken_by(run.metrics, demand.limits)
        broken.extend(wrong[:1])
        return not wrong

    highest = highest_rate(
        holds, start_per_s=min(candidate.state.rate_per_s, enough), tolerance=_TOLERANCE, factor=_FACTOR
    )
    capacity = highest.rate_per_s * candidate.copies
    if not capacity:
        return None
    needed = max(1, math.ceil(rate / (capacity * demand.load_share)))
    run = None
    for replicas in range(needed, needed + _MAX_MORE + 1):
        if (replicas + demand.spare) * candidate.deployment.parallel.gpus > demand.max_gpus:
            break
        tried = [runs.served(rate, copies=replicas * candidate.copies, seed=seed) for seed in (0, 1)]
        needed, run = replicas, tried[0]
        if not any(broken_by(each.metrics, demand.limits) for each in tried):
            break
    else:
        return None
    if run is None:
        return None
    held = not broken_by(run.metrics, demand.limits)
    memory = candidate.deployment.memory_bytes * candidate.deployment.parallel.gpus * needed
    return Confirmed(
        candidate=candidate,
        capacity_per_s=capacity,
        replicas=needed + demand.spare,
        binds="" if highest.above_rate_per_s is None or highest.above_rate_per_s > enough else broken[-1],
        summary=run.metrics.summary(gpus=candidate.deployment.parallel.gpus * needed, memory_bytes=memory),
        holds=held,
        high_end=_at_high_end(runs, rate, needed, demand),
        runs=runs.made,
        notes=runs.notes,
    )


def confirm_apart(candidate: Candidate, demand: Demand, bodies: Bodies, *, slo: str) -> Confirmed | None:
    """Serve the load with prefill and decode on replicas of their own; none where a few more do not keep the limits.

    The first numbers of replicas follow from the times of a prompt alone and of a step that only decodes. The load is
    served at its rate over the share that a plan may be loaded to, which then is the capacity.

    Args:
        candidate: the layout of both.
        demand: what a plan must do.
        bodies: the requests.
        slo: the limits as text.

    Raises:
        KvcalcError: what the simulator does not model.
    """
    runs = _Runs(candidate, bodies, slo=slo)
    traffic, gpus = demand.traffic, candidate.deployment.parallel.gpus
    full = traffic.rate_per_s / demand.load_share
    prefills = max(1, math.ceil(full * candidate.state.prefill_s))
    decodes = max(1, math.ceil(full / (candidate.state.running / (traffic.output_tokens * candidate.state.decode_s))))
    broken = candidate.binds
    for _ in range(2 * _MAX_MORE):
        if (prefills + decodes + 2 * demand.spare) * gpus > demand.max_gpus:
            return None
        tried = [runs.served(full, copies=decodes, seed=seed, prefills=prefills) for seed in (0, 1)]
        wrong = [name for run in tried for name in broken_by(run.metrics, demand.limits)]
        if not wrong:
            break
        broken = wrong[0]
        waits = broken.startswith(("ttft", "queue", SERVED_RATE))
        prefills, decodes = prefills + waits, decodes + (not waits)
    else:
        return None
    run = runs.served(traffic.rate_per_s, copies=decodes, prefills=prefills)
    memory = candidate.deployment.memory_bytes * gpus * (prefills + decodes)
    return Confirmed(
        candidate=candidate,
        capacity_per_s=full / decodes,
        replicas=decodes + demand.spare,
        binds=broken,
        summary=run.metrics.summary(gpus=gpus * (prefills + decodes), memory_bytes=memory),
        holds=not broken_by(run.metrics, demand.limits),
        high_end=None,
        runs=runs.made,
        notes=runs.notes,
        prefill_replicas=prefills + demand.spare,
    )


def _at_high_end(runs: _Runs, rate: float, replicas: int, demand: Demand) -> bool | None:
    """Return whether the limits hold if every step takes as long as the high end of the interval says."""
    calibration = runs.candidate.variant.calibration
    if calibration is None:
        return None
    mixture = runs.candidate.deployment.model.is_mixture
    share = tuple(calibration.of_phase(phase, is_mixture=mixture).high for phase in ("decode", "prefill"))
    run = runs.served(rate, copies=replicas * runs.candidate.copies, slower=share)
    return not broken_by(run.metrics, demand.limits)


class _Runs:
    """Simulations of one candidate."""

    def __init__(self, candidate: Candidate, bodies: Bodies, *, slo: str) -> None:
        self.candidate, self.made = candidate, 0
        self._bodies, self._slo = bodies, slo
        deployment = candidate.deployment
        self._timer = candidate.variant.timer(deployment)
        self._draft = candidate.variant.draft_on(deployment.parallel)
        self._draft_timer = None if self._draft is None else candidate.variant.timer(self._draft)
        self._served, self._blocks, self.notes = _as_vllm(candidate)

    def served(
        self,
        rate: float,
        *,
        copies: int,
        seed: int = 0,
        slower: tuple[float, ...] = (),
        prefills: int = 0,
        searching: bool = False,
    ) -> ServingRun:
        """Return a run of so many copies at a rate, beside others that only prefill; one of a search is shorter."""
        self.made += 1
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
        run = ServingRun(
            self._served,
            serving,
            timer=timer,
            draft=self._draft,
            draft_timer=self._draft_timer,
        )
        requests = self._requests(copies)
        bodies = self._bodies.first(requests * _SEARCHED // 100 if searching else requests)
        load = replace(self._bodies.load.at_rate(rate), seed=self._bodies.load.seed + seed)
        run.serve(load.source(bodies), ())
        return run

    def _requests(self, copies: int) -> int:
        """Count the requests that make a run long enough for so many copies."""
        running = self.candidate.state.running
        each = max(_MIN_REQUESTS, min(_MAX_REQUESTS, _PER_RUNNING * running))
        return min(_MAX_CLUSTER_REQUESTS, max(each, _PER_RUNNING * running * copies // 2))


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
