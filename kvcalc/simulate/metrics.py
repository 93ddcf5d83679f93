"""Results of a serving run: latencies, throughput, the cache, and the requests that met their limits.

Every figure is summed up as the run goes on, so that a million requests take as little memory as a thousand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.core.reports.simulate import QUANTILES, ServingSummary
from kvcalc.core.units import GIB, parse_seconds
from kvcalc.simulate.observers import Observer
from kvcalc.simulate.quantiles import Quantiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.requests import Request
    from kvcalc.simulate.observers import Run, Served

__all__ = ["LATENCIES", "OF_REQUEST", "Limit", "Metrics", "ReplicaTotals", "latencies", "parse_slo"]

# Latencies by name, and those that a request has, in the order of `latencies`.
LATENCIES = ("ttft", "tpot", "inter_token", "e2e", "queue")
OF_REQUEST = ("ttft", "tpot", "e2e", "queue")
_STATISTICS = (*QUANTILES, "mean")
_SLO_HINT = (
    f"for example ttft_p95=1s,tpot_p95=50ms; latencies: {', '.join(LATENCIES)}; statistics: {', '.join(_STATISTICS)}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """An upper limit on a latency.

    Args:
        latency: one of `LATENCIES`.
        statistic: ``p50``, ``p90``, ``p95``, ``p99`` or ``mean``.
        most_s: the limit.
    """

    latency: str
    statistic: str
    most_s: float

    def __str__(self) -> str:
        return f"{self.latency}_{self.statistic}"


def parse_slo(text: str) -> tuple[Limit, ...]:
    """Read limits such as ``ttft_p95=1s,tpot_p95=50ms``.

    Raises:
        InputError: no such latency or statistic, a limit given twice, or one that is not above 0.

    >>> parse_slo("ttft_p95=1s,tpot_mean=50ms")[1]
    Limit(latency='tpot', statistic='mean', most_s=0.05)
    """
    limits: dict[str, Limit] = {}
    for part in text.split(","):
        name, equals, duration = (word.strip() for word in part.partition("="))
        latency, _, statistic = name.rpartition("_")
        if not equals or latency not in LATENCIES or statistic not in _STATISTICS:
            names = [f"{latency}_{statistic}" for latency in LATENCIES for statistic in _STATISTICS]
            raise InputError(f"slo: {part!r} is not a limit", hint=did_you_mean(name, names) or _SLO_HINT)
        if name in limits:
            raise InputError(f"slo: {name} is given twice")
        if duration and duration[-1].isdigit():
            hint = f"give a unit: {name}={duration}ms or {name}={duration}s"
            raise InputError(f"slo: {part.strip()} has no unit", hint=hint, parameter="slo")
        most_s = parse_seconds(duration)
        if not most_s:
            raise InputError(f"slo: nothing takes no time: {part.strip()}", hint=_SLO_HINT)
        limits[name] = Limit(latency=latency, statistic=statistic, most_s=most_s)
    return tuple(limits.values())


def latencies(served: Served) -> tuple[float, float, float, float]:
    """Return a request's times to first token, per output token, to the last token and in the queue, in seconds.

    The time per output token is NaN where there is only one.
    """
    request, admitted_s, first_token_s, finish_s, output_tokens, _, _ = served
    arrival_s, gaps = request.arrival_s, output_tokens - 1
    tpot_s = (finish_s - first_token_s) / gaps if gaps else math.nan
    return first_token_s - arrival_s, tpot_s, finish_s - arrival_s, max(0.0, admitted_s - arrival_s)


class Metrics(Observer):
    """An observer of one or more replicas that sums up what they do.

    Args:
        usable_blocks: blocks of one replica's cache that can have an owner; their mean, where replicas differ.
        block_size: tokens of a block; nothing where there are several groups of blocks, or states in them, which leaves
            open what is wasted.
        replicas: how many are watched.
        slo: limits, for the share of requests that met all of those that a request has.
    """

    def __init__(
        self, *, usable_blocks: float, block_size: int | None, replicas: int = 1, slo: tuple[Limit, ...] = ()
    ) -> None:
        self._blocks, self._block_size, self._replicas = usable_blocks, block_size, replicas
        self._limits = [(OF_REQUEST.index(limit.latency), limit.most_s) for limit in slo if limit.latency in OF_REQUEST]
        self.of = {name: Quantiles() for name in LATENCIES}
        self._adds = [self.of[name].adder for name in OF_REQUEST]
        self.requests = self.prompt_tokens = self.output_tokens = self.hit_tokens = self.preemptions = 0
        self.attained = self.refusals = self._gaps = 0
        self.steps = self.computed_tokens = self.generated_tokens = self.most_blocks = self.most_running = 0
        self.first_s, self.last_s = math.inf, 0.0
        self._busy_s = self._running_s = self._block_s = self._held_s = 0.0
        self._limiters: dict[str, float] = {}

    def runs(self, runs: Sequence[Run]) -> None:
        """Take in some runs of steps."""
        limiters = self._limiters
        lines: list[tuple[float, float, int, int]] = []
        steps_run = computed = generated = 0
        busy_s = running_s = block_s = held_s = 0.0
        most_blocks, most_running = self.most_blocks, self.most_running
        for (
            start_s,
            end_s,
            steps,
            first_s,
            slope_s,
            decodes,
            prefill,
            output,
            running,
            _,
            blocks,
            end,
            running_context,
            by,
        ) in runs:
            if decodes:
                lines.append((first_s, first_s + slope_s * (steps - 1), steps, decodes))
            taken_s = end_s - start_s
            steps_run += steps
            computed += steps * prefill
            generated += steps * output
            busy_s += taken_s
            running_s += taken_s * running
            block_s += taken_s * (blocks + end)
            held_s += taken_s * (running_context + decodes * (steps - 1) / 2)
            limiters[by] = limiters.get(by, 0.0) + taken_s
            if end > most_blocks:  # noqa: PLR1730  the innermost loop
                most_blocks = end
            if running > most_running:  # noqa: PLR1730
                most_running = running
        self.of["inter_token"].add_lines(lines)
        for values in self.of.values():
            values.settle()
        self.steps += steps_run
        self.computed_tokens += computed
        self.generated_tokens += generated
        self._busy_s += busy_s
        self._running_s += running_s
        self._block_s += block_s / 2
        self._held_s += held_s
        self.most_blocks, self.most_running = most_blocks, most_running

    def gap(self, request: Request, seconds: float) -> None:
        """Take in a time between two tokens that no run counts."""
        del request
        self._gaps += 1
        self.of["inter_token"].add(seconds)

    def preempted(self, request: Request, at_s: float) -> None:
        """Count a preemption."""
        del request, at_s
        self.preemptions += 1

    def refused(self, request: Request, at_s: float, reason: str) -> None:
        """Count a request that can never run."""
        del request, at_s, reason
        self.refusals += 1

    def finished(self, served: Served) -> None:
        """Take in a request that was answered."""
        request = served.request
        values = latencies(served)
        ttft_s, tpot_s, e2e_s, queue_s = values
        add_ttft, add_tpot, add_e2e, add_queue = self._adds
        add_ttft(ttft_s)
        if tpot_s >= 0:  # not for a request of one token
            add_tpot(tpot_s)
        add_e2e(e2e_s)
        add_queue(queue_s)
        if self._limits:
            self.attained += not any(values[index] > most_s for index, most_s in self._limits)
        self.requests += 1
        self.prompt_tokens += request.prompt_tokens
        self.output_tokens += served.output_tokens
        self.hit_tokens += served.cached_tokens
        self.first_s = min(self.first_s, request.arrival_s)
        self.last_s = max(self.last_s, served.finish_s)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last answer."""
        return max(0.0, self.last_s - self.first_s) if self.requests else 0.0

    def statistics(self, latency: str) -> dict[str, float]:
        """Return a latency's quantiles and mean by name."""
        values = self.of[latency]
        return dict(zip(QUANTILES, values.quantiles(tuple(QUANTILES.values())), strict=True)) | {"mean": values.mean}

    def kept(self, limit: Limit) -> bool:
        """Whether a latency is within a limit; one that no request has is."""
        return not self.statistics(limit.latency)[limit.statistic] > limit.most_s

    def summary(self, *, gpus: int, memory_bytes: int) -> ServingSummary:
        """Return the figures of the whole run.

        Args:
            gpus: accelerators of all replicas.
            memory_bytes: memory of all of them.
        """
        makespan_s = self.makespan_s
        tokens_per_s = _ratio(self.output_tokens, makespan_s)
        return ServingSummary(
            requests=self.requests,
            refused_requests=self.refusals,
            makespan_s=makespan_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            ttft_s=self.statistics("ttft"),
            tpot_s=self.statistics("tpot"),
            inter_token_s=self.statistics("inter_token"),
            e2e_s=self.statistics("e2e"),
            queue_s=self.statistics("queue"),
            requests_per_s=_ratio(self.requests, makespan_s),
            output_tokens_per_s=tokens_per_s,
            total_tokens_per_s=_ratio(self.prompt_tokens + self.output_tokens, makespan_s),
            output_tokens_per_s_per_gpu=tokens_per_s / gpus,
            output_tokens_per_s_per_gib=_ratio(tokens_per_s * GIB, memory_bytes),
            goodput_requests_per_s=_ratio(self.attained, makespan_s) if self._limits else None,
            slo_share=_ratio(self.attained, self.requests) if self._limits else None,
            preemptions=self.preemptions,
            # after a gap a request computes the token before it too, for the first time
            recomputed_tokens=self.computed_tokens - (self.prompt_tokens - self.hit_tokens) - self._gaps,
            prefix_hit_ratio=_ratio(self.hit_tokens, self.prompt_tokens),
            cache_used_share=self._occupancy(makespan_s),
            cache_peak_share=_ratio(self.most_blocks, self._blocks),
            cache_waste_share=self._waste(),
            busy_share=_ratio(self._busy_s, makespan_s * self._replicas),
            mean_running_requests=_ratio(self._running_s, makespan_s * self._replicas),
            most_running_requests=self.most_running,
            steps=self.steps,
            limiter_shares=self._limiter_shares(),
        )

    def _occupancy(self, makespan_s: float) -> float:
        return _ratio(self._block_s, makespan_s * self._blocks * self._replicas)

    def _waste(self) -> float | None:
        """Return the share of places without a token; tokens in shared blocks count for each sequence."""
        if self._block_size is None:
            return None
        places_s = self._block_s * self._block_size
        return max(0.0, 1 - _ratio(self._held_s, places_s)) if places_s else 0.0

    def _limiter_shares(self) -> Mapping[str, float]:
        return {name: _ratio(taken_s, self._busy_s) for name, taken_s in sorted(self._limiters.items())}


