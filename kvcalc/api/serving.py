"""Serving runs: a load on replicas of an engine, and the highest load that keeps its promises."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from kvcalc.api.loads import Load
from kvcalc.api.served_files import COLUMNS, Progress, RequestRows, Trace
from kvcalc.core.errors import InputError
from kvcalc.core.reports.simulate import Capacity, ReplicaRow, ServerSetup, SimulateReport
from kvcalc.core.units import parse_seconds
from kvcalc.plan.deployment import format_names
from kvcalc.render.perfetto import TraceFile
from kvcalc.render.row_file import RowFile
from kvcalc.simulate.metrics import LATENCIES, Metrics, parse_slo
from kvcalc.simulate.quantiles import RELATIVE_ERROR
from kvcalc.simulate.runs import Observer
from kvcalc.simulate.series import Series

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvcalc.core.requests import Request
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.cluster import Server, Transfer
    from kvcalc.simulate.metrics import Limit
    from kvcalc.simulate.serving import Replica, ServingSetup
    from kvcalc.simulate.timer import StepTimer
    from kvcalc.simulate.workload import FollowUps

__all__ = ["Serving", "find_capacity", "simulate_serving"]

_MOST_REPLICAS = 1024
_PERCENTS = tuple(percent / 100 for percent in range(1, 101))
_DEFAULT_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How requests are served.

    Args:
        options: the engine's options.
        kv_memory_bytes: memory of each GPU's cache; as the engine's budget leaves it where left out (see `kvcalc.fit`).
        num_blocks: blocks of a replica's cache, the null block included, whatever the memory.
        policy: ``fcfs`` or ``priority``.
        step_times: ``ideal``, ``serial``, or a duration such as ``20ms`` for every step.
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
    step_times: str = "ideal"
    replicas: int = 1
    routing: Any = "round-robin"
    prefill_replicas: int = 0
    transfer_bytes_per_s: float | None = None
    exact_steps: bool = False
    slo: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= _MOST_REPLICAS or not 0 <= self.prefill_replicas <= _MOST_REPLICAS:
            raise InputError(f"replicas must be from 1 to {_MOST_REPLICAS:,}, not {self.replicas}")


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

    Raises:
        InputError: options that contradict each other, a load without requests, or requests out of order.
        UnsupportedError: a model whose cache or step times are not modelled.
        OSError: a file that cannot be read or written.
    """
    run = _Run(deployment, serving or Serving())
    if capacity is not None and isinstance(load, Load):
        load = load.at_rate(capacity.rate_per_s or capacity.above_rate_per_s or 1.0)
    with ExitStack() as files:
        watching = list(observers)
        if save_requests is not None:
            watching.append(RequestRows(files.enter_context(RowFile(save_requests, COLUMNS))))
        if save_trace is not None:
            watching.append(Trace(files.enter_context(TraceFile(save_trace))))
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
    from kvcalc.simulate.capacity import highest_rate

    if serving.slo is None:
        raise InputError("a search for the capacity needs limits", hint="give --slo ttft_p95=1s,tpot_p95=50ms")
    bodies = None if load.turns is not None else tuple(load.bodies())
    limits, broken = parse_slo(serving.slo), [""]

    def holds(rate: float) -> bool:
        run = _Run(deployment, serving)
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
        rate_per_s=found.rate_per_s,
        above_rate_per_s=found.above_rate_per_s,
        tolerance=tolerance,
        runs=found.tried,
        broken=broken[-1],
    )


def _capacity_notes(capacity: Capacity) -> tuple[str, ...]:
    if not capacity.rate_per_s:
        return (f"no load keeps {capacity.broken}: requests served one at a time break it",)
    if capacity.above_rate_per_s is None:
        return ("the limits held at every rate tried: the load is too short to find where they break",)
    return ("a limit that breaks at one rate is taken to break at every higher one",)


