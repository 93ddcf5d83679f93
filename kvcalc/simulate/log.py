"""What a serving run tells whoever watches it: runs of equal steps, and requests that have been answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kvcalc.core.requests import Request

__all__ = ["Answered", "Observer", "StepRun"]


class StepRun(NamedTuple):
    """Steps in a row in which nothing was decided: the same sequences advance, and step times form a straight line.

    Args:
        start_s: when the first step began.
        end_s: when the last one ended.
        steps: how many.
        first_step_s: time of the first.
        last_step_s: time of the last.
        tokens: sequences that got a token in each of the steps, and one in the step before too: that many inter-token
            gaps as long as each step.
        gaps_s: other inter-token gaps that end in the first step, of sequences that were preempted or passed over.
        prompt_tokens: prompt tokens computed, over all the steps.
        running: sequences running.
        waiting: requests waiting.
        used_blocks: blocks with an owner at the end of the run.
        held_tokens: tokens in them.
        limiter: what limits the steps.
    """

    start_s: float
    end_s: float
    steps: int
    first_step_s: float
    last_step_s: float
    tokens: int
    gaps_s: tuple[float, ...]
    prompt_tokens: int
    running: int
    waiting: int
    used_blocks: int
    held_tokens: int
    limiter: str


class Answered(NamedTuple):
    """A request that got its last token.

    Args:
        request: the request.
        admitted_s: when the first step that worked on it began.
        first_token_s: when the step that gave its first token ended.
        finished_s: when the step that gave its last token ended.
        output_tokens: tokens it got.
        hit_tokens: prompt tokens found in the cache when it was first admitted.
        preemptions: how often it was preempted.
    """

    request: Request
    admitted_s: float
    first_token_s: float
    finished_s: float
    output_tokens: int
    hit_tokens: int
    preemptions: int


class Observer(Protocol):
    """Somebody who watches a serving run."""

    def ran(self, run: StepRun) -> None:
        """Take note of steps."""

    def answered(self, answer: Answered) -> None:
        """Take note of a request that was answered."""
