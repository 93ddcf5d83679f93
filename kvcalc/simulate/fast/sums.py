"""Running sums over all decoding sequences, updated in O(1) for each step.

In every step each of them computes one token. With a clock that counts steps, a sequence that joins with some computed
tokens keeps ``base`` = computed - clock, and has computed base + clock ever after.
"""

from __future__ import annotations

import heapq
from collections import Counter
from math import sqrt
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.simulate.cache import BlockGroup

__all__ = ["NEVER", "BlockClock", "Contexts", "DecodingSequence", "steps_before"]

# A clock that is never reached.
NEVER = 2**62


class DecodingSequence(Protocol):
    """A sequence that computes one token in each step.

    Attributes:
        base: its computed tokens less the clock.
        position: in the running list; another one each time it is admitted, and negative when it has left.
    """

    base: int
    position: int


class Contexts:
    """The sums over contexts that a timer asks for.

    Args:
        caps: contexts that one sum each is capped at.
        periods: lengths after which one sum each counts from 1 again.

    Attributes:
        count: sequences.
        straight: whether there are neither caps nor periods, so that nothing changes its slope.
    """

    def __init__(self, caps: Sequence[int], periods: Sequence[int]) -> None:
        self.count = 0
        self.straight = not caps and not periods
        self._bases = 0
        self._caps = tuple(caps)
        self._periods = tuple(periods)
        self._below = [0] * len(caps)
        self._below_bases = [0] * len(caps)
        self._passed = [0] * len(periods)
        self._knees: list[tuple[int, int, int, DecodingSequence]] = []

    def clear(self) -> None:
        """Forget all sequences."""
        self.__init__(self._caps, self._periods)  # type: ignore[misc]

    def add(self, sequence: DecodingSequence, clock: int) -> None:
        """Let a sequence join."""
        self.count += 1
        self._bases += sequence.base
        if self.straight:
            return
        context = sequence.base + clock + 1
        for index, cap in enumerate(self._caps):
            if context < cap:
                self._below[index] += 1
                self._below_bases[index] += sequence.base
                heapq.heappush(self._knees, (cap - 1 - sequence.base, sequence.position, index, sequence))
        for index, period in enumerate(self._periods):
            passed = (context - 1) // period * period
            self._passed[index] += passed
            knee = passed + period - sequence.base
            heapq.heappush(self._knees, (knee, sequence.position, len(self._caps) + index, sequence))

    def remove(self, sequence: DecodingSequence, clock: int) -> None:
        """Let a sequence leave; its position becomes negative after that."""
        self.count -= 1
        self._bases -= sequence.base
        if self.straight:
            return
        self._ripen(clock)
        context = sequence.base + clock + 1
        for index, cap in enumerate(self._caps):
            if context < cap:
                self._below[index] -= 1
                self._below_bases[index] -= sequence.base
        for index, period in enumerate(self._periods):
            self._passed[index] -= (context - 1) // period * period

    def computed(self, clock: int) -> int:
        """Return the tokens that all of them have computed."""
        return self._bases + self.count * clock

    def sums(self, clock: int) -> tuple[int, ...]:
        """Return their number, the sum of their contexts, of capped contexts, and of contexts within periods."""
        contexts = self._bases + self.count * (clock + 1)
        if self.straight:
            return self.count, contexts
        self._ripen(clock)
        capped = [
            bases + below * (clock + 1) + (self.count - below) * cap
            for bases, below, cap in zip(self._below_bases, self._below, self._caps, strict=True)
        ]
        return (self.count, contexts, *capped, *(contexts - passed for passed in self._passed))

    def slopes(self) -> tuple[int, ...]:
        """Return the growth of each of the sums from one step to the next."""
        if self.straight:
            return 0, self.count
        return (0, self.count, *self._below, *(self.count for _ in self._periods))

    def next_knee(self, clock: int) -> int:
        """Return the clock up to which the slopes hold."""
        self._ripen(clock)
        return self._knees[0][0] if self._knees else NEVER

    def _ripen(self, clock: int) -> None:
        """Take account of sequences that have reached a cap or the end of a period."""
        knees = self._knees
        while knees and (knees[0][0] <= clock or knees[0][1] != knees[0][3].position):
            knee, position, index, sequence = heapq.heappop(knees)
            if position != sequence.position:
                continue
            if index < len(self._caps):
                self._below[index] -= 1
                self._below_bases[index] -= sequence.base
            else:
                period = self._periods[index - len(self._caps)]
                self._passed[index - len(self._caps)] += period
                heapq.heappush(knees, (knee + period, position, index, sequence))


class _Phases:
    """Blocks that change owner at fixed points of the cycle of a block's tokens."""

    __slots__ = ("blocks", "of", "size", "times")

    def __init__(self, size: int, times: int) -> None:
        self.size = size
        self.times = times
        self.of = [0] * size
        self.blocks = 0

    def shift(self, first: int, times: int) -> None:
        """Let blocks change owner whenever the clock is ``first`` modulo the size."""
        self.of[first % self.size] += times
        self.blocks += times

    def total(self, clock: int, steps: int) -> int:
        """Return the blocks that change owner in some steps."""
        whole, rest = divmod(steps, self.size)
        start = clock % self.size
        end = start + rest
        blocks = whole * self.blocks + sum(self.of[start:end])
        return blocks + sum(self.of[: end - self.size]) if end > self.size else blocks


