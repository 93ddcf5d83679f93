"""The simulator's word on a candidate: the highest load of a replica, and all replicas that the load needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.reports.simulate import SERVED_RATE
from kvcalc.simulate.capacity import highest_rate
from kvcalc.simulate.planner.apart import replicas_apart
from kvcalc.simulate.planner.runs import CandidateRuns

if TYPE_CHECKING:
    from kvcalc.core.reports.simulate import ServingSummary
    from kvcalc.simulate.capacity import HighestRate, StationaryRuns
    from kvcalc.simulate.planner.apart import Pair
    from kvcalc.simulate.planner.candidates import Candidate, Demand
    from kvcalc.simulate.planner.runs import Bodies
    from kvcalc.simulate.stationary import Measured

__all__ = ["Confirmed", "confirm", "confirm_apart"]

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
# Further replicas that are tried where the simulated load breaks a limit.
_MAX_MORE = 3


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
        prefill: the layout of those, where there are some.
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
    prefill: Candidate | None = None

    def cost(self, replicas: int | None = None, prefill_replicas: int | None = None) -> tuple[float, int]:
        """Return dollars an hour, or GPUs where there is no price; and GPUs. Of its own replicas or so many others."""
        cost, gpus = self.candidate.cost(self.replicas if replicas is None else replicas)
        if self.prefill is None:
            return cost, gpus
        more, others = self.prefill.cost(self.prefill_replicas if prefill_replicas is None else prefill_replicas)
        return cost + more, gpus + others


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
    runs = CandidateRuns(candidate, bodies, demand.limits, slo=slo)
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
                summary=_summary(at_load, measured),
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


def _summary(runs: StationaryRuns, measured: Measured) -> ServingSummary:
    """Return the figures of the last run, with the latencies of its stationary part."""
    assert runs.last is not None
    latencies = measured.latencies_s
    return replace(
        runs.last.summary(),
        ttft_s=latencies["ttft"],
        tpot_s=latencies["tpot"],
        e2e_s=latencies["e2e"],
        queue_s=latencies["queue"],
    )


def confirm_apart(pair: Pair, demand: Demand, bodies: Bodies, *, slo: str) -> Confirmed | None:
    """Serve the load with prefill and decode on replicas of their own; none where a few more do not keep the limits.

    The first numbers of replicas are those of `replicas_apart`; there are more where these do not carry the load over
    the share that a plan may be loaded to. The capacity is that of all.

    Args:
        pair: the layouts of both.
        demand: what a plan must do.
        bodies: the requests.
        slo: the limits as text.

    Raises:
        KvcalcError: what the simulator does not model.
    """
    candidate, prefill = pair
    runs = CandidateRuns(candidate, bodies, demand.limits, slo=slo, prefill=prefill)
    traffic = demand.traffic
    full = traffic.rate_per_s / demand.load_share
    prefills, decodes = replicas_apart(pair, demand)
    broken = candidate.binds
    for _ in range(2 * _MAX_MORE):
        if prefill.gpus(prefills + demand.spare) + candidate.gpus(decodes + demand.spare) > demand.max_gpus:
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
        summary=_summary(at_load, measured),
        holds=True,
        high_end=None,
        runs=runs.made,
        notes=runs.notes,
        prefill_replicas=prefills + demand.spare,
        prefill=prefill,
    )


def _at_high_end(runs: CandidateRuns, rate: float, replicas: int) -> bool | None:
    """Return whether the limits hold if every step takes as long as the high end of the interval says."""
    candidate = runs.candidate
    calibration = candidate.variant.calibration
    if calibration is None:
        return None
    mixture = candidate.deployment.model.is_mixture
    share = tuple(calibration.of_phase(phase, is_mixture=mixture).high for phase in ("decode", "prefill"))
    measured = runs.at(copies=replicas * candidate.copies, slower=share, factor=_SLOWER).measured(rate)
    return not isinstance(measured, str) and measured.pressure <= 1
