"""A replica that jumps over the steps in which nothing is decided.

While nobody comes, is admitted, finishes or runs out of blocks, every running sequence gets a token in each step, and
the steps' durations form straight lines: such a stretch is taken at once. Decoding sequences are not touched; the
replica counts steps, and what a sequence has computed is its base plus that count. Steps that the policy must think
about (a preemption, several unfinished prompts that compete) are left to the scheduler, with every sequence brought up
to date.
"""

from __future__ import annotations

import heapq
from math import sqrt
from operator import add
from typing import TYPE_CHECKING

from kvcalc.simulate.advancing import BlockClock, Contexts
from kvcalc.simulate.runs import Run
from kvcalc.simulate.scheduler import Step
from kvcalc.simulate.serving import Job, Replica, sums_of
from kvcalc.simulate.timer import TICKS_PER_S, Chunk

if TYPE_CHECKING:
    from kvcalc.simulate.cache import GroupedCache
    from kvcalc.simulate.runs import Observer
    from kvcalc.simulate.serving import ServingSetup

__all__ = ["JumpingReplica"]


class JumpingReplica(Replica):
    """A replica that takes the same decisions at the same ticks as one that is stepped.

    Args:
        setup: what it is made of.
        observer: who is told what happens.
    """

    cache: GroupedCache

    def __init__(self, setup: ServingSetup, observer: Observer) -> None:
        super().__init__(setup, observer)
        self._clock = 0
        self._admissions = 0
        self._prefilling: list[Job] = []
        # the head of the queue cannot be admitted until something finishes or is preempted, or overtakes it
        self._blocked = False
        # a step did not reach every sequence, so the next one does not follow for all of them
        self._passed_over = False
        self._in_line = self.limits.policy == "fcfs"
        self._ends: list[tuple[int, int, Job]] = []
        self._contexts = Contexts(self.timer.caps, self.timer.periods)
        self._blocks = BlockClock(setup.groups)

    def _receive(self, job: Job) -> None:
        super()._receive(job)
        if not self._in_line:
            self._blocked = False

    def _move(self, until: int | None) -> None:
        """Run one step, or as many as begin before a time and leave nothing to decide."""
        if self._passed_over:
            moved = False
        elif self._prefilling or (self.scheduler.waiting and not self._blocked):
            moved = self._mixed_step()
        else:
            moved = self._jump(until)
        if not moved:
            self._policy_step()

    def _jump(self, until: int | None) -> bool:
        """Take all steps up to the next event at once; return whether there is any without a decision."""
        clock, count = self._clock, self._contexts.count
        line = self.timer.line(
            tokens=count, logits=count, sums=self._contexts.sums(clock), slopes=self._contexts.slopes(), chunks=()
        )
        first, slope, steps = line.first, line.slope, line.steps
        event = min(self._ends[0][0], self._contexts.next_knee(clock), self._blocks.next_event(clock))
        steps = min(steps, event - clock)
        steps = self._steps_before(self._next_decision(until), first, slope, steps)
        steps = self._blocks.steps_within(clock, steps, self.cache.free)
        if not steps or count > self.limits.max_num_batched_tokens:
            return False
        start, running, waiting = self.now, len(self.running), len(self.scheduler.waiting)
        owned = self.cache.usable - self.cache.free
        first_blocks, last_blocks = self._blocks.advance(clock, steps)
        self.cache.free -= last_blocks
        held = self._contexts.sums(clock)[1]
        self.now = start + first * steps + slope * (steps * (steps - 1) // 2)
        self._clock = clock + steps
        self._log(
            Run(
                start / TICKS_PER_S,
                self.now / TICKS_PER_S,
                steps,
                first / TICKS_PER_S,
                slope / TICKS_PER_S,
                count,
                0,
                count,
                running,
                waiting,
                owned + first_blocks,
                owned + last_blocks,
                held,
                line.limiter,
            )
        )
        self._leave([])
        return True

    def _next_decision(self, until: int | None) -> int | None:
        """Return the tick from which on a step may be another, other than by what runs: an arrival, or the end."""
        if self._blocked and self._in_line:
            return until
        coming = self._coming()
        if coming is None:
            return until
        return coming.arrival if until is None else min(coming.arrival, until)

    def _steps_before(self, tick: int | None, first: int, slope: int, steps: int) -> int:
        """Return how many of some steps begin before a tick."""
        if tick is None:
            return steps
        gap = tick - self.now

        def taken(count: int) -> int:
            return first * count + slope * (count * (count - 1) // 2)

        if steps == 1 or taken(steps - 1) < gap:
            return steps
        linear = 2.0 * first - slope
        found = int(4.0 * gap / (linear + sqrt(linear * linear + 8.0 * slope * gap)))
        found = min(max(found, 1), steps)
        while taken(found) < gap:
            found += 1
        while found > 1 and taken(found - 1) >= gap:
            found -= 1
        return found

    def _mixed_step(self) -> bool:
        """Run one step with prompts; return whether it can be done without the policy."""
        clock, count, limits = self._clock, self._contexts.count, self.limits
        alone = len(self.running) + len(self.scheduler.waiting) <= 1
        longest = (not alone and limits.long_prefill_token_threshold) or limits.max_num_batched_tokens
        left = limits.max_num_batched_tokens - count
        due = [min(job.known - job.computed, longest) for job in self._prefilling]
        if sum(due) > left:
            if len(due) > 1 or left <= 0 or self.running[-1] is not self._prefilling[0]:
                return False
            due = [left]
        self._blocks.next_event(clock)
        asked = (
            self.cache.missing(job, tokens=job.computed + tokens)
            for job, tokens in zip(self._prefilling, due, strict=True)
        )
        if self._blocks.needed(clock) + sum(max(blocks, 0) for blocks in asked) > self.cache.free:
            return False
        start = self.now
        step: Step[Job] = Step()
        self.cache.free -= self._blocks.advance(clock, 1)[1]
        for job, tokens in zip(self._prefilling, due, strict=True):
            self.cache.append(job, tokens=job.computed + tokens)
            self.scheduler.put(step, job, tokens)
            left -= tokens
        if self.scheduler.waiting:
            left = self.scheduler.admit_waiting(step, left, longest)
            self._blocked = left > 0 and self._blocks_head()
            self._note_admissions(step)
            for job in (*step.new, *step.resumed):
                self._number(job)
        yielding = self._compute(step)
        taken, limiter = self._mixed_duration(step, len(yielding))
        self.now += taken
        self._clock = clock + 1
        blocks = self.cache.usable - self.cache.free
        prefilled = sum(step.scheduled.values())
        running, waiting = len(self.running), len(self.scheduler.waiting)
        held = self._contexts.sums(clock)[1] + sum(job.computed for job in step.scheduled)
        self._log(
            Run(
                start / TICKS_PER_S,
                self.now / TICKS_PER_S,
                1,
                taken / TICKS_PER_S,
                0.0,
                count,
                prefilled,
                count + len(yielding),
                running,
                waiting,
                blocks,
                blocks,
                held,
                limiter,
            )
        )
        self._prefilling = [job for job in step.scheduled if job not in yielding]
        for job in yielding:
            job.known += 1
            self._note_token(job, start)
        self._leave(yielding)
        return True

    def _blocks_head(self) -> bool:
        """Whether a head that was not admitted must wait for an event: windows that move on give blocks back before."""
        full = len(self.running) >= self.limits.max_num_seqs
        return bool(self.scheduler.waiting) and (full or not self._blocks.moving)

    def _compute(self, step: Step[Job]) -> list[Job]:
        """Count the tokens of a step as computed, and return the sequences whose known tokens all are."""
        yielding = []
        for job, tokens in step.scheduled.items():
            job.computed += tokens
            if job.computed == job.known:
                yielding.append(job)
        return yielding

    def _mixed_duration(self, step: Step[Job], prompts: int) -> tuple[int, str]:
        """Return the ticks of a step in which so many prompts are completed, and what limits it."""
        sums = self._contexts.sums(self._clock)
        single = [job.computed for job, tokens in step.scheduled.items() if tokens == 1]
        if single:
            sums = tuple(map(add, sums, sums_of(single, self.timer)))
        count = self._contexts.count
        line = self.timer.line(
            tokens=count + sum(step.scheduled.values()),
            logits=count + prompts,
            sums=sums,
            slopes=self._level,
            chunks=[Chunk(tokens, job.computed - tokens) for job, tokens in step.scheduled.items() if tokens > 1],
        )
        return line.first + self._swap_ticks * self._swapped_blocks(step), line.limiter

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
        self._blocks.add(job, clock, self.cache.held_by(job))
        heapq.heappush(self._ends, (clock + self._last(job) - job.known, job.place, job))

    def _last(self, job: Job) -> int:
        """Return the tokens that a sequence has when it finishes."""
        return min(job.last_known, self.limits.max_model_len)

    def _leave(self, yielding: list[Job]) -> None:
        """Let those finish that got their last token, in the order of the running list, and the others join."""
        clock, ends = self._clock, self._ends
        finished = [job for job in yielding if job.known >= self._last(job)]
        for job in yielding:
            if job not in finished:
                self._join(job)
        while ends and ends[0][0] <= clock:
            job = heapq.heappop(ends)[2]
            self._contexts.remove(job, clock)
            self._blocks.remove(job)
            self._catch_up(job)
            finished.append(job)
        if not finished:
            return
        self._blocked = False
        for job in sorted(finished, key=_place):
            self.running.remove(job)
            job.running = job.decoding = False
            job.place = -1
            self.cache.deallocate(job)
            self._note_finish(job)


def _place(job: Job) -> int:
    return job.place