class _Run:
    """One run: its replicas, who watches them, and what they say at the end."""

    def __init__(self, deployment: Deployment, serving: Serving) -> None:
        from kvcalc.simulate.setup import serving_setup

        self.deployment, self.serving = deployment, serving
        self.setup: ServingSetup = serving_setup(
            deployment,
            timer=_timer(deployment, serving.step_times),
            options=serving.options,
            kv_bytes=serving.kv_memory_bytes,
            num_blocks=serving.num_blocks,
            policy=serving.policy,
        )
        engines = serving.replicas + serving.prefill_replicas
        self.limits: tuple[Limit, ...] = () if serving.slo is None else parse_slo(serving.slo)
        self.usable = self.setup.num_blocks - 1
        self.metrics = self._metrics(engines)
        self.each = [self._metrics(1) for _ in range(engines)] if engines > 1 else []
        self.series = Series(usable_blocks=self.usable * engines)
        self.refusals = _Refusals()

    def _metrics(self, replicas: int) -> Metrics:
        return Metrics(
            usable_blocks=self.usable, block_size=self.setup.groups[0].block_size, replicas=replicas, slo=self.limits
        )

    def serve(self, source: Iterable[Request] | FollowUps, observers: Sequence[Observer]) -> None:
        """Serve a load."""
        from kvcalc.simulate.cluster import Cluster, Disaggregated, Pending, serve

        serving = self.serving
        alone = serving.replicas == 1 and not serving.prefill_replicas
        if alone and isinstance(source, Iterable):
            watching = _Told([self.metrics, self.series, self.refusals, *observers])
            self._replica(0, watching).serve(source)
            return
        pending = Pending(source)
        watching = _Told([self.metrics, self.series, self.refusals, *observers, pending])
        if serving.prefill_replicas:
            server: Server = Disaggregated(
                partial(self._replica),
                prefills=serving.prefill_replicas,
                decodes=serving.replicas,
                routing=serving.routing,
                transfer=self._transfer(),
                observer=watching,
            )
        else:
            replicas = [self._replica(number, watching) for number in range(serving.replicas)]
            server = Cluster(replicas, routing=serving.routing)
        serve(server, pending)

    def _replica(self, number: int, observer: Observer) -> Replica:
        from kvcalc.simulate.jumping import JumpingReplica
        from kvcalc.simulate.serving import Replica

        told = _Told([observer, self.each[number]]) if self.each else observer
        return (Replica if self.serving.exact_steps else JumpingReplica)(self.setup, told)

    def _transfer(self) -> Transfer:
        """Return how caches get from prefill to decode: over the network, or else the accelerators' own link."""
        from kvcalc.cost.sharding import rank_cache_bytes
        from kvcalc.simulate.cluster import Transfer

        hardware, rate, latency_s = self.deployment.hardware, self.serving.transfer_bytes_per_s, 0.0
        if rate is None and hardware is not None:
            link = hardware.links.get("scale_out") or hardware.links.get("scale_up")
            if link is not None:
                rate, latency_s = link.bytes_per_s, link.latency_s or 0.0
        if rate is None:
            raise InputError("no link is known that could carry the cache", hint="give --transfer-rate, as 50GB/s")
        model, formats, parallel = self.deployment.model, self.deployment.formats, self.deployment.parallel
        return Transfer(
            bytes_for=lambda tokens: rank_cache_bytes(model, formats, parallel, tokens=tokens, batch=1),
            bytes_per_s=rate,
            latency_s=latency_s,
        )

    def report(self, workload: str) -> SimulateReport:
        """Return what the run came to."""
        deployment, serving, limits, metrics = self.deployment, self.serving, self.setup.limits, self.metrics
        engines = serving.replicas + serving.prefill_replicas
        gpus = deployment.parallel.gpus * engines
        return SimulateReport(
            model=deployment.model.name,
            gpu="" if deployment.hardware is None else deployment.hardware.name,
            gpus=gpus,
            formats=format_names(deployment.formats),
            workload=workload,
            setup=ServerSetup(
                engine="vllm",
                replicas=serving.replicas,
                prefill_replicas=serving.prefill_replicas,
                routing=serving.routing if engines > 1 else "",
                num_blocks=self.setup.num_blocks,
                block_size=self.setup.groups[0].block_size,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_num_seqs=limits.max_num_seqs,
                max_model_len=limits.max_model_len,
                prefix_caching=limits.prefix_caching,
                policy=limits.policy,
                step_times=serving.step_times,
            ),
            summary=metrics.summary(gpus=gpus, memory_bytes=deployment.memory_bytes * gpus),
            replicas=tuple(self._row(number, each) for number, each in enumerate(self.each)),
            series=self.series.rows(metrics.last_s),
            distribution={f"{name}_s": tuple(metrics.of[name].quantiles(_PERCENTS)) for name in LATENCIES},
            notes=(*self.refusals.notes(), *_exactness(metrics), *deployment.model.notes),
        )

    def _row(self, number: int, metrics: Metrics) -> ReplicaRow:
        found = metrics.summary(gpus=1, memory_bytes=0)
        # a replica's own makespan is not the run's: what is spread over time counts over the run's
        share = metrics.makespan_s / self.metrics.makespan_s if self.metrics.makespan_s else 0.0
        prefills = self.serving.prefill_replicas
        return ReplicaRow(
            replica=number,
            role="" if not prefills else "prefill" if number < prefills else "decode",
            requests=found.requests,
            output_tokens=metrics.generated_tokens,
            preemptions=found.preemptions,
            prefix_hit_ratio=found.prefix_hit_ratio,
            cache_occupancy=found.cache_occupancy * share,
            busy=found.busy * share,
        )


def _exactness(metrics: Metrics) -> tuple[str, ...]:
    rough = [name for name in LATENCIES if not metrics.of[name].exact]
    if not rough:
        return ()
    return (f"quantiles of {', '.join(rough)} are within {RELATIVE_ERROR:.1%} of the exact ones; means are exact",)


def _timer(deployment: Deployment, step_times: str) -> StepTimer:
    from kvcalc.simulate.timer import ConstantTimer, RooflineTimer

    kinds: dict[str, Literal["ideal", "serial"]] = {"ideal": "ideal", "serial": "serial"}
    if step_times in kinds:
        return RooflineTimer(deployment, kind=kinds[step_times])
    try:
        step_s = parse_seconds(step_times)
    except InputError:
        raise InputError(
            f"step times {step_times!r} are not known", hint="ideal, serial, or a duration such as 20ms"
        ) from None
    return ConstantTimer(step_s=step_s)


class _Told(Observer):
    """Several observers as one; each method calls only those that have it."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        for name in ("runs", "admitted", "preempted", "gap", "finished", "refused"):
            own = [
                getattr(each, name) for each in observers if getattr(type(each), name) is not getattr(Observer, name)
            ]
            setattr(self, name, own[0] if len(own) == 1 else partial(_tell, own))


def _tell(methods: Sequence[Callable[..., None]], *told: Any) -> None:
    for method in methods:
        method(*told)


class _Refusals(Observer):
    """Keeps the first request that can never run, and counts the others."""

    def __init__(self) -> None:
        self._first, self._count = "", 0

    def refused(self, request: Request, at_s: float, reason: str) -> None:
        """Take in a request that can never run."""
        del at_s
        self._count += 1
        self._first = self._first or f"request {request.name}: {reason}"

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know."""
        return (f"{self._count:,} requests can never run: {self._first}",) if self._count else ()
