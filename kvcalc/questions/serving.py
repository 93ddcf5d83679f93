"""Serving runs from Python: a load on replicas of an engine, and the highest load that keeps its promises."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kvcalc.core.reports.simulate import LoadRow
from kvcalc.importers.traces import read_trace
from kvcalc.plan.speculative.estimated import draft_calibration, served_terms
from kvcalc.questions.speculate import placed_draft
from kvcalc.simulate import load as loads
from kvcalc.simulate.run import Serving, ServingRun
from kvcalc.simulate.timer import step_timer
from kvcalc.sources import find_calibration, load_calibration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.reports.simulate import Capacity, RunSoFar, SimulateReport
    from kvcalc.core.requests import Request
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.observers import Observer
    from kvcalc.simulate.workload import FollowUps

__all__ = ["Load", "Serving", "find_capacity", "simulate_serving"]

_TOLD_EVERY_S = 0.2


class Load(loads.Load):
    """Requests that can be made again and again, and at another rate; traces are read from files.

    Args and errors are those of `kvcalc.simulate.load.Load`.
    """

    __slots__ = ()

    trace_reader = staticmethod(read_trace)


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
    so_far: Callable[[RunSoFar], None] | None = None,
) -> SimulateReport:
    """Serve a load on an engine: latencies, throughput, the cache.

    Args:
        deployment: model, accelerator, formats and parallel sizes of one replica.
        load: what is asked.
        serving: how it is served.
        capacity: what `find_capacity` found for them; the load is then served at that rate.
        observers: take in every run of steps and every request.
        save_requests: a ``.csv`` or ``.parquet`` file for a row of each request, in the order in which they finish.
        save_trace: a ``.json`` file for a trace that ui.perfetto.dev shows.
        progress: is told now and then how many requests have finished, and of how many; 0 where that is not known.
        within_s: how long the simulation itself may take.
        so_far: is told a few times a second what the run has come to.

    Raises:
        InputError: options that contradict each other, a load without requests, requests out of order, or a simulation
            that takes longer than it may.
        UnsupportedError: a model whose cache or step times are not modelled.
        OSError: a file that cannot be read or written.
    """
    from kvcalc.render.perfetto import open_trace
    from kvcalc.render.rows import row_file
    from kvcalc.simulate.observers import Progress, TimeLimit, Watch
    from kvcalc.simulate.recording import REQUEST_COLUMNS, RequestRows, TimelineRecorder

    run = _run_maker(deployment, serving or Serving())()
    served = load
    if isinstance(load, Load):
        load, served = _as_searched(load, capacity)
        if load.start == "staggered":
            served = _staggered(deployment, load, serving)
    with ExitStack() as files:
        watching = list(observers)
        timeline = None
        if save_requests is not None:
            watching.append(RequestRows(files.enter_context(row_file(save_requests, REQUEST_COLUMNS))))
        if save_trace is not None:
            timeline = TimelineRecorder(files.enter_context(open_trace(save_trace)))
            watching.append(timeline)
        if within_s is not None:
            watching.append(TimeLimit(within_s))
        if progress is not None:
            watching.append(Progress(progress, (load.requests or 0) if isinstance(load, Load) else 0))
        if so_far is not None:
            watching.append(Watch(lambda finished: so_far(run.so_far(finished)), _TOLD_EVERY_S))
        run.serve(served.source() if isinstance(served, Load) else served, watching)
        if timeline is not None:
            timeline.end()
    report = run.report(load.text if isinstance(load, Load) else "given requests", capacity=capacity)
    if isinstance(load, Load) and load.process == "closed" and load.start is None and (load.users or 1) > 1:
        return _beside_staggered(report, deployment, load, serving, within_s)
    return report


def _as_searched(load: Load, capacity: Capacity | None) -> tuple[Load, Load]:
    """Return a load at the rate that a search found, and as the search served it; as it is where there was none."""
    if capacity is None:
        return load, load
    load = load.at_rate(capacity.requests_per_s or capacity.above_requests_per_s or 1.0)
    if capacity.requests is None:
        return load, load
    load = replace(load, requests=capacity.requests)
    return load, load.at_mean_rate(load.rate or 1.0)


def _staggered(deployment: Deployment, load: Load, serving: Serving | None) -> Load:
    """Return a load whose users begin apart: spread over the time that an answer takes while all of them ask."""
    if load.spacing_s:
        return load
    users = load.users or 1
    probe = replace(load, start="burst", requests=min(load.requests or 2 * users, 2 * users))
    answer_s = simulate_serving(deployment, probe, serving=serving).summary.e2e_s["p50"] + load.think_s
    return replace(load, spacing_s=answer_s / users)


def _beside_staggered(
    report: SimulateReport, deployment: Deployment, load: Load, serving: Serving | None, within_s: float | None
) -> SimulateReport:
    """Return a run of users who begin together with that of users who begin apart beside it, and say so."""
    apart = replace(load, start="staggered")
    other = simulate_serving(deployment, apart, serving=serving, within_s=within_s).summary
    rows = tuple(
        LoadRow(
            load=name,
            ttft_s=summary.ttft_s["mean"],
            tpot_s=summary.tpot_s["mean"],
            e2e_s=summary.e2e_s["mean"],
            output_tokens_per_s=summary.output_tokens_per_s,
        )
        for name, summary in zip(loads.STARTS, (report.summary, other), strict=True)
    )
    note = "users are taken to begin together, and to begin apart beside it; --load says which"
    return replace(report, loads=rows, notes=(*report.notes, note))


def find_capacity(
    deployment: Deployment,
    load: Load,
    *,
    serving: Serving,
    tolerance: float = 0.01,
    progress: Callable[[float, bool], None] | None = None,
) -> Capacity:
    """Return the highest rate at which all limits hold.

    A limit that breaks at one rate is taken to break at every higher one. Rates scale the load's arrivals and leave the
    requests as they are. A load with no length of its own is served until the run is stationary, without the requests
    that fill the server; a trace, or requests whose number is given, whole: the answer is that of this length.

    Args:
        deployment: model, accelerator, formats and parallel sizes of one replica.
        load: what is asked; the search starts at its rate.
        serving: how it is served, with limits.
        tolerance: how far the rate found may be below the lowest that breaks a limit, as a share.
        progress: is told of each rate tried and whether it held.

    Raises:
        InputError: no limits, a closed loop, or a tolerance too small.
    """
    from kvcalc.simulate import capacity

    make_run = _run_maker(deployment, serving)
    return capacity.find_capacity(make_run, load, slo=serving.slo, tolerance=tolerance, progress=progress)


def _run_maker(deployment: Deployment, serving: Serving) -> Callable[[], ServingRun]:
    """Load the draft and the calibrations that a run names, and return what makes such runs."""
    draft = None if serving.draft is None else placed_draft(deployment, serving.draft)
    calibration = _calibration(deployment, serving)
    return partial(
        ServingRun,
        deployment,
        serving,
        timer=step_timer(deployment, serving.step_times, calibration),
        draft=draft,
        draft_timer=None if draft is None else step_timer(draft, serving.step_times, draft_calibration(calibration)),
        round_terms=served_terms(deployment, draft, calibration, gamma=serving.gamma),
    )


def _calibration(deployment: Deployment, serving: Serving) -> Calibration | None:
    """Return the calibration of estimated steps; none where their times are bounds, or given."""
    if serving.step_times != "estimate":
        return None
    return find_calibration(deployment) if serving.calibration is None else load_calibration(serving.calibration)
