"""A replica that jumps over the steps in which nothing is decided.

While nobody comes, is admitted, finishes or runs out of blocks, every running sequence gets a token in each step, and
the steps' durations form straight lines: such a stretch is taken at once. Steps that the policy must think about (a
preemption, several unfinished prompts that compete) are left to the scheduler.
"""

from __future__ import annotations

from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.simulate.fast.batched import BatchedReplica
from kvcalc.simulate.fast.sums import steps_before
from kvcalc.simulate.observers import Run
from kvcalc.simulate.scheduler import Step
from kvcalc.simulate.serving import Replica
from kvcalc.simulate.ticks import SECONDS_PER_TICK
from kvcalc.simulate.timer import sums_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.requests import Request
    from kvcalc.simulate.observers import Observer
    from kvcalc.simulate.sequences import Job
    from kvcalc.simulate.serving import ServingSetup

__all__ = ["FastForwardReplica", "replica"]

# What `Run._make` does, at half of its time.
_run: Callable[[tuple[Any, ...]], Run] = partial(tuple.__new__, Run)


class Stretch(NamedTuple):
    """Steps in which nothing is decided.

    Args:
        first: ticks of the first step.
        slope: ticks that each takes more than the one before.
        steps: how many.
        limiter: what limits them.
        first_taken: blocks that the first step takes, less those given back.
        taken: blocks that all of them take, likewise.
        last_tick: when the last of them begins.
    """

    first: int
    slope: int
    steps: int
    limiter: str
    first_taken: int
    taken: int
    last_tick: int


_stretch: Callable[[tuple[Any, ...]], Stretch] = partial(tuple.__new__, Stretch)


