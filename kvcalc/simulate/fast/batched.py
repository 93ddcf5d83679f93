"""A replica that advances its decoding sequences together: none of them is touched meanwhile.

The replica counts steps with a clock; what a sequence has computed is its base plus that count. When the policy must
think about a step, every sequence is brought up to date, and they are gathered again after it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from kvcalc.core.requests import Segment
from kvcalc.simulate.cache import GroupedCache
from kvcalc.simulate.fast.cache import PrefixCache, Writers
from kvcalc.simulate.fast.sums import BlockClock, Contexts
from kvcalc.simulate.sequences import Job
from kvcalc.simulate.serving import Replica

if TYPE_CHECKING:
    from kvcalc.core.requests import Request
    from kvcalc.simulate.cache import CountingCache
    from kvcalc.simulate.observers import Observer
    from kvcalc.simulate.serving import ServingSetup

__all__ = ["BatchedReplica"]


class BatchedReplica(Replica):
    """A replica that knows of its decoding sequences what they add up to, and when the next of them finishes.

    Args:
        setup: what it is made of.
        observer: takes in what happens.
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
        return PrefixCache(
            num_blocks=self.setup.num_blocks,
            block_size=self.setup.groups[0].block_size,
            before_lookup=self._register_published,
        )

    def _content(self, request: Request, order: int) -> tuple[Segment, ...]:
        """Return the blocks that others could ask for too; a policy that takes steps back needs to know all."""
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

    def _longest(self) -> int:
        """Return the tokens of one prompt in a step at most."""
        limits = self.limits
        if limits.long_prefill_token_threshold and len(self.running) + len(self.scheduler.waiting) > 1:
            return limits.long_prefill_token_threshold
        return limits.max_num_batched_tokens

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
        job.position = self._admissions

    def _join(self, job: Job) -> None:
        """Let a sequence that got its first token, or the first after a preemption, advance with the others."""
        clock = self._clock
        job.base, job.joined = job.computed - clock, clock
        self._contexts.add(job, clock)
        self._blocks.add(job, clock, self.cache.held_by(job) if self._blocks.moving else 0)
        if job.request.output_stream is not None and self.limits.prefix_caching:
            self._writers.add(job)
        heapq.heappush(self._ends, (clock + job.end - job.known, job.position, job))

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
        for job in sorted(finished, key=_position) if len(finished) > 1 else finished:
            self.running.remove(job)
            job.running = job.decoding = False
            job.position = -1
            self.cache.deallocate(job)
            self._note_finish(job)


def _position(job: Job) -> int:
    return job.position
