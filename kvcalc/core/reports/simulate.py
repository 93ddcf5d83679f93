"""A serving run under load, or a scheduler's steps: the answers of ``kvcalc simulate`` and its ``--steps``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcalc.core.figures import figure
from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.common import RunFormats

__all__ = [
    "QUANTILES",
    "SERVED_RATE",
    "Capacity",
    "LoadRow",
    "ReplicaRow",
    "SeriesRow",
    "ServerSetup",
    "ServingSummary",
    "SimulateReport",
    "StepsReport",
    "limit_text",
]


# Quantiles of latencies and lengths: the share that does not exceed each.
QUANTILES: Mapping[str, float] = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
# What breaks where requests come faster than they are served.
SERVED_RATE = "served_rate"


def limit_text(broken: str) -> str:
    """Name a limit that breaks for a reader.

    >>> limit_text("tpot_p95"), limit_text(SERVED_RATE)
    ('tpot_p95', 'throughput')
    """
    return "throughput" if broken == SERVED_RATE else broken


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetup:
    """The servers of a run: one replica's engine, and how many there are.

    Args:
        engine: whose memory model gave the size of the cache, or where it was given.
        replicas: engines that decode, and prefill too unless others do.
        prefill_replicas: engines that only prefill.
        routing: how requests are dealt to them.
        num_blocks: blocks of one replica's cache, the null block included.
        block_size: tokens of a block; of several groups, the fewest.
        max_num_batched_tokens: tokens of a step at most.
        max_num_seqs: sequences of a step at most.
        max_model_len: tokens of a sequence at most.
        prefix_caching: whether blocks are kept for later prompts.
        policy: ``fcfs`` or ``priority``.
        preemption: ``recompute`` or ``swap``.
        gamma: draft tokens of each verification; 0 without speculative decoding.
        acceptance: probability that a draft is accepted, if those before it were; of a list by position the constant
            one that gives as many tokens.
        draft: the model that drafts; empty where drafting takes no time.
        step_times: where the time of a step comes from.
    """

    engine: str
    replicas: int
    prefill_replicas: int
    routing: str
    num_blocks: int
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    prefix_caching: bool
    policy: str
    preemption: str
    gamma: int
    acceptance: float | None
    draft: str
    step_times: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSummary:
    """The run in figures. Each latency has ``p50``, ``p90``, ``p95``, ``p99`` and ``mean``.

    Args:
        requests: requests answered.
        refused_requests: requests that can never run, because the cache does not hold them or their prompt is too long.
        makespan_s: from the first arrival to the last answer.
        prompt_tokens: tokens of their prompts.
        output_tokens: tokens generated.
        ttft_s: from a request's arrival to the end of the step that gave its first token.
        tpot_s: from its first token to its last, over the tokens after the first; of requests with two or more.
        inter_token_s: from each token of a request to its next, over all tokens.
        e2e_s: from arrival to the last token.
        queue_s: from arrival to the start of the first step that worked on it.
        requests_per_s: requests over the makespan.
        output_tokens_per_s: tokens generated over the makespan.
        total_tokens_per_s: tokens of prompts and generated ones over the makespan.
        output_tokens_per_s_per_gpu: of that, for each GPU.
        output_tokens_per_s_per_gib: of that, for each GiB of the GPUs' memory.
        goodput_requests_per_s: requests that met every limit over the makespan; none without limits.
        slo_share: share of the requests that did.
        preemptions: how often a running request lost its blocks.
        recomputed_tokens: tokens computed again after that.
        prefix_hit_ratio: share of the prompt tokens that were found in the cache at admission; none where the engine
            would find some and that is not modelled.
        cache_used_share: blocks in use over the cache's, mean over the makespan.
        cache_peak_share: the most of it.
        cache_waste_share: share of the token places of blocks in use that hold no token, mean over time; nothing
            where several groups of layers, or states, have blocks.
        busy_share: share of the makespan in which steps ran, mean over replicas.
        mean_running_requests: sequences running on a replica, mean over the makespan.
        most_running_requests: the most of them.
        steps: steps of all replicas.
        limiter_shares: what limited the steps, by time.
        usd_per_million_output_tokens: price of all GPUs over the tokens generated; none without a price.
    """

    requests: int
    refused_requests: int
    makespan_s: float = field(metadata=figure("makespan", "lower"))
    prompt_tokens: int
    output_tokens: int
    ttft_s: Mapping[str, float] = field(metadata=figure("TTFT", "lower"))
    tpot_s: Mapping[str, float] = field(metadata=figure("TPOT", "lower"))
    inter_token_s: Mapping[str, float] = field(metadata=figure("inter-token time", "lower"))
    e2e_s: Mapping[str, float] = field(metadata=figure("end to end", "lower"))
    queue_s: Mapping[str, float] = field(metadata=figure("queue", "lower"))
    requests_per_s: float = field(metadata=figure("requests/s", "higher"))
    output_tokens_per_s: float = field(metadata=figure("output tokens/s", "higher"))
    total_tokens_per_s: float = field(metadata=figure("tokens/s", "higher"))
    output_tokens_per_s_per_gpu: float = field(metadata=figure("output tokens/s per GPU", "higher"))
    output_tokens_per_s_per_gib: float = field(metadata=figure("output tokens/s per GiB", "higher"))
    goodput_requests_per_s: float | None = field(metadata=figure("goodput", "higher"))
    slo_share: float | None = field(metadata=figure("within the limits", "higher"))
    preemptions: int = field(metadata=figure("preemptions", "lower"))
    recomputed_tokens: int = field(metadata=figure("tokens computed again", "lower"))
    prefix_hit_ratio: float | None = field(metadata=figure("prefix hits", "higher"))
    cache_used_share: float
    cache_peak_share: float
    cache_waste_share: float | None
    busy_share: float
    mean_running_requests: float
    most_running_requests: int
    steps: int
    limiter_shares: Mapping[str, float]
    usd_per_million_output_tokens: float | None = field(
        default=None, metadata=figure("a million output tokens", "lower", column="$/M out")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """One replica's part of the work.

    Args:
        replica: its number, from 0.
        role: ``prefill`` or ``decode`` where replicas do only one of them.
        requests: requests it finished.
        output_tokens: tokens it generated.
        preemptions: how often one of its requests lost its blocks.
        prefix_hit_ratio: share of its prompt tokens that were found in its cache; likewise.
        cache_used_share: its blocks in use, mean over the run.
        busy_share: share of the run in which it computed.
    """

    replica: int
    role: str
    requests: int
    output_tokens: int
    preemptions: int
    prefix_hit_ratio: float | None
    cache_used_share: float
    busy_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRow:
    """A slice of time, over all replicas.

    Args:
        start_s: when it begins.
        end_s: when it ends.
        running_requests: sequences running, mean.
        waiting_requests: requests waiting, mean.
        cache_used_share: blocks in use over the cache's, mean.
        output_tokens_per_s: tokens generated.
        ttft_s: mean time to first token of the requests whose first token came in it; none where there is none.
        inter_token_s: mean time between tokens in it.
    """

    start_s: float
    end_s: float
    running_requests: float
    waiting_requests: float
    cache_used_share: float
    output_tokens_per_s: float
    ttft_s: float | None
    inter_token_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSoFar:
    """A serving run while it is computed.

    Args:
        finished_requests: requests that have had their last token.
        series: the run over time up to now. A wait is counted when it ends, and a first token when its request has
            finished, so that both are still too few in the last slices.
    """

    finished_requests: int
    series: tuple[SeriesRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest load at which every limit holds.

    Args:
        slo: the limits, as given.
        requests_per_s: requests a second at which they hold; 0 where they hold at none that was tried.
        above_requests_per_s: the lowest rate tried at which they do not; none where they always did.
        tolerance_share: what the two may differ by, as a share of the first.
        runs: simulations made.
        broken: the limit that breaks first above it; ``served_rate`` where requests come faster than they are served.
        requests: requests of each run, a sixth of them warm-up; none where the load has a length of its own.
    """

    slo: str
    requests_per_s: float = field(metadata=figure("capacity", "higher"))
    above_requests_per_s: float | None
    tolerance_share: float
    runs: int
    broken: str
    requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRow:
    """Means of a closed loop whose users begin together (``burst``) or apart (``staggered``)."""

    load: str = field(metadata=figure("load"))
    ttft_s: float = field(metadata=figure("TTFT, mean", "lower"))
    tpot_s: float = field(metadata=figure("TPOT, mean", "lower"))
    e2e_s: float = field(metadata=figure("end to end, mean", "lower"))
    output_tokens_per_s: float = field(metadata=figure("output tokens/s", "higher"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SimulateReport(Report):
    """A serving run under load.

    Args:
        model: the model.
        gpu: the accelerator.
        gpus: how many, of all replicas.
        formats: number formats.
        workload: what was asked, in words.
        setup: what serves.
        summary: the run in figures.
        replicas: the part of each replica, where there are several.
        series: the run over time.
        percentiles_s: of each latency, the values that 1, 2, … 100 percent do not exceed.
        loads: means if the users of a closed loop begin together and apart, where it is not said which.
        capacity: the highest load, where it was searched for; the run is then the one at that load.
        notes: what a user should know.
    """

    schema: str = "kvcalc.simulate/1"
    model: str
    gpu: str
    gpus: int
    formats: RunFormats
    workload: str
    setup: ServerSetup
    summary: ServingSummary
    replicas: tuple[ReplicaRow, ...] = ()
    series: tuple[SeriesRow, ...] = ()
    percentiles_s: Mapping[str, tuple[float, ...]]
    loads: tuple[LoadRow, ...] = ()
    capacity: Capacity | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepsReport(Report):
    """The steps of a scenario on a step clock, in the form in which engines' own were recorded.

    Args:
        name: the scenario's name.
        steps: for each step its number, what was ``scheduled`` (tokens of each request, in order), ``new``,
            ``resumed``, ``preempted`` and ``finished`` requests, how many are ``running`` and ``waiting``, free blocks
            after scheduling and at the end, and ``prefix_hit_tokens``.
        totals: their sums.
    """

    name: str
    steps: tuple[Mapping[str, Any], ...]
    totals: Mapping[str, Any]
    schema: str = "kvcalc.steps/1"
    notes: tuple[str, ...] = ()
