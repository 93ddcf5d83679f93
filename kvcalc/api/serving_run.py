"""One serving run: its replicas, who watches them, and what they say at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from kvcalc.core.errors import InputError
from kvcalc.core.reports.simulate import ReplicaRow, ServerSetup, SimulateReport
from kvcalc.core.speculation import chain
from kvcalc.core.units import parse_seconds
from kvcalc.cost.sharding import rank_cache_bytes
from kvcalc.plan.formats import format_names
from kvcalc.questions.speculate import draft_deployment, with_draft
from kvcalc.simulate.cluster import Cluster, Disaggregated, Pending, Transfer, serve
from kvcalc.simulate.jumping import replica
from kvcalc.simulate.metrics import LATENCIES, Metrics, parse_slo
from kvcalc.simulate.quantiles import RELATIVE_ERROR
from kvcalc.simulate.runs import Observer
from kvcalc.simulate.scheduler import MAX_WAITING
from kvcalc.simulate.series import Series
from kvcalc.simulate.serving import Drafting
from kvcalc.simulate.setup import serving_setup
from kvcalc.simulate.timer import ConstantTimer, EstimateTimer, RooflineTimer
from kvcalc.sources import find_calibration, load_calibration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.api.serving import Serving
    from kvcalc.core.reports.simulate import ServingSummary
    from kvcalc.core.requests import Request
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.cluster import Server
    from kvcalc.simulate.metrics import Limit
    from kvcalc.simulate.serving import Replica, ServingSetup
    from kvcalc.simulate.timer import StepTimer
    from kvcalc.simulate.workload import FollowUps

__all__ = ["ServingRun"]

_BOUNDS: dict[str, Literal["ideal", "serial"]] = {"ideal": "ideal", "serial": "serial"}
_PERCENTS = tuple(percent / 100 for percent in range(1, 101))


class ServingRun:
    """One run: its replicas, who watches them, and what they say at the end."""

    def __init__(self, deployment: Deployment, serving: Serving) -> None:
        self.deployment, self.serving = deployment, serving
        engines = serving.replicas + serving.prefill_replicas
        self.setup: ServingSetup = serving_setup(
            _with_draft(deployment, serving),
            timer=_timer(deployment, serving),
            options=serving.options,
            kv_bytes=serving.kv_memory_bytes,
            num_blocks=serving.num_blocks,
            policy=serving.policy,
            preemption=serving.preemption,
            host_bytes_per_s=serving.host_bytes_per_s,
            speculative_tokens=serving.gamma,
            drafting=_drafting(deployment, serving),
            max_waiting=MAX_WAITING // engines,
        )
        self.limits: tuple[Limit, ...] = () if serving.slo is None else parse_slo(serving.slo)
        self.usable = self.setup.num_blocks - 1
        self.metrics = self._metrics(engines)
        self.each = [self._metrics(1) for _ in range(engines)] if engines > 1 else []
        self.series = Series(usable_blocks=self.usable * engines)
        self.refusals = _Refusals()
        self._observers: Sequence[Observer] = ()

    def _metrics(self, replicas: int) -> Metrics:
        groups = self.setup.groups
        block_size = groups[0].block_size if len(groups) == 1 and groups[0].grows else None
        return Metrics(usable_blocks=self.usable, block_size=block_size, replicas=replicas, slo=self.limits)

    def serve(self, source: Iterable[Request] | FollowUps, observers: Sequence[Observer]) -> None:
        """Serve a load."""
        serving = self.serving
        self._observers = observers
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
        own = [found for each in self._observers if (found := each.engine(number)) is not None]
        own += self.each[number : number + 1]
        told = _Told([observer, *own]) if own else observer
        return replica(self.setup, told, exact_steps=self.serving.exact_steps)

    def _transfer(self) -> Transfer:
        """Return how caches get from prefill to decode: over the network, or else the accelerators' own link."""
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
                block_size=min(group.block_size for group in self.setup.groups),
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_num_seqs=limits.max_num_seqs,
                max_model_len=limits.max_model_len,
                prefix_caching=limits.prefix_caching,
                policy=limits.policy,
                preemption=limits.preemption,
                gamma=limits.speculative_tokens,
                acceptance=serving.read_acceptance().constant_rate(chain(serving.gamma)) if serving.gamma else None,
                draft="" if serving.draft is None else str(serving.draft),
                step_times=serving.step_times,
            ),
            summary=self._known(metrics.summary(gpus=gpus, memory_bytes=deployment.memory_bytes * gpus)),
            replicas=tuple(self._row(number, each) for number, each in enumerate(self.each)),
            series=self.series.rows(metrics.last_s),
            percentiles_s={name: tuple(metrics.of[name].quantiles(_PERCENTS)) for name in LATENCIES},
            notes=(
                *self.refusals.notes(),
                *self.setup.notes,
                *self._prefix_notes(),
                *_exactness(metrics),
                *deployment.all_notes,
            ),
        )

    def _known(self, summary: ServingSummary) -> ServingSummary:
        """Return a summary without a share of hits where they are not modelled."""
        return replace(summary, prefix_hit_ratio=None) if self.setup.unmodelled_prefix_tokens else summary

    def _prefix_notes(self) -> tuple[str, ...]:
        block = self.setup.unmodelled_prefix_tokens
        if not block:
            return ()
        note = "hits of the prefix cache are not modelled for windows and states: every prompt is computed whole here"
        return (f"{note}, where vLLM would find up to floor(shared tokens / {block:,}) x {block:,} of it",)

    def _row(self, number: int, metrics: Metrics) -> ReplicaRow:
        found = self._known(metrics.summary(gpus=1, memory_bytes=0))
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
            cache_used_share=found.cache_used_share * share,
            busy_share=found.busy_share * share,
        )


