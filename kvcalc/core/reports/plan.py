"""Deployments that meet a traffic's limits, what they cost and how they are started: the answer of ``kvcalc plan``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcalc.core.figures import figure
from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DayHour", "DaySavings", "Interval", "PlanCounts", "PlanOption", "PlanReport", "Role", "TokenPrices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate's interval: four of five measurements lie in it."""

    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrices:
    """Dollars for a million tokens of each kind, by the time that steps spend on it at the load.

    Args:
        input_usd: prompt tokens that are computed.
        cached_usd: prompt tokens that are found in the cache; none where no prompt shares any.
        output_usd: tokens that are generated.
    """

    input_usd: float
    cached_usd: float | None
    output_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The engines that only prefill, beside those of the option, which then only decode.

    Args:
        replicas: engines.
        gpu: the accelerator.
        gpus: their GPUs, all together.
        tensor_parallel: ranks that split every layer.
        pipeline_parallel: stages that split the layers.
        expert_parallel: ranks that share out the experts.
        data_parallel: copies of the attention part.
        options: options that they are started with, likewise.
        command: what starts one of them.
    """

    replicas: int
    gpu: str
    gpus: int
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    data_parallel: int
    options: Mapping[str, Any]
    command: str

    @property
    def parallel_sizes(self) -> dict[str, int]:
        """Ways in which a replica is spread, by their usual short names; none for one GPU."""
        return _parallel_sizes(self)


def _parallel_sizes(replica: Role | PlanOption) -> dict[str, int]:
    sizes = {
        "TP": replica.tensor_parallel,
        "PP": replica.pipeline_parallel,
        "EP": replica.expert_parallel,
        "DP": replica.data_parallel,
    }
    return {name: size for name, size in sizes.items() if size > 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOption:
    """One way to serve the traffic.

    Args:
        rank: 1 for the recommended one.
        gpu: the accelerator; of those that decode, where others prefill.
        gpus: accelerators of all replicas, those that only prefill among them.
        replicas: engines that requests are dealt to.
        tensor_parallel: ranks that split every layer, of each replica.
        pipeline_parallel: stages that split the layers.
        expert_parallel: ranks that share out the experts.
        data_parallel: copies of the attention part.
        weights: format of the weights.
        activations: format that the engine multiplies by them, as the command starts it.
        kv_dtype: format of the cache.
        engine: the engine.
        options: options that the engine is started with, by the names of `kvcalc.engines.options.EngineOptions`.
        gamma: drafted tokens of a verification; 0 without speculative decoding.
        draft: the model that drafts; empty where none is loaded.
        prefill: the engines that only prefill, where there are some.
        usd_per_hour: price of all accelerators; none where no price is given.
        usd_per_month: the same for 730 hours.
        usd_per_million_output_tokens: the whole price over the tokens generated at the load.
        usd_per_million_tokens: the price shared out to tokens computed, found and generated.
        joules_per_output_token: rated power of all accelerators over the tokens generated.
        cheaper_than_api_from_requests_per_s: the load from which it costs less than the API it is compared with.
        ttft_s: time to first token at the load: ``p50``, ``p95``, ``p99`` and ``mean``.
        tpot_s: time per output token, likewise.
        e2e_s: time to the last token, likewise.
        ttft_p95_s: of them.
        tpot_p95_s: of them.
        ttft_p95_interval: 80 % interval of the estimate; none where the bound stands in for it.
        tpot_p95_interval: likewise.
        holds_at_high_end: whether the limits would hold if every step took as long as the interval's high end says;
            none without an interval.
        load_requests_per_s: the load that it is planned for.
        capacity_requests_per_s: the highest load at which every limit holds; of a replica that carries more than three
            times the load, at least that.
        goodput_requests_per_s: requests a second that met every limit, in the simulation.
        binds: what breaks first above the capacity; ``served_rate`` where requests come faster than they are served.
            Empty where the search ended first: the capacity and the margin are then at least what is said.
        margin: share of the capacity that the load leaves.
        mean_running_requests: requests that run at once on a replica, mean.
        cache_used_share: of the cache's blocks, mean.
        limiter: what most steps are limited by.
        confirmed: whether the simulator served the load within the limits; else all figures are estimates.
        pareto: whether no other option is better in price, TTFT and TPOT together, where a bound beats no estimate.
        calibration: what step times are estimated with; empty where they are bounds.
        command: what starts one replica.
        notes: what a user should know of it.
    """

    rank: int
    gpu: str
    gpus: int = field(metadata=figure("GPUs", "lower"))
    replicas: int
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    data_parallel: int
    weights: str
    activations: str
    kv_dtype: str
    engine: str
    options: Mapping[str, Any]
    gamma: int = 0
    draft: str = ""
    prefill: Role | None = None
    usd_per_hour: float | None = field(metadata=figure("price an hour", "lower", column="$/h", digits=2))
    usd_per_month: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_tokens: TokenPrices | None
    joules_per_output_token: float | None
    cheaper_than_api_from_requests_per_s: float | None = None
    ttft_s: Mapping[str, float]
    tpot_s: Mapping[str, float]
    e2e_s: Mapping[str, float]
    ttft_p95_s: float = field(metadata=figure("TTFT p95", "lower"))
    tpot_p95_s: float = field(metadata=figure("TPOT p95", "lower"))
    ttft_p95_interval: Interval | None
    tpot_p95_interval: Interval | None
    holds_at_high_end: bool | None
    load_requests_per_s: float
    capacity_requests_per_s: float = field(metadata=figure("capacity", "higher", column="capacity/s"))
    goodput_requests_per_s: float | None
    binds: str
    margin: float = field(metadata=figure("margin", "higher", digits=2))
    mean_running_requests: float
    cache_used_share: float | None
    limiter: str
    confirmed: bool
    pareto: bool
    calibration: str
    command: str
    notes: tuple[str, ...] = ()

    @property
    def parallel_sizes(self) -> dict[str, int]:
        """Ways in which a replica is spread, by their usual short names; none for one GPU."""
        return _parallel_sizes(self)

    @property
    def rented(self) -> str:
        """The accelerators in words: ``4 x h200``, ``2 x h200 + 1 x l40s`` where others prefill."""
        if self.prefill is None or self.prefill.gpu == self.gpu:
            return f"{self.gpus} x {self.gpu}"
        return f"{self.gpus - self.prefill.gpus} x {self.gpu} + {self.prefill.gpus} x {self.prefill.gpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCounts:
    """Deployments looked at, stage by stage.

    Args:
        candidates: combinations of card, layout, formats and limits.
        refused: of them those that the engine's start or memory refuses.
        pruned: those that a bound on time or price rules out.
        ranked: those that were estimated.
        simulated: deployments that the simulator served.
    """

    candidates: int
    refused: int
    pruned: int
    ranked: int
    simulated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DayHour:
    """One slice of a day.

    Args:
        start_s: when it begins.
        requests_per_s: its load.
        replicas: engines that the load needs, started before it comes.
        gpus: their accelerators.
    """

    start_s: float
    requests_per_s: float
    replicas: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySavings:
    """Savings of autoscaling over a day against the peak's replicas all day.

    Args:
        cold_start_s: time that a replica takes to start; it is paid for from its beginning.
        end_s: when the last row ends.
        rows: the day.
        peak_gpus: accelerators at the peak.
        valley_gpus: accelerators at the least load.
        gpu_hours: accelerator-hours of the day with autoscaling.
        fixed_gpu_hours: the same with the peak's replicas all day.
        saved_share: what is saved of them.
    """

    cold_start_s: float
    end_s: float
    rows: tuple[DayHour, ...]
    peak_gpus: int
    valley_gpus: int
    gpu_hours: float
    fixed_gpu_hours: float
    saved_share: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanReport(Report):
    """Deployments that meet a traffic's limits, the recommended one first.

    Args:
        model: the model.
        workload: the traffic in words.
        slo: the limits.
        answer: the recommendation, or why there is none, in one line.
        counts: how many deployments were looked at.
        options: those that meet the limits.
        reasons: for each card without an option, why.
        why: why the options of a card that was asked about are not the first.
        day: the day of traffic, where one was given.
        files: files that were written.
        notes: what a user should know.
    """

    schema: str = "kvcalc.plan/1"
    model: str
    workload: str
    slo: str
    answer: str
    counts: PlanCounts
    options: tuple[PlanOption, ...]
    reasons: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    day: DaySavings | None = None
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
