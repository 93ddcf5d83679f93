"""A replica that jumps over the steps in which nothing is decided.

While nobody comes, is admitted, finishes or runs out of blocks, every running sequence gets a token in each step, and
the steps' durations form straight lines: such a stretch is taken at once. Steps that the policy must think about (a
preemption, several unfinished prompts that compete) are left to the scheduler.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.simulate.fast.prompts import PromptReplica, made_run
from kvcalc.simulate.fast.sums import steps_before
from kvcalc.simulate.serving import Replica
from kvcalc.simulate.ticks import SECONDS_PER_TICK

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.requests import Request
    from kvcalc.simulate.observers import Observer
    from kvcalc.simulate.sequences import Job
    from kvcalc.simulate.serving import ServingSetup

__all__ = ["FastForwardReplica", "replica"]


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


class FastForwardReplica(PromptReplica):
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
            made_run((
                start * SECONDS_PER_TICK, now * SECONDS_PER_TICK, steps, first * SECONDS_PER_TICK,
                slope * SECONDS_PER_TICK, count, 0, count, count, len(self.scheduler.waiting), owned + first_taken,
                owned + taken, contexts.computed(clock) + count, limiter,
            ))
        )  # fmt: skip
        if self._ends[0][0] <= self._clock:
            self._leave([])


def replica(setup: ServingSetup, observer: Observer, *, exact_steps: bool = False) -> Replica:
    """Return a replica; one that jumps, unless every step is asked for or speculation makes every step a decision."""
    stepped = exact_steps or setup.limits.speculative_tokens > 0 or setup.decisions is not None
    return (Replica if stepped else FastForwardReplica)(setup, observer)
