"""A traffic summed up: how long requests are and how many come, which bounds and estimates are computed for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.reports.simulate import QUANTILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvcalc.core.requests import Request

__all__ = ["Traffic", "traffic_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests to a service.

    Args:
        rate_per_s: requests a second at the peak.
        prompt_tokens: mean tokens of a prompt.
        output_tokens: mean tokens of an answer.
        hit_tokens: mean tokens of a prompt that the cache holds already.
        prompts: tokens of a prompt that a share of the requests does not exceed, by statistic; of ``mean`` the mean.
        variation: squared coefficient of variation of the prompts.
        longest: tokens of the longest request, prompt and answer.
        shortest_prompt: tokens of the shortest prompt.
    """

    rate_per_s: float
    prompt_tokens: float
    output_tokens: float
    hit_tokens: float = 0.0
    prompts: Mapping[str, int]
    variation: float = 0.0
    longest: int
    shortest_prompt: int

    @property
    def computed_tokens(self) -> float:
        """Mean tokens of a prompt that a prefill computes."""
        return max(1.0, self.prompt_tokens - self.hit_tokens)

    @property
    def context(self) -> int:
        """Tokens that a decoding request attends to, mean over its answer."""
        return max(1, round(self.prompt_tokens + (self.output_tokens + 1) / 2))

    @property
    def held_tokens(self) -> int:
        """Tokens of the cache that a running request holds, mean over its answer, those it shares left out."""
        return max(1, round(self.context - self.hit_tokens))


def traffic_of(requests: Iterable[Request], *, rate_per_s: float, prefix_share: float = 0.0) -> Traffic:
    """Sum up requests.

    Args:
        requests: one or more of them.
        rate_per_s: requests a second at the peak.
        prefix_share: share of each prompt's tokens that all prompts begin with.

    Raises:
        InputError: no request, or a share that leaves no token to compute.

    >>> from kvcalc.core.requests import Request
    >>> found = traffic_of([Request("1", 0.0, 100, 10), Request("2", 0.0, 300, 30)], rate_per_s=2, prefix_share=0.5)
    >>> found.prompt_tokens, found.hit_tokens, found.longest, found.prompts["p95"], found.context
    (200.0, 100.0, 330, 300, 210)
    """
    prompts, outputs, longest = [], [], 0
    for request in requests:
        prompts.append(request.prompt_tokens)
        outputs.append(request.output_tokens)
        longest = max(longest, request.prompt_tokens + request.output_tokens)
    if not prompts:
        raise InputError("the traffic has no request")
    if not 0 <= prefix_share < 1:
        raise InputError(
            f"a prefix share must be from 0 to less than 1, not {prefix_share:g}", parameter="prefix-share"
        )
    prompts.sort()
    mean = sum(prompts) / len(prompts)
    spread = sum((tokens - mean) ** 2 for tokens in prompts) / len(prompts)
    return Traffic(
        rate_per_s=rate_per_s,
        prompt_tokens=mean,
        output_tokens=sum(outputs) / len(outputs),
        hit_tokens=prefix_share * mean,
        prompts=_quantiles(prompts) | {"mean": max(1, int(mean))},
        variation=spread / mean**2,
        longest=longest,
        shortest_prompt=prompts[0],
    )


def _quantiles(lengths: list[int]) -> dict[str, int]:
    """Return quantiles of sorted lengths."""
    last = len(lengths) - 1
    return {name: lengths[min(last, int(share * len(lengths)))] for name, share in QUANTILES.items()}
