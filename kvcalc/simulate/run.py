"""One serving run: how a load is served, its replicas and observers, and the report at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.ranges import check_between
from kvcalc.core.reports.simulate import ReplicaRow, RunSoFar, ServerSetup, SimulateReport
from kvcalc.core.speculation import chain
from kvcalc.cost.sharding import rank_cache_bytes
from kvcalc.plan.economics import usd_per_million_tokens
from kvcalc.plan.estimates import estimate_notes
from kvcalc.plan.formats import format_names
from kvcalc.plan.speculative import read_acceptance, with_drafter
from kvcalc.simulate.cluster import Cluster, Pending, serve
from kvcalc.simulate.disaggregated import Disaggregated, Transfer
from kvcalc.simulate.drafting import Drafting
from kvcalc.simulate.fast.forward import replica
from kvcalc.simulate.metrics import LATENCIES, Metrics, ReplicaTotals, parse_slo
from kvcalc.simulate.observers import CompositeObserver, Observer, Refusals
from kvcalc.simulate.quantiles import RELATIVE_ERROR
from kvcalc.simulate.scheduler import MAX_WAITING
from kvcalc.simulate.series import Series
from kvcalc.simulate.setup import serving_setup
from kvcalc.simulate.stationary import capacity_notes
from kvcalc.simulate.timer import ConstantTimer, EstimateTimer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.reports.simulate import Capacity, ServingSummary
    from kvcalc.core.requests import Request
    from kvcalc.core.speculation import RoundTerms
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.speculative.acceptance import Acceptance, AcceptanceForms
    from kvcalc.simulate.cluster import Server
    from kvcalc.simulate.metrics import Limit
    from kvcalc.simulate.serving import Replica, ServingSetup
    from kvcalc.simulate.timer import StepTimer
    from kvcalc.simulate.workload import FollowUps

__all__ = ["Serving", "ServingRun"]

_MAX_REPLICAS = 1024
_MAX_DRAFTS = 256
_PREEMPTIONS = ("recompute", "swap")
_PERCENTS = tuple(percent / 100 for percent in range(1, 101))


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The service of requests.

    Args:
        options: the engine's options.
        kv_memory_bytes: memory of each GPU's cache; as the engine's budget leaves it where left out (see `kvcalc.fit`).
        num_blocks: blocks of a replica's cache, the null block included, whatever the memory.
        policy: ``fcfs`` or ``priority``, or a class derived from `kvcalc.SchedulingPolicy`.
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
        check_between("replicas", self.replicas, 1, _MAX_REPLICAS)
        check_between("prefill-replicas", self.prefill_replicas, 0, _MAX_REPLICAS)
        check_between("gamma", self.gamma, 0, _MAX_DRAFTS)
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
        """Yield possible mistakes: whether it is one, the message and the hint."""
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


class ServingRun:
    """One run of replicas under observation.

    Args:
        deployment: model, accelerator, formats and parallel sizes of one replica.
        serving: how requests are served.
        timer: durations of the target's steps.
        draft: the draft model on its accelerators, where one is named.
        draft_timer: durations of the draft's steps; a step of constant duration has its drafts in it.
        round_terms: what a round of speculation takes besides its passes, where steps are estimated.
        is_reported: whether there will be a report, which tells what happens over time and on each replica.
        prefill: the replicas that only prefill, where they are others than those that decode.
        prefill_timer: durations of their steps.
    """

    def __init__(
        self,
        deployment: Deployment,
        serving: Serving,
        *,
        timer: StepTimer,
        draft: Deployment | None = None,
        draft_timer: StepTimer | None = None,
        round_terms: RoundTerms | None = None,
        is_reported: bool = True,
        prefill: Deployment | None = None,
        prefill_timer: StepTimer | None = None,
    ) -> None:
        self.deployment, self.serving = deployment, serving
        self.prefill = prefill or deployment
        self._calibration = timer.calibration if isinstance(timer, EstimateTimer) else None
        engines = serving.replicas + serving.prefill_replicas
        drafting = None
        if serving.gamma:
            drafter = None if isinstance(timer, ConstantTimer) else draft_timer
            drafting = Drafting(acceptance=serving.read_acceptance(), timer=drafter, terms=round_terms)
        make_setup = partial(
            serving_setup,
            options=serving.options,
            kv_bytes=serving.kv_memory_bytes,
            num_blocks=serving.num_blocks,
            policy=serving.policy,
            preemption=serving.preemption,
            host_bytes_per_s=serving.host_bytes_per_s,
            speculative_tokens=serving.gamma,
            drafting=drafting,
            max_waiting=MAX_WAITING // engines,
        )
        self.setup: ServingSetup = make_setup(_with_draft(deployment, serving, draft), timer=timer)
        self._prefill_setup = self.setup if prefill is None else make_setup(prefill, timer=prefill_timer or timer)
        self.limits: tuple[Limit, ...] = () if serving.slo is None else parse_slo(serving.slo)
        self._usable = [
            *[self._prefill_setup.num_blocks - 1] * serving.prefill_replicas,
            *[self.setup.num_blocks - 1] * serving.replicas,
        ]
        usable = sum(self._usable) / engines
        groups = self.setup.groups
        block_size = groups[0].block_size if len(groups) == 1 and groups[0].grows else None
        self.metrics = Metrics(usable_blocks=usable, block_size=block_size, replicas=engines, slo=self.limits)
        self.each = [
            ReplicaTotals(usable_blocks=blocks) for blocks in (self._usable if engines > 1 and is_reported else ())
        ]
        self.series = Series(usable_blocks=sum(self._usable))
        self.refusals = Refusals()
        self._whole: list[Observer] = [self.metrics, *([self.series] if is_reported else []), self.refusals]
        self._observers: Sequence[Observer] = ()

    def serve(self, source: Iterable[Request] | FollowUps, observers: Sequence[Observer]) -> None:
        """Serve a load."""
        serving = self.serving
        self._observers = observers
        alone = serving.replicas == 1 and not serving.prefill_replicas
        if alone and isinstance(source, Iterable):
            watching = CompositeObserver([*self._whole, *observers])
            self._replica(0, watching).serve(source)
            return
        pending = Pending(source)
        follows = [pending] if pending.follows else []
        watching = CompositeObserver([*self._whole, *observers, *follows])
        if serving.prefill_replicas:
            server: Server = Disaggregated(
                self._replica,
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
        own = [engine for each in self._observers if (engine := each.engine(number)) is not None]
        own += self.each[number : number + 1]
        watching = CompositeObserver([observer, *own]) if own else observer
        setup = self._prefill_setup if number < self.serving.prefill_replicas else self.setup
        return replica(setup, watching, exact_steps=self.serving.exact_steps)

    def _transfer(self) -> Transfer:
        """Return the way of caches from prefill to decode: the network, or else the accelerators' own link.

        Of two kinds of accelerators the slower link counts.
        """
        rate, latency_s = self.serving.transfer_bytes_per_s, 0.0
        cards = [each.hardware for each in (self.prefill, self.deployment) if each.hardware is not None]
        links = [card.links.get("scale_out") or card.links.get("scale_up") for card in cards]
        known = [link for link in links if link is not None]
        if rate is None and known and len(known) == len(links):
            slower = min(known, key=lambda link: link.bytes_per_s)
            rate, latency_s = slower.bytes_per_s, slower.latency_s or 0.0
        if rate is None:
            raise InputError("no link is known that could carry the cache", hint="give --transfer-rate, as 50GB/s")
        model, formats, parallel = self.prefill.model, self.prefill.formats, self.prefill.parallel
        return Transfer(
            bytes_for=lambda tokens: rank_cache_bytes(model, formats, parallel, tokens=tokens, batch=1),
            bytes_per_s=rate,
            latency_s=latency_s,
        )

    def summary(self) -> ServingSummary:
        """Return the figures of the whole run, over the accelerators and the memory of all replicas."""
        parts = ((self.prefill, self.serving.prefill_replicas), (self.deployment, self.serving.replicas))
        gpus = sum(each.parallel.gpus * replicas for each, replicas in parts)
        memory_bytes = sum(each.memory_bytes * each.parallel.gpus * replicas for each, replicas in parts)
        return self.metrics.summary(gpus=gpus, memory_bytes=memory_bytes)

    def so_far(self, finished: int) -> RunSoFar:
        """Return the series and the count of finished requests while the run goes on."""
        return RunSoFar(finished_requests=finished, series=self.series.so_far())

    def report(self, workload: str, *, capacity: Capacity | None = None) -> SimulateReport:
        """Return the results of the run.

        Args:
            workload: the load in words.
            capacity: the search whose rate the load has, where there was one.
        """
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
                policy=limits.policy if self.setup.decisions is None else self.setup.decisions.__name__,
                preemption=limits.preemption,
                gamma=limits.speculative_tokens,
                acceptance=serving.read_acceptance().constant_rate(chain(serving.gamma)) if serving.gamma else None,
                draft="" if serving.draft is None else str(serving.draft),
                step_times=serving.step_times,
            ),
            summary=self._priced(self._known(self.summary()), gpus),
            replicas=tuple(self._row(number, totals) for number, totals in enumerate(self.each)),
            series=self.series.rows(metrics.last_s),
            percentiles_s={name: tuple(metrics.of[name].quantiles(_PERCENTS)) for name in LATENCIES},
            capacity=capacity,
            notes=(
                *(() if capacity is None else capacity_notes(capacity, metrics)),
                *self.refusals.notes(),
                *self.setup.notes,
                *self._prefix_notes(),
                *_exactness(metrics),
                *self._estimate_notes(),
                *deployment.all_notes,
            ),
        )

    def _known(self, summary: ServingSummary) -> ServingSummary:
        """Return a summary without a share of hits where they are not modelled."""
        return replace(summary, prefix_hit_ratio=None) if self.setup.unmodelled_prefix_tokens else summary

    def _priced(self, summary: ServingSummary, gpus: int) -> ServingSummary:
        """Return a summary with the cost of its tokens, where the accelerator has a price."""
        price = None if self.deployment.hardware is None else self.deployment.hardware.price_per_hour_usd
        if price is None or not summary.output_tokens_per_s:
            return summary
        cost = usd_per_million_tokens(price_per_hour_usd=price, gpus=gpus, tokens_per_s=summary.output_tokens_per_s)
        return replace(summary, usd_per_million_output_tokens=cost)

    def _prefix_notes(self) -> tuple[str, ...]:
        block = self.setup.unmodelled_prefix_tokens
        if not block:
            return ()
        note = "hits of the prefix cache are not modelled for windows and states: every prompt is computed whole here"
        return (f"{note}, where vLLM would find up to floor(shared tokens / {block:,}) x {block:,} of it",)

    def _estimate_notes(self) -> tuple[str, ...]:
        if self._calibration is None:
            return ()
        return estimate_notes(self._calibration, self.deployment, "decode", "prefill", shows_interval=False)

    def _row(self, number: int, totals: ReplicaTotals) -> ReplicaRow:
        prefills, makespan_s = self.serving.prefill_replicas, self.metrics.makespan_s
        return ReplicaRow(
            replica=number,
            role="" if not prefills else "prefill" if number < prefills else "decode",
            requests=totals.requests,
            output_tokens=totals.output_tokens,
            preemptions=totals.preemptions,
            prefix_hit_ratio=None if self.setup.unmodelled_prefix_tokens else totals.prefix_hit_ratio,
            cache_used_share=totals.cache_used_share(makespan_s),
            busy_share=totals.busy_share(makespan_s),
        )


def _exactness(metrics: Metrics) -> tuple[str, ...]:
    rough = [name for name in LATENCIES if not metrics.of[name].exact]
    if not rough:
        return ()
    return (f"quantiles of {', '.join(rough)} are within {RELATIVE_ERROR:.1%} of the exact ones; means are exact",)


def _with_draft(deployment: Deployment, serving: Serving, draft: Deployment | None) -> Deployment:
    """Return the deployment with what drafts in its memory: n-grams where no draft model is named."""
    if not serving.gamma:
        return deployment
    method = "ngram" if draft is None else None
    return with_drafter(deployment, draft, gamma=serving.gamma, method=method)