class ReplicaTotals(Observer):
    """An observer of one of several replicas: its share of the work, without latencies.

    Args:
        usable_blocks: blocks of its cache that can have an owner.
    """

    def __init__(self, *, usable_blocks: int) -> None:
        self._blocks = usable_blocks
        self.requests = self.preemptions = self.output_tokens = 0
        self._prompt_tokens = self._hit_tokens = 0
        self._busy_s = self._block_s = 0.0

    def runs(self, runs: Sequence[Run]) -> None:
        """Take in some runs of steps."""
        busy_s = block_s = 0.0
        tokens = 0
        for start_s, end_s, steps, _, _, _, _, output, _, _, blocks, end, _, _ in runs:
            taken_s = end_s - start_s
            busy_s += taken_s
            block_s += taken_s * (blocks + end)
            tokens += steps * output
        self._busy_s += busy_s
        self._block_s += block_s / 2
        self.output_tokens += tokens

    def preempted(self, request: Request, at_s: float) -> None:
        """Count a preemption."""
        del request, at_s
        self.preemptions += 1

    def finished(self, served: Served) -> None:
        """Count a request that was answered."""
        self.requests += 1
        self._prompt_tokens += served.request.prompt_tokens
        self._hit_tokens += served.cached_tokens

    @property
    def prefix_hit_ratio(self) -> float:
        """The share of its prompt tokens that were found in its cache."""
        return _ratio(self._hit_tokens, self._prompt_tokens)

    def cache_used_share(self, makespan_s: float) -> float:
        """Return the share of its blocks that have an owner, mean over a time."""
        return _ratio(self._block_s, makespan_s * self._blocks)

    def busy_share(self, makespan_s: float) -> float:
        """Return the share of a time in which it runs steps."""
        return _ratio(self._busy_s, makespan_s)


def _ratio(one: float, other: float) -> float:
    return one / other if other else 0.0
