"""Serving runs: a load on replicas of an engine, and the highest load that keeps its promises."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcalc.api.loads import Load
from kvcalc.core.errors import InputError
from kvcalc.core.ranges import check_between
from kvcalc.core.speculation import chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.reports.simulate import Capacity, SimulateReport
    from kvcalc.core.requests import Request
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.speculative.acceptance import Acceptance, AcceptanceForms
    from kvcalc.simulate.runs import Observer
    from kvcalc.simulate.workload import FollowUps

__all__ = ["Serving", "find_capacity", "simulate_serving"]

_MOST_REPLICAS = 1024
_MOST_DRAFTS = 256
_PREEMPTIONS = ("recompute", "swap")
_DEFAULT_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How requests are served.

    Args:
        options: the engine's options.
        kv_memory_bytes: memory of each GPU's cache; as the engine's budget leaves it where left out (see `kvcalc.fit`).
        num_blocks: blocks of a replica's cache, the null block included, whatever the memory.
        policy: ``fcfs`` or ``priority``.
        preemption: ``recompute``, or ``swap``: blocks go to the host's memory and come back.
        host_bytes_per_s: rate at which they do, of each GPU.
        gamma: draft tokens of each verification; with it, decoding is speculative.
        acceptance: probability that a draft is accepted, if those before it were; or counts: ``"1000:814,602"``.
        acceptance_by_position: in its place the share of all drafts of which each position was accepted, as vLLM prints
            it.
        acceptance_conditional: in its place one probability for each position.
        accepted_length: in its place the tokens of a pass on average, the target's own included.
        draft_rate: in its place accepted over drafted tokens.
        draft: the model that drafts; nothing where drafting takes no time. Its weights and cache are in the budget.
        step_times: ``ideal``, ``serial``, ``estimate`` with the calibration that applies, or a duration: ``20ms``.
        calibration: what ``estimate`` stands on in its place: a name, a file or a calibration.
        replicas: engines that requests are dealt to, each on the deployment's GPUs.
        routing: ``round-robin``, ``least-loaded`` or ``prefix-aware``.
        prefill_replicas: engines that only prefill; the others then only decode.
        transfer_bytes_per_s: rate of the link that carries the cache from one to the other, of each GPU; the
            accelerator's network, or else its link to other accelerators, where left out.
        exact_steps: whether to compute step after step instead of jumping over those in which nothing is decided; the
            results are the same.
        slo: limits such as ``ttft_p95=1s,tpot_p95=50ms``.
    """

    options: EngineOptions | None = None
    kv_memory_bytes: int | None = None
    num_blocks: int | None = None
    policy: Any = "fcfs"
    preemption: Any = "recompute"
    host_bytes_per_s: float | None = None
    gamma: int = 0
    acceptance: float | str | None = None
    acceptance_by_position: str | Sequence[float] | None = None
    acceptance_conditional: str | Sequence[float] | None = None
    accepted_length: float | None = None
    draft_rate: float | None = None
    draft: str | Path | None = None
    step_times: str = "ideal"
    calibration: str | Path | Calibration | None = None
    replicas: int = 1
    routing: Any = "round-robin"
    prefill_replicas: int = 0
    transfer_bytes_per_s: float | None = None
    exact_steps: bool = False
    slo: str | None = None

    def __post_init__(self) -> None:
        check_between("replicas", self.replicas, 1, _MOST_REPLICAS)
        check_between("prefill-replicas", self.prefill_replicas, 0, _MOST_REPLICAS)
        check_between("gamma", self.gamma, 0, _MOST_DRAFTS)
        for wrong, what, hint in self._mistakes():
            if wrong:
                raise InputError(what, hint=hint)
        if self.gamma:
            self.read_acceptance().by_depth(self.gamma)

    def read_acceptance(self) -> Acceptance:
        """Return the acceptance of drafts, in whichever form it is given.

        Raises:
            InputError: none or several of them, or numbers that cannot be.
        """
        from kvcalc.plan.speculative import read_acceptance

        return read_acceptance(chain(self.gamma), **self._acceptance())

    def _acceptance(self) -> AcceptanceForms:
        return {
            "acceptance": self.acceptance,
            "acceptance_by_position": self.acceptance_by_position,
            "acceptance_conditional": self.acceptance_conditional,
            "accepted_length": self.accepted_length,
            "draft_rate": self.draft_rate,
        }

    def _mistakes(self) -> Iterator[tuple[bool, str, str]]:
        """Yield what could be wrong: whether it is, what to say, and what to do."""
        known = self.preemption in _PREEMPTIONS
        yield not known, f"preemption {self.preemption!r} is not known", f"preemptions: {', '.join(_PREEMPTIONS)}"
        swaps, rated = self.preemption == "swap", self.host_bytes_per_s is not None
        yield swaps and not rated, "swapping needs the rate of the link to the host's memory", "give --host-rate 50GB/s"
        yield rated and not swaps, "nothing goes to the host's memory", "add --preemption swap"
        drafts, accepts = bool(self.gamma), any(form is not None for form in self._acceptance().values())
        yield drafts and not accepts, "speculative decoding needs an acceptance", "give --acceptance 0.8"
        yield accepts and not drafts, "an acceptance is that of drafts", "give --gamma, draft tokens of a verification"
        yield self.draft is not None and not drafts, "a draft model drafts some tokens", "give --gamma and --acceptance"
        unused = self.calibration is not None and self.step_times != "estimate"
        yield unused, "a calibration is for step times that are estimated", "add --step-times estimate"
        sends = self.transfer_bytes_per_s is not None
        yield sends and not self.prefill_replicas, "nothing is sent to decode elsewhere", "add --prefill-replicas 1"


