"""A replica that takes the steps with prompts in which the policy has nothing to decide.

The others (several unfinished prompts that compete for a step, blocks that are lacking) are left to the scheduler.
"""

from __future__ import annotations

from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any

from kvcalc.simulate.fast.batched import BatchedReplica
from kvcalc.simulate.observers import Run
from kvcalc.simulate.scheduler import Step
from kvcalc.simulate.ticks import SECONDS_PER_TICK
from kvcalc.simulate.timer import sums_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.simulate.sequences import Job

__all__ = ["PromptReplica", "made_run"]

# What `Run._make` does, at half of its time.
made_run: Callable[[tuple[Any, ...]], Run] = partial(tuple.__new__, Run)


class PromptReplica(BatchedReplica):
    """A replica whose steps with prompts run without the policy where it has nothing to decide."""

    def _admit_alone(self) -> bool:
        """Admit the head of the queue where nobody else's prompt can have a part in the step; return whether it is.

        It then goes on as any unfinished prompt, from what it found in the cache; its first step is sure to run.
        """
        scheduler, cache = self.scheduler, self.cache
        if self._prefilling or len(self.running) >= self.limits.max_num_seqs:
            return False
        job, left = scheduler.waiting.head, self.limits.max_num_batched_tokens - self._contexts.count
        hit, cached = cache.find_prefix(job)
        tokens = min(job.known - cached, self._longest(), left)
        if tokens <= 1 or job.swapped or (len(scheduler.waiting) > 1 and tokens < left):
            return False
        if not scheduler.fits(job, hit, cached + tokens, beside=self._blocks.needed(self._clock)):
            return False
        scheduler.start(job, cached)
        cache.allocate(job, hit, tokens=cached)
        self._note_admission(job, cached)
        self._number(job)
        self._prefilling, self._blocked = [job], False
        return True

    def _prompt_alone(self, end: int) -> bool:
        """Let the one unfinished prompt go on, until it is through or there is something to decide.

        Returns whether there was a step. It needs a cache whose blocks never move on.
        """
        job, running, waiting = self._prefilling[0], len(self.running), len(self.scheduler.waiting)
        contexts, cache, blocks, line = self._contexts, self.cache, self._blocks, self.timer.line
        count, longest, is_last = contexts.count, self._longest(), self.running[-1] is job
        left = self.limits.max_num_batched_tokens - count
        moved = False
        while True:
            clock, start, past = self._clock, self.now, job.computed
            tokens = job.known - past
            if tokens > longest:  # noqa: PLR1730  the innermost loop
                tokens = longest
            if tokens > left and is_last:
                tokens = left
            if not 1 < tokens <= left or (waiting and tokens < left and not self._head_waits()):
                return moved
            computed = past + tokens
            needed, missing = blocks.needed(clock), cache.missing(job, tokens=computed)
            if needed + missing > cache.free:
                return moved
            cache.give(job, missing, beside=needed)
            if job.content:
                self._register_published(job)
                cache.hash_blocks(job, tokens=computed)
            job.computed = computed
            sums, through = contexts.sums(clock), computed == job.known
            logits = count + through
            taken, _, _, limiter = line(count + tokens, logits, sums, self._level, [(tokens, past)])
            self.now = start + taken
            self._clock = clock + 1
            owned = cache.usable - cache.free
            self._log_step(taken, count, tokens, logits, running, waiting, owned, sums[1] + computed, limiter)
            moved = True
            if through:
                job.known += 1
                self._note_token(job, start)
                self._prefilling = []
                self._leave([job])
                return True
            if self._ends and self._ends[0][0] <= self._clock:
                self._leave([])
                return True
            if self._next_arrival <= self.now or self.now >= end:
                return True

    def _log_step(
        self,
        taken: int,
        count: int,
        prompt_tokens: int,
        logits: int,
        running: int,
        waiting: int,
        owned: int,
        held_tokens: int,
        limiter: str,
    ) -> None:
        """Log a step with prompts that has ended."""
        start = self.now - taken
        self._log(
            made_run((
                start * SECONDS_PER_TICK, self.now * SECONDS_PER_TICK, 1, taken * SECONDS_PER_TICK, 0.0,
                count, prompt_tokens, logits, running, waiting, owned, owned, held_tokens, limiter,
            ))
        )  # fmt: skip

    def _mixed_step(self) -> bool:
        """Run one step with prompts; return whether it can be done without the policy."""
        clock, contexts, cache, start = self._clock, self._contexts, self.cache, self.now
        count = contexts.count
        work: list[tuple[Job, int]] = []
        left = self._go_on(work, self.limits.max_num_batched_tokens - count)
        if left is None:
            return False
        admitted = self._admit(left) if self.scheduler.waiting else None
        if admitted is not None:
            work += admitted.scheduled.items()
        owned, running, waiting = cache.usable - cache.free, len(self.running), len(self.scheduler.waiting)
        sums = contexts.sums(clock)
        prompt_tokens, held_tokens = 0, sums[1]
        chunks, single, yielding, unfinished = [], [], [], []
        for job, tokens in work:
            past = job.computed
            job.computed = computed = past + tokens
            held_tokens += computed
            prompt_tokens += tokens
            if tokens > 1:
                chunks.append((tokens, past))
            else:
                single.append(computed)
            if computed == job.known:
                yielding.append(job)
            else:
                unfinished.append(job)
        self._prefilling = unfinished
        if single:
            sums = tuple(map(add, sums, sums_of(single, self.timer)))
        tokens, logits = count + prompt_tokens, count + len(yielding)
        taken, _, _, limiter = self.timer.line(tokens, logits, sums, self._level, chunks)
        if admitted is not None and admitted.swapped_in:
            taken += self._swap_ticks * self._swapped_blocks(admitted)
        self.now = start + taken
        self._clock = clock + 1
        self._log_step(taken, count, prompt_tokens, logits, running, waiting, owned, held_tokens, limiter)
        for job in yielding:
            job.known += 1
            self._note_token(job, start)
        if yielding or (self._ends and self._ends[0][0] <= self._clock):
            self._leave(yielding)
        return True

    def _go_on(self, work: list[tuple[Job, int]], left: int) -> int | None:
        """Let unfinished prompts go on and give all that run the blocks of one step.

        Args:
            work: the prompts with their tokens in the step are put here.
            left: tokens of the step that they may share.

        Returns the tokens that are left then; nothing where the policy must share them out, or blocks are lacking.
        """
        clock, cache, blocks = self._clock, self.cache, self._blocks
        if blocks.moving:
            blocks.next_event(clock)
        if not self._prefilling:
            advanced, _, taken = blocks.take(clock, 1, cache.free)
            if not advanced:
                return None
            cache.take(taken)
            blocks.given()
            return left
        lacking, asked, longest = [], 0, self._longest()
        for job in self._prefilling:
            tokens = min(job.known - job.computed, longest)
            if tokens > left:
                if left <= 0 or len(self._prefilling) > 1 or self.running[-1] is not job:
                    return None
                tokens = left
            left -= tokens
            work.append((job, tokens))
            missing = cache.missing(job, tokens=job.computed + tokens)
            lacking.append(missing)
            asked += max(missing, 0)
        advanced, _, taken = blocks.take(clock, 1, cache.free - asked)
        if not advanced:
            return None
        cache.take(taken)
        blocks.given()
        for (job, tokens), missing in zip(work, lacking, strict=True):
            cache.give(job, missing)
            if job.content:
                self._register_published(job)
                cache.hash_blocks(job, tokens=job.computed + tokens)
        return left

    def _admit(self, left: int) -> Step[Job] | None:
        """Admit whom the policy admits, and note whether the head of the queue must wait for an event."""
        self._blocked = False
        if left <= 0:
            return None
        step: Step[Job] = Step()
        left = self.scheduler.admit_waiting(step, left, self._longest())
        self._blocked = left > 0 and self._blocks_head()
        if step.scheduled:
            self._note_admissions(step)
            for job in step.scheduled:
                self._number(job)
        return step