def _exactness(metrics: Metrics) -> tuple[str, ...]:
    rough = [name for name in LATENCIES if not metrics.of[name].exact]
    if not rough:
        return ()
    return (f"quantiles of {', '.join(rough)} are within {RELATIVE_ERROR:.1%} of the exact ones; means are exact",)


def _with_draft(deployment: Deployment, serving: Serving) -> Deployment:
    """Return the deployment with what drafts in its memory: n-grams where no draft model is named."""
    if not serving.gamma:
        return deployment
    method = "ngram" if serving.draft is None else None
    return with_draft(deployment, serving.draft, gamma=serving.gamma, method=method)


def _drafting(deployment: Deployment, serving: Serving) -> Drafting | None:
    """Return who drafts; a duration given for a step is that of a step with its drafts."""
    if not serving.gamma:
        return None
    acceptance = serving.read_acceptance()
    if serving.draft is None or serving.step_times not in {*_BOUNDS, "estimate"}:
        return Drafting(acceptance=acceptance)
    return Drafting(acceptance=acceptance, timer=_timer(draft_deployment(deployment, serving.draft), serving))


def _timer(deployment: Deployment, serving: Serving) -> StepTimer:
    step_times, asked = serving.step_times, serving.calibration
    if step_times in _BOUNDS:
        return RooflineTimer(deployment, kind=_BOUNDS[step_times])
    if step_times == "estimate":
        calibration = find_calibration(deployment) if asked is None else load_calibration(asked)
        if calibration is None:
            raise InputError("no calibration applies to this deployment", hint="ideal gives the bound alone")
        return EstimateTimer(deployment, calibration)
    try:
        step_s = parse_seconds(step_times)
    except InputError:
        raise InputError(
            f"step times {step_times!r} are not known",
            hint="ideal, serial, estimate, or a duration such as 20ms",
            parameter="step-times",
        ) from None
    return ConstantTimer(step_s=step_s)


class _Told(Observer):
    """Several observers as one; what none of them takes in costs nothing."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        for name in ("runs", "admitted", "preempted", "gap", "finished", "refused"):
            methods = [getattr(each, name) for each in observers]
            own = [method for method in methods if getattr(method, "__func__", None) is not getattr(Observer, name)]
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
        self._first = self._first or f"{request.name} can never run: {reason}"

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know."""
        if not self._count:
            return ()
        several = f"; {self._count:,} requests cannot" if self._count > 1 else ""
        return (f"request {self._first}{several}",)
