"""A replica that jumps over the steps in which nothing is decided.

While nobody comes, is admitted, finishes or runs out of blocks, every running sequence gets a token in each step, and
the steps' durations form straight lines: such a stretch is taken at once. Decoding sequences are not touched; the
replica counts steps, and what a sequence has computed is its base plus that count. Steps that the policy must think
about (a preemption, several unfinished prompts that compete) are left to the scheduler, with every sequence brought up
to date.
"""

from __future__ import annotations

import heapq
from operator import add
from typing import TYPE_CHECKING

from kvcalc.core.requests import Segment
from kvcalc.simulate.advancing import BlockClock, Contexts, steps_before
from kvcalc.simulate.cache import GroupedCache
from kvcalc.simulate.jobs import Job
from kvcalc.simulate.runs import Run
from kvcalc.simulate.scheduler import Step
from kvcalc.simulate.serving import Replica
from kvcalc.simulate.stretches import StretchCache, Writers
from kvcalc.simulate.timer import SECONDS_PER_TICK, sums_of

if TYPE_CHECKING:
    from kvcalc.core.requests import Request
    from kvcalc.simulate.cache import CountingCache
    from kvcalc.simulate.runs import Observer
    from kvcalc.simulate.serving import ServingSetup

__all__ = ["JumpingReplica", "replica"]