def simulate_serving(
    deployment: Deployment,
    load: Load | Iterable[Request] | FollowUps,
    *,
    serving: Serving | None = None,
    capacity: Capacity | None = None,
    observers: Sequence[Observer] = (),
    save_requests: str | Path | None = None,
    save_trace: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    within_s: float | None = None,
) -> SimulateReport:
    """Return what becomes of a load on an engine: latencies, throughput, the cache.

    Args:
        deployment: model, accelerator, formats and parallel sizes of one replica.
        load: what is asked.
        serving: how it is served.
        capacity: what `find_capacity` found for them; the load is then served at that rate.
        observers: told of every run of steps and every request.
        save_requests: a ``.csv`` or ``.parquet`` file for a row of each request, in the order in which they finish.
        save_trace: a ``.json`` file for a trace that ui.perfetto.dev shows.
        progress: is told now and then how many requests have finished, and of how many; 0 where that is not known.
        within_s: how long the simulation itself may take.

    Raises:
        InputError: options that contradict each other, a load without requests, requests out of order, or a simulation
            that takes longer than it may.
        UnsupportedError: a model whose cache or step times are not modelled.
        OSError: a file that cannot be read or written.
    """
    from kvcalc.api.served_files import Progress, TimeLimit, requests_file, trace_file
    from kvcalc.api.serving_run import ServingRun

    run = ServingRun(deployment, serving or Serving())
    if capacity is not None and isinstance(load, Load):
        load = load.at_rate(capacity.requests_per_s or capacity.above_requests_per_s or 1.0)
    with ExitStack() as files:
        watching = list(observers)
        if save_requests is not None:
            watching.append(files.enter_context(requests_file(save_requests)))
        if save_trace is not None:
            watching.append(files.enter_context(trace_file(save_trace)))
        if within_s is not None:
            watching.append(TimeLimit(within_s))
        if progress is not None:
            watching.append(Progress(progress, (load.requests or 0) if isinstance(load, Load) else 0))
        run.serve(load.source() if isinstance(load, Load) else load, watching)
    report = run.report(load.text if isinstance(load, Load) else "given requests")
    if capacity is None:
        return report
    return replace(report, capacity=capacity, notes=(*_capacity_notes(capacity), *report.notes))


def find_capacity(
    deployment: Deployment,
    load: Load,
    *,
    serving: Serving,
    tolerance: float = _DEFAULT_TOLERANCE,
    progress: Callable[[float, bool], None] | None = None,
) -> Capacity:
    """Return the highest rate at which all limits hold.

    A limit that breaks at one rate is taken to break at every higher one. Rates scale the load's arrivals and leave the
    requests as they are, so that the answer is that of this load, of this length.

    Args:
        deployment: model, accelerator, formats and parallel sizes of one replica.
        load: what is asked; the search starts at its rate.
        serving: how it is served, with limits.
        tolerance: how far the rate found may be below the lowest that breaks a limit, as a share.
        progress: is told of each rate tried and whether it held.

    Raises:
        InputError: no limits, a closed loop, or a tolerance too small.
    """
    from kvcalc.api.serving_run import ServingRun
    from kvcalc.core.reports.simulate import Capacity
    from kvcalc.simulate.capacity import highest_rate
    from kvcalc.simulate.metrics import parse_slo

    if serving.slo is None:
        raise InputError("a search for the capacity needs limits", hint="give --slo ttft_p95=1s,tpot_p95=50ms")
    bodies = None if load.turns is not None else load.kept_bodies()
    limits, broken = parse_slo(serving.slo), [""]

    def holds(rate: float) -> bool:
        run = ServingRun(deployment, serving)
        run.serve(load.at_rate(rate).source(bodies), ())
        wrong = [str(limit) for limit in limits if not run.metrics.kept(limit)]
        if wrong:
            broken.append(wrong[0])
        if progress is not None:
            progress(rate, not wrong)
        return not wrong

    found = highest_rate(holds, start_per_s=load.rate or 1.0, tolerance=tolerance)
    return Capacity(
        slo=serving.slo,
        requests_per_s=found.rate_per_s,
        above_requests_per_s=found.above_rate_per_s,
        tolerance_share=tolerance,
        runs=found.tried,
        broken=broken[-1],
    )


def _capacity_notes(capacity: Capacity) -> tuple[str, ...]:
    if not capacity.requests_per_s:
        return (f"no load keeps {capacity.broken}: requests served one at a time break it",)
    if capacity.above_requests_per_s is None:
        return ("the limits held at every rate tried: the load is too short to find where they break",)
    return ("a limit that breaks at one rate is taken to break at every higher one",)