class FastForwardReplica(BatchedReplica):
    """A replica that takes the same decisions at the same ticks as one that is stepped.

    Args:
        setup: what it is made of.
        observer: takes in what happens.
    """

    def __init__(self, setup: ServingSetup, observer: Observer) -> None:
        super().__init__(setup, observer)
        # what is put off: nobody sees anything of it before its last step, and an arrival may cut it short
        self._held: Stretch | None = None

    @property
    def next_tick(self) -> int:
        """The tick at which a step begins that others may see something of; `NEVER` where there is nothing to do."""
        blocks, arrives = self._held, self._next_arrival
        if blocks is not None:
            last_tick = blocks.last_tick
            if arrives >= last_tick or (self._blocked and self._in_line):
                return last_tick
        elif self.running or self.scheduler.waiting:
            return self.now
        return arrives if arrives > self.now else self.now  # noqa: FURB136  asked for at every event

    def submit(self, request: Request, *, computed_tokens: int = 0) -> None:
        """Hand over a request, as `Replica.submit` does, and run what was put off up to its arrival."""
        super().submit(request, computed_tokens=computed_tokens)
        if self._arrivals and not self._waits_in_line:
            self._run_held(self._next_arrival)

    def catch_up(self, end: int) -> None:
        """Run the steps that begin before a tick, those that were put off too."""
        self.advance(end)
        self._run_held(end)
        self.advance(end)

    def _run_held(self, end: int) -> None:
        """Run those of the steps put off that begin before a tick."""
        blocks = self._held
        if blocks is not None and self.now < end:
            self._held = None
            self._run_stretch(blocks, steps_before(end - self.now, blocks.first, blocks.slope, blocks.steps))

    def _look_ahead(self) -> None:
        """Hold the next stretch already, where the next step begins one."""
        if self._held is None and not (
            self._passed_over or self._prefilling or (self.scheduler.waiting and not self._head_waits())
        ):
            self._held = self._next_stretch(0)

    def _move(self, end: int) -> bool:
        """Run one step, or as many as begin before a tick and leave nothing to decide; or put them off."""
        if self._held is not None:
            return self._go_on_or_hold(self._held, end)
        if self._passed_over:
            moved = False
        elif self._prefilling or (self.scheduler.waiting and not self._head_waits()):
            self._ahead = 1
            alone = not self._blocks.moving and (len(self._prefilling) == 1 or self._admit_alone())
            moved = (alone and self._prompt_alone(end)) or self._mixed_step()
            self._ahead = 0
        else:
            stretch = self._next_stretch(end)
            if stretch is not None:
                return self._go_on_or_hold(stretch, end)
            moved = False
        if not moved:
            self._policy_step()
        return True

    def _receive(self, job: Job) -> None:
        super()._receive(job)
        if not self._in_line:
            self._blocked = False
        if not self._blocked:
            self._held = None

    @property
    def _waits_in_line(self) -> bool:
        """Whether whoever comes now waits behind a head that waits."""
        return self._blocked and self._in_line

    def _next_stretch(self, end: int) -> Stretch | None:
        """Return the steps up to the next event, or the next arrival if it comes before a tick.

        Nothing where there is no step without a decision.
        """
        clock, contexts = self._clock, self._contexts
        count = contexts.count
        if count > self.limits.max_num_batched_tokens:
            return None
        first, slope, steps, limiter = self.timer.line(count, count, contexts.sums(clock), contexts.slopes(), ())
        event = self._ends[0][0]
        if not contexts.straight:
            event = min(event, contexts.next_knee(clock))
        if self._blocks.moving:
            event = min(event, self._blocks.next_event(clock))
        steps = min(steps, event - clock)
        if self._next_arrival < end and not self._waits_in_line:
            steps = steps_before(self._next_arrival - self.now, first, slope, steps)
        steps, first_taken, taken = self._blocks.take(clock, steps, self.cache.free)
        if not steps:
            return None
        last = steps - 1
        last_tick = self.now + first * last + slope * (last * (last - 1) // 2)
        return _stretch((first, slope, steps, limiter, first_taken, taken, last_tick))

    def _go_on_or_hold(self, stretch: Stretch, end: int) -> bool:
        """Run a stretch if it ends before a tick, or up to an arrival before that; return whether it did.

        Where it ends later it is held, because whoever comes then may cut it short.
        """
        self._held = None
        until, comes = end, not self._waits_in_line and self._next_arrival < end
        if comes:
            until = self._next_arrival
        if stretch.last_tick < until:
            self._run_stretch(stretch, stretch.steps)
        elif comes:
            self._run_stretch(stretch, steps_before(until - self.now, stretch.first, stretch.slope, stretch.steps))
        else:
            self._held = stretch
            return False
        return True

    def _run_stretch(self, stretch: Stretch, steps: int) -> None:
        """Run a stretch, or its first steps."""
        first, slope, planned, limiter, first_taken, taken, _ = stretch
        clock, contexts, cache, start = self._clock, self._contexts, self.cache, self.now
        if steps < planned:
            _, first_taken, taken = self._blocks.take(clock, steps, cache.free)
        owned = cache.usable - cache.free
        cache.take(taken)
        self._blocks.given()
        self.now = now = start + first * steps + slope * (steps * (steps - 1) // 2)
        self._clock = clock + steps
        count = contexts.count
        self._log(
            _run((
                start * SECONDS_PER_TICK, now * SECONDS_PER_TICK, steps, first * SECONDS_PER_TICK,
                slope * SECONDS_PER_TICK, count, 0, count, count, len(self.scheduler.waiting), owned + first_taken,
                owned + taken, contexts.computed(clock) + count, limiter,
            ))
        )  # fmt: skip
        if self._ends[0][0] <= self._clock:
            self._leave([])

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
            _run((
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


def replica(setup: ServingSetup, observer: Observer, *, exact_steps: bool = False) -> Replica:
    """Return a replica; one that jumps, unless every step is asked for or speculation makes every step a decision."""
    stepped = exact_steps or setup.limits.speculative_tokens > 0 or setup.decisions is not None
    return (Replica if stepped else FastForwardReplica)(setup, observer)