class JumpingReplica(Replica):
    """A replica that takes the same decisions at the same ticks as one that is stepped.

    Args:
        setup: what it is made of.
        observer: who is told what happens.
    """

    cache: CountingCache

    def __init__(self, setup: ServingSetup, observer: Observer) -> None:
        self._writers = Writers()
        self._ahead = 0
        self._in_line = setup.limits.policy == "fcfs"
        super().__init__(setup, observer)
        self._clock = 0
        self._admissions = 0
        self._prefilling: list[Job] = []
        # the head of the queue cannot be admitted until something finishes or is preempted, or overtakes it
        self._blocked = False
        # a step did not reach every sequence, so the next one does not follow for all of them
        self._passed_over = False
        self._ends: list[tuple[int, int, Job]] = []
        self._contexts = Contexts(self.timer.caps, self.timer.periods)
        self._blocks = BlockClock(setup.groups)

    def _make_cache(self) -> CountingCache:
        if not self.limits.prefix_caching:
            return GroupedCache(num_blocks=self.setup.num_blocks, groups=self.setup.groups)
        return StretchCache(
            num_blocks=self.setup.num_blocks,
            block_size=self.setup.groups[0].block_size,
            before_lookup=self._register_published,
        )

    def _content(self, request: Request, order: int) -> tuple[Segment, ...]:
        """Return what others could ask for too; a policy that takes back what it scheduled needs to know all."""
        if not self._in_line:
            return super()._content(request, order)
        if not request.prompt or request.output_stream is None:
            return request.prompt
        return (*request.prompt, Segment(request.output_stream, request.output_start, request.output_tokens))

    def _register_published(self, job: Job) -> None:
        """Register the blocks that running sequences have filled with tokens of a job's prompt."""
        if self._writers:
            for other in self._writers.of(job):
                self.cache.hash_blocks(other, tokens=other.base + self._clock + self._ahead)

    def _receive(self, job: Job) -> None:
        super()._receive(job)
        if not self._in_line:
            self._blocked = False

    def _move(self, end: int) -> None:
        """Run one step, or as many as begin before a tick and leave nothing to decide."""
        if self._passed_over:
            moved = False
        elif self._prefilling or (self.scheduler.waiting and not self._head_waits()):
            self._ahead = 1
            alone = len(self._prefilling) == 1 and not self._blocks.moving
            moved = (alone and self._prompt_alone(end)) or self._mixed_step()
            self._ahead = 0
        else:
            moved = self._jump(end)
        if not moved:
            self._policy_step()

    def _jump(self, end: int) -> bool:
        """Take all steps up to the next event at once; return whether there is any without a decision."""
        clock, contexts, cache, start = self._clock, self._contexts, self.cache, self.now
        sums = contexts.sums(clock)
        count = sums[0]
        first, slope, steps, limiter = self.timer.line(count, count, sums, contexts.slopes(), ())
        event = self._ends[0][0]
        if not contexts.straight:
            event = min(event, contexts.next_knee(clock))
        if self._blocks.moving:
            event = min(event, self._blocks.next_event(clock))
        if not (self._blocked and self._in_line) and self._next_arrival < end:
            end = self._next_arrival
        steps = steps_before(end - start, first, slope, min(steps, event - clock))
        free = cache.free
        steps, first_taken, taken = self._blocks.take(clock, steps, free)
        if not steps or count > self.limits.max_num_batched_tokens:
            return False
        cache.take(taken)
        self.now = now = start + first * steps + slope * (steps * (steps - 1) // 2)
        self._clock = clock + steps
        owned = cache.usable - free
        self._log(
            Run._make((
                start * SECONDS_PER_TICK, now * SECONDS_PER_TICK, steps, first * SECONDS_PER_TICK,
                slope * SECONDS_PER_TICK, count, 0, count, count, len(self.scheduler.waiting), owned + first_taken,
                owned + taken, sums[1], limiter,
            ))
        )  # fmt: skip
        if self._ends[0][0] <= self._clock:
            self._leave([])
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
            cache.take(needed)
            cache.give(job, missing)
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
        held: int,
        limiter: str,
    ) -> None:
        """Log a step with prompts that has ended."""
        end_s, taken_s = self.now * SECONDS_PER_TICK, taken * SECONDS_PER_TICK
        start_s = (self.now - taken) * SECONDS_PER_TICK
        of_step = (count, prompt_tokens, logits, running, waiting, owned, owned, held, limiter)
        self._log(Run._make((start_s, end_s, 1, taken_s, 0.0, *of_step)))

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
        prompt_tokens, held = 0, sums[1]
        chunks, single, yielding, unfinished = [], [], [], []
        for job, tokens in work:
            past = job.computed
            job.computed = computed = past + tokens
            held += computed
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
        self._log_step(taken, count, prompt_tokens, logits, running, waiting, owned, held, limiter)
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
            cache.take(taken)
            return left if advanced else None
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
        for (job, tokens), missing in zip(work, lacking, strict=True):
            cache.give(job, missing)
            if self.limits.prefix_caching and job.content:
                self._register_published(job)
                cache.hash_blocks(job, tokens=job.computed + tokens)
        return left

    def _longest(self) -> int:
        """Return the tokens of one prompt in a step at most."""
        limits = self.limits
        if limits.long_prefill_token_threshold and len(self.running) + len(self.scheduler.waiting) > 1:
            return limits.long_prefill_token_threshold
        return limits.max_num_batched_tokens

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

    def _head_waits(self) -> bool:
        """Whether the head of the queue cannot be admitted before an event."""
        if not self._blocked or not self._writers:
            return self._blocked
        return not self._writers.of(self.scheduler.waiting.head)

    def _blocks_head(self) -> bool:
        """Whether a head that was not admitted must wait for an event: windows that move on give blocks back before."""
        full = len(self.running) >= self.limits.max_num_seqs
        return bool(self.scheduler.waiting) and (full or not self._blocks.moving)

    def _policy_step(self) -> None:
        """Leave one step to the scheduler: bring every sequence up to date, and gather them again."""
        clock = self._clock
        for job in self.running:
            if job.decoding:
                self._catch_up(job)
        self._step()
        self._clock = clock + 1
        self._blocked = False
        self._contexts.clear()
        self._blocks.clear()
        self._ends.clear()
        self._writers.clear()
        self._prefilling = []
        self._passed_over = False
        for job in self.running:
            self._number(job)
            if job.decoding:
                self._join(job)
                self._passed_over |= job.last_token != self.now
            else:
                self._prefilling.append(job)

    def _catch_up(self, job: Job) -> None:
        if job.joined < self._clock:
            job.computed = job.base + self._clock
            job.known = job.computed + 1
            job.last_token = self.now
            self.cache.catch_up(job)

    def _number(self, job: Job) -> None:
        self._admissions += 1
        job.place = self._admissions

    def _join(self, job: Job) -> None:
        """Let a sequence that got its first token, or the first after a preemption, advance with the others."""
        clock = self._clock
        job.base, job.joined = job.computed - clock, clock
        self._contexts.add(job, clock)
        self._blocks.add(job, clock, self.cache.held_by(job) if self._blocks.moving else 0)
        if job.request.output_stream is not None and self.limits.prefix_caching:
            self._writers.add(job)
        heapq.heappush(self._ends, (clock + job.end - job.known, job.place, job))

    def _leave(self, yielding: list[Job]) -> None:
        """Let those finish that got their last token, in the order of the running list, and the others join."""
        clock, ends = self._clock, self._ends
        finished = []
        for job in yielding:
            if job.known < job.end:
                self._join(job)
            else:
                finished.append(job)
        while ends and ends[0][0] <= clock:
            job = heapq.heappop(ends)[2]
            self._contexts.remove(job, clock)
            self._blocks.remove(job)
            self._catch_up(job)
            if self._writers:
                self._writers.remove(job)
            finished.append(job)
        if not finished:
            return
        self._blocked = False
        for job in sorted(finished, key=_place) if len(finished) > 1 else finished:
            self.running.remove(job)
            job.running = job.decoding = False
            job.place = -1
            self.cache.deallocate(job)
            self._note_finish(job)


def replica(setup: ServingSetup, observer: Observer, *, exact_steps: bool = False) -> Replica:
    """Return a replica; one that jumps, unless every step is asked for or speculation makes every step a decision."""
    stepped = exact_steps or setup.limits.speculative_tokens > 0
    return (Replica if stepped else JumpingReplica)(setup, observer)


def _place(job: Job) -> int:
    return job.place
