"""Limits that no run of a deployment can meet: the least time of one request alone, at the hardware's peak rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kvcalc.core.units import seconds_text
from kvcalc.core.workload import TokenGroup, decode_step
from kvcalc.plan.steps import timed_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.planner.traffic import Traffic

__all__ = ["Bound", "least_times"]

# Latencies that hold a prompt's time.
_FROM_ARRIVAL = ("ttft", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least times of a deployment.

    Args:
        ttft_s: from a request to its first token, for the prompt that a limit is about, by statistic.
        tpot_s: per output token.
    """

    ttft_s: dict[str, float]
    tpot_s: float

    def of(self, latency: str, statistic: str) -> float:
        """Return the least time that a latency can be; 0 where none is known."""
        if latency in ("tpot", "inter_token"):
            return self.tpot_s
        return self.ttft_s.get(statistic, 0.0) if latency in _FROM_ARRIVAL else 0.0

    def broken(self, latency: str, statistic: str, most_s: float) -> str:
        """Say in words that a limit is below the bound; nothing where it is not.

        >>> Bound(ttft_s={"p95": 0.1}, tpot_s=0.012).broken("tpot", "p95", 0.01)
        'TPOT is at least 12.00 ms'
        """
        least_s = self.of(latency, statistic)
        name = "TPOT" if latency in ("tpot", "inter_token") else "TTFT"
        return f"{name} is at least {seconds_text(least_s)}" if least_s > most_s else ""


class Limited(Protocol):
    """An upper limit on a latency."""

    @property
    def latency(self) -> str:
        """The latency."""
        ...

    @property
    def statistic(self) -> str:
        """Its statistic."""
        ...


def least_times(
    deployment: Deployment, traffic: Traffic, limits: Sequence[Limited], *, tokens_per_pass: float = 1.0
) -> Bound:
    """Return the bound on one request that a deployment serves alone.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        traffic: the requests.
        limits: the limits whose bounds are wanted.
        tokens_per_pass: tokens that a decoding pass gives at most: more than 1 with drafts.
    """
    share = traffic.hit_tokens / traffic.prompt_tokens
    ttft_s = {}
    for statistic in {each.statistic for each in limits if each.latency in _FROM_ARRIVAL}:
        prompt = traffic.prompts[statistic]
        hit = int(share * prompt)
        group = TokenGroup(sequences=1, query_tokens=prompt - hit, past_tokens=hit)
        ttft_s[statistic] = timed_step(deployment, group).time.latency_s
    step = timed_step(deployment, decode_step(batch=1, context=traffic.shortest_prompt + 1))
    return Bound(ttft_s=ttft_s, tpot_s=step.time.latency_s / tokens_per_pass)
