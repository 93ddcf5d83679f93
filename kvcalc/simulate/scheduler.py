"""Continuous batching: which tokens of which sequences run in the next step.

The policy is that of vLLM 0.32 (v1/core/sched/scheduler.py), step by step. It reads as the policy and touches every
sequence in every step; `kvcalc.simulate.fast.forward` jumps over the steps in which nothing is decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal

from kvcalc.core.errors import InputError
from kvcalc.simulate.sequences import FifoQueue, PriorityQueue, S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.simulate.cache import Cache
    from kvcalc.simulate.sequences import Queue

__all__ = ["MAX_WAITING", "Limits", "Policy", "Preemption", "Scheduler", "Step", "check_waiting"]

Policy = Literal["fcfs", "priority"]
Preemption = Literal["recompute", "swap"]

# Requests that wait at once, at some 500 bytes each; no engine has a queue of that length.
MAX_WAITING = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of an engine's scheduling.

    Args:
        max_num_batched_tokens: tokens of one step at most.
        max_num_seqs: sequences that run at once.
        max_model_len: tokens of a sequence, prompt and output together.
        policy: ``fcfs``, or ``priority``: lower values first.
        preemption: whether a sequence that lost its blocks computes its tokens again, or finds them in host memory.
        prefix_caching: whether blocks are kept for later prompts.
        long_prefill_token_threshold: tokens of a prompt in one step at most, where others run too; 0 for no such limit.
        reserve_full_prompt: whether a sequence is admitted only if all its known tokens would fit
            (``scheduler_reserve_full_isl``).
        watermark_blocks: blocks that an admission leaves free while others run.
        speculative_tokens: draft tokens of each verification.
        lookahead_tokens: slots a drafter needs beyond them.
        in_flight_batches: 2 where a step is scheduled before the output of the one before it is known.
        max_waiting: requests that wait at once, beyond which a simulation is refused; engines have no such limit.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    policy: Policy = "fcfs"
    preemption: Preemption = "recompute"
    prefix_caching: bool = False
    long_prefill_token_threshold: int = 0
    reserve_full_prompt: bool = True
    watermark_blocks: int = 0
    speculative_tokens: int = 0
    lookahead_tokens: int = 0
    in_flight_batches: int = 1
    max_waiting: int = MAX_WAITING

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "in_flight_batches"):
            if getattr(self, name) < 1:
                raise InputError(f"{name.replace('_', '-')} must be 1 or more, not {getattr(self, name)}")
        for name in ("long_prefill_token_threshold", "watermark_blocks", "speculative_tokens", "lookahead_tokens"):
            if getattr(self, name) < 0:
                raise InputError(f"{name.replace('_', '-')} must be 0 or more, not {getattr(self, name)}")
        if self.policy not in ("fcfs", "priority"):
            raise InputError(f"policy {self.policy!r} is not known", hint="policies: fcfs, priority")


def check_waiting(requests: int, limits: Limits) -> None:
    """Refuse more requests waiting at once than a simulation keeps: the memory that they take has no other bound.

    Raises:
        InputError: there are more.
    """
    if requests > limits.max_waiting:
        hint = "simulate fewer, with --requests N, or at a lower rate"
        raise InputError(f"more than {limits.max_waiting:,} requests wait at once", hint=hint)


class Step(Generic[S]):
    """The work of one step.

    Attributes:
        scheduled: new tokens of each sequence, in the order in which they were scheduled.
        drafts: how many of them are drafts.
        new: sequences admitted for the first time.
        resumed: sequences admitted again after a preemption.
        preempted: sequences that lost their blocks.
        hits: tokens that each admitted sequence found in the cache, where there were any.
        swapped_in: tokens that each admitted sequence gets back from host memory.
        yielding: sequences that get a token, with the drafts that are verified.
    """

    __slots__ = ("drafts", "hits", "new", "preempted", "resumed", "scheduled", "swapped_in", "yielding")

    def __init__(self) -> None:
        self.scheduled: dict[S, int] = {}
        self.drafts: dict[S, int] = {}
        self.new: list[S] = []
        self.resumed: list[S] = []
        self.preempted: list[S] = []
        self.hits: dict[S, int] = {}
        self.swapped_in: dict[S, int] = {}
        self.yielding: dict[S, int] = {}


class Scheduler(Generic[S]):
    """The policy: running sequences first, then the head of the waiting queue."""

    def __init__(self, limits: Limits, cache: Cache) -> None:
        self.limits = limits
        self.cache = cache
        self.running: list[S] = []
        self.waiting: Queue[S] = PriorityQueue() if limits.policy == "priority" else FifoQueue()

    def submit(self, sequence: S) -> None:
        """Put a new request into the queue.

        Raises:
            InputError: more wait than may.
        """
        self.waiting.add(sequence)
        if len(self.waiting) > self.limits.max_waiting:
            check_waiting(len(self.waiting), self.limits)

    def schedule(self) -> Step[S]:
        """Choose the tokens of the next step and give out the blocks they need."""
        step: Step[S] = Step()
        alone = len(self.running) + len(self.waiting) <= 1
        longest = (not alone and self.limits.long_prefill_token_threshold) or self.limits.max_num_batched_tokens
        left = self._continue_running(step, self.limits.max_num_batched_tokens, longest)
        if not step.preempted:
            self.admit_waiting(step, left, longest)
        for sequence, tokens in step.scheduled.items():
            sequence.computed += tokens
            drafts = step.drafts.get(sequence, 0)
            if sequence.computed == sequence.known + sequence.in_flight + drafts:
                step.yielding[sequence] = drafts
                sequence.in_flight += 1 + drafts
        return step

    def process(self, step: Step[S], accepted: Mapping[S, int]) -> list[tuple[S, int, bool]]:
        """Take in the output of a step: one token, and the accepted drafts, of each sequence whose tokens are computed.

        Returns each sequence, how many tokens it got, and whether it has finished.

        Args:
            step: the step.
            accepted: drafts accepted of each sequence; none where it is left out.
        """
        output = [self._take_output(sequence, drafts, accepted) for sequence, drafts in step.yielding.items()]
        for sequence, _, finished in output:
            if finished:
                self._finish(sequence)
        return output

    def _continue_running(self, step: Step[S], left: int, longest: int) -> int:
        """Schedule the running sequences in order, preempting where blocks are lacking; return the tokens left."""
        index = 0
        while index < len(self.running) and left > 0:
            sequence = self.running[index]
            index += 1
            tokens = min(self._due(sequence), longest, left)
            if tokens <= 0:
                continue
            holding = self._holding(sequence.computed + tokens)
            while not self.cache.can_append(sequence, tokens=holding):
                victim = self._victim()
                self._preempt(step, victim)
                if victim is sequence:
                    return left
                if victim in step.scheduled:
                    left += step.scheduled.pop(victim)
                    step.drafts.pop(victim, None)
                    index -= 1
            self.cache.append(sequence, tokens=holding)
            left -= tokens
            self.put(step, sequence, tokens)
        return left

    def _due(self, sequence: S) -> int:
        """Return the tokens a running sequence could compute now."""
        if sequence.in_flight and sequence.computed + 2 - sequence.in_flight >= sequence.last_known:
            return 0  # the step under way ends it
        due = sequence.known + sequence.drafts + sequence.in_flight - sequence.computed
        return min(due, self.limits.max_model_len - 1 - sequence.computed)

    def _holding(self, tokens: int) -> int:
        return min(tokens + self.limits.lookahead_tokens, self.limits.max_model_len)

    def put(self, step: Step[S], sequence: S, tokens: int) -> None:
        """Put a sequence that has its blocks into a step."""
        step.scheduled[sequence] = tokens
        drafts = sequence.computed + tokens - sequence.known - sequence.in_flight
        if drafts > 0:
            step.drafts[sequence] = drafts
        sequence.drafts = 0
        self.cache.hash_blocks(sequence, tokens=min(sequence.computed + tokens, sequence.known))

    def _victim(self) -> S:
        """Choose the sequence that loses its blocks: the last admitted, or the least urgent."""
        if self.limits.policy == "priority":
            return max(self.running, key=lambda sequence: sequence.rank)
        return self.running[-1]

    def _preempt(self, step: Step[S], victim: S) -> None:
        self.running.remove(victim)
        self.cache.deallocate(victim)
        if self.limits.preemption == "swap":
            victim.swapped = victim.computed
        victim.computed = victim.drafts = 0
        victim.preemptions += 1
        victim.running = False
        self.waiting.put_back(victim)
        step.preempted.append(victim)

    def admit_waiting(self, step: Step[S], left: int, longest: int) -> int:
        """Admit from the head of the queue while tokens, places and blocks last; nobody overtakes a head that waits.

        Args:
            step: the step so far.
            left: tokens it may still compute.
            longest: tokens of one sequence at most.

        Returns the tokens that are left then.
        """
        limits, cache = self.limits, self.cache
        while left > 0 and self.waiting and len(self.running) < limits.max_num_seqs:
            sequence = self.waiting.head
            hit, cached = cache.find_prefix(sequence)
            cached = max(cached, sequence.swapped)
            tokens = sequence.known - cached
            if tokens == 1 and limits.speculative_tokens and self._takes_drafts(step, cached):
                tokens += limits.speculative_tokens
                if tokens > left:
                    return left
            tokens = min(tokens, longest, left)
            if not self.fits(sequence, hit, cached + tokens):
                return left
            self.start(sequence, cached)
            cache.allocate(sequence, hit, tokens=self._holding(cached + tokens))
            self._note_start(step, sequence, cached)
            left -= tokens
            self.put(step, sequence, tokens)
        return left

    def _takes_drafts(self, step: Step[S], cached: int) -> bool:
        """Whether a sequence admitted for its last token alone is padded to a verification, as the others are."""
        if cached + self.limits.speculative_tokens + 2 > self.limits.max_model_len:
            return False
        admitted = {*step.new, *step.resumed}
        if any(
            sequence.computed + tokens < sequence.known
            for sequence, tokens in step.scheduled.items()
            if sequence not in admitted
        ):
            return False
        return bool(step.scheduled) or cached > 0

    def fits(self, sequence: S, hit: Any, tokens: int, *, beside: int = 0) -> bool:
        """Whether the head of the queue could be admitted to hold so many tokens, with what it found in the cache.

        Args:
            sequence: the head.
            hit: what it found.
            tokens: those found and those of its first step.
            beside: blocks that others take in the same step.
        """
        limits = self.limits
        reserved = self._holding(tokens)
        if limits.reserve_full_prompt:
            reserved = max(reserved, min(sequence.known, limits.max_model_len))
        spare = limits.watermark_blocks if self.running else 0
        return self.cache.can_allocate(hit, tokens=reserved, spare=spare + beside)

    def start(self, sequence: S, cached: int) -> None:
        """Let the head of the queue run, with the tokens it found in the cache."""
        self.waiting.remove_head()
        self.running.append(sequence)
        sequence.running = True
        sequence.computed = cached

    def _note_start(self, step: Step[S], sequence: S, cached: int) -> None:
        (step.resumed if sequence.preemptions else step.new).append(sequence)
        if sequence.swapped:
            step.swapped_in[sequence] = sequence.swapped
            sequence.swapped = 0
        elif cached:
            step.hits[sequence] = cached

    def _take_output(self, sequence: S, drafts: int, accepted: Mapping[S, int]) -> tuple[S, int, bool]:
        taken = min(accepted.get(sequence, 0), drafts)
        sequence.in_flight -= 1 + drafts
        last = min(sequence.last_known, self.limits.max_model_len)
        tokens = min(1 + taken, last - sequence.known)
        sequence.known += tokens
        finished = sequence.known >= last
        if sequence.running:
            sequence.computed -= drafts - taken
            if not finished:
                sequence.drafts = self.limits.speculative_tokens
            if self.limits.in_flight_batches > 1:
                self.cache.hash_blocks(sequence, tokens=sequence.computed - sequence.in_flight)
        return sequence, tokens, finished

    def _finish(self, sequence: S) -> None:
        if not sequence.running:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        sequence.running = False
        self.cache.deallocate(sequence)