class BlockClock:
    """The blocks that advancing sequences take, and give back as their windows move on.

    Args:
        groups: the cache's groups of layers.

    Attributes:
        moving: whether sequences give blocks back while they go on.
    """

    def __init__(self, groups: Sequence[BlockGroup]) -> None:
        self._groups = tuple(groups)
        growing = Counter(group.block_size for group in groups if group.constant is None)
        moving = Counter(group for group in groups if group.moves)
        self._takes = [_Phases(size, times) for size, times in growing.items()]
        self._moving = [(group, _Phases(group.block_size, times)) for group, times in moving.items()]
        self._events: list[tuple[int, int, int, DecodingSequence]] = []
        self._ripe = 0
        # given back in the next step, by sequences that joined or reached the end of a chunk
        self._once = 0
        self.moving = bool(moving)

    def clear(self) -> None:
        """Forget all sequences."""
        self.__init__(self._groups)  # type: ignore[misc]

    def add(self, sequence: DecodingSequence, clock: int, blocks: int) -> None:
        """Let a sequence join that holds some blocks."""
        for phases in self._takes:
            phases.shift(-sequence.base, phases.times)
        if not self.moving:
            return
        computed = sequence.base + clock
        self._once += blocks - sum(group.held(computed=computed, tokens=computed) for group in self._groups)
        for index, (group, phases) in enumerate(self._moving):
            if group.chunk is not None:
                self._expect(computed // group.chunk * group.chunk + group.chunk, index, sequence)
            elif computed < group.first_release:
                self._expect(group.first_release, index, sequence)
            else:
                phases.shift(group.first_release - sequence.base, phases.times)
                # what it gives back in its first step is counted already
                self._once -= phases.times if (computed - group.first_release) % phases.size == 0 else 0

    def remove(self, sequence: DecodingSequence) -> None:
        """Let a sequence leave."""
        for phases in self._takes:
            phases.shift(-sequence.base, -phases.times)
        for group, phases in self._moving:
            if group.chunk is None and group.first_release - sequence.base <= self._ripe:
                phases.shift(group.first_release - sequence.base, -phases.times)

    def next_event(self, clock: int) -> int:
        """Return the clock up to which nothing but the phases counts."""
        self._ripe = clock
        events = self._events
        while events and (events[0][0] <= clock or events[0][1] != events[0][3].position):
            _, position, index, sequence = heapq.heappop(events)
            if position != sequence.position:
                continue
            group, phases = self._moving[index]
            if group.chunk is None:
                phases.shift(clock, phases.times)
                continue
            computed = sequence.base + clock
            kept = group.first_kept(computed) - group.first_kept(computed - 1)
            self._once += kept * phases.times
            self._expect(computed + group.chunk, index, sequence)
        return events[0][0] if events else NEVER

    def needed(self, clock: int) -> int:
        """Return the blocks that are taken in the next step."""
        needed = 0
        for phases in self._takes:
            needed += phases.of[clock % phases.size]
        return needed

    def take(self, clock: int, steps: int, free: int) -> tuple[int, int, int]:
        """Count some steps, or as many of them as need no more blocks than there are, whoever takes and gives first.

        Nothing changes by it; `given` says that they were taken. Returns how many steps that are, and the blocks taken
        less those given back: in the first, and in all of them.
        """
        if self.moving:
            return self._take_and_give(clock, steps, free, self.needed(clock))
        if steps == 1:
            first = self.needed(clock)
            return (1, first, first) if first <= free else (0, first, 0)
        first = taken = 0
        for phases in self._takes:
            size, of = phases.size, phases.of
            start = clock % size
            whole, rest = divmod(steps, size)
            end = start + rest
            first += of[start]
            taken += whole * phases.blocks + sum(of[start:end])
            if end > size:
                taken += sum(of[: end - size])
        while steps and taken > free:
            steps -= 1
            taken -= self.needed(clock + steps)
        return steps, first, taken

    def given(self) -> None:
        """Note that a step has given back what is given back once."""
        self._once = 0

    def _take_and_give(self, clock: int, steps: int, free: int, first: int) -> tuple[int, int, int]:
        given = self._once + self._given(clock, steps)
        needed = sum(phases.total(clock, steps) for phases in self._takes)
        if needed <= free:  # even if nothing were given back
            return steps, first - self._once - self._given(clock, 1), needed - given
        left = free
        for step in range(steps):
            needed = self.needed(clock + step)
            if needed > left:
                return step, first, free - left
            given = self._given(clock + step, 1)
            if not step:
                given += self._once
                first -= given
            left += given - needed
        return steps, first, free - left

    def _given(self, clock: int, steps: int) -> int:
        return sum(phases.total(clock, steps) for _, phases in self._moving)

    def _expect(self, computed: int, index: int, sequence: DecodingSequence) -> None:
        heapq.heappush(self._events, (computed - sequence.base, sequence.position, index, sequence))


def steps_before(gap: int, first: int, slope: int, steps: int) -> int:
    """Count the steps that begin before a gap is over: one at least.

    Args:
        gap: ticks.
        first: ticks of the first step.
        slope: ticks that each takes more than the one before.
        steps: steps at most.

    >>> steps_before(25, 10, 0, 100), steps_before(30, 10, 10, 100), steps_before(31, 10, 10, 100)
    (3, 2, 3)
    """
    if first * (steps - 1) + slope * ((steps - 1) * (steps - 2) // 2) < gap:
        return steps
    linear = 2.0 * first - slope
    begun = int(4.0 * gap / (linear + sqrt(linear * linear + 8.0 * slope * gap)))
    while first * begun + slope * (begun * (begun - 1) // 2) < gap:
        begun += 1
    while begun > 1 and first * (begun - 1) + slope * ((begun - 1) * (begun - 2) // 2) >= gap:
        begun -= 1
    return begun
