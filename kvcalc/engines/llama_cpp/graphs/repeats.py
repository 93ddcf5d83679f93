"""Layers that need not be built, because enough like them stand before: their memory traffic is that of the others.

A model's layers repeat in rounds of one or more. Of a long run of rounds four are built; what the allocator is asked
for in the third of them is asked again for each round that was left out, with the tensors of the round before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

__all__ = ["ROUNDS", "Rounds", "Run", "find_runs", "kept_layers", "replayed"]

_T = TypeVar("_T")

# Rounds built of a run: one to come into it, two that must be alike, one to leave it.
ROUNDS = 4
_LONGEST = 12
# Stands for an input of a round's own, which is there from the start.
_OWN = -(2**31)


@dataclass(frozen=True, slots=True)
class Run:
    """Rounds of layers that repeat.

    Args:
        first: its first layer.
        length: layers of a round.
        times: rounds.
    """

    first: int
    length: int
    times: int


@dataclass(frozen=True, slots=True)
class Rounds:
    """Beginnings of a run's rounds among the allocator's events.

    Args:
        first: the first event of the first round.
        second: that of the second.
        third: that of the third.
        fourth: that of the fourth.
        more: rounds left out.
    """

    first: int
    second: int
    third: int
    fourth: int
    more: int


def find_runs(kinds: Sequence[Hashable]) -> tuple[Run, ...]:
    """Return the runs of more than `ROUNDS` rounds, given what kind of layer each is.

    >>> find_runs("aaaaaaaab")
    (Run(first=0, length=1, times=8),)
    >>> find_runs("wwfwwfwwfwwfwwfx")
    (Run(first=0, length=3, times=5),)
    """
    runs: list[Run] = []
    at = 0
    while at < len(kinds):
        run = max((_run(kinds, at, length) for length in range(1, _LONGEST + 1)), key=_saved)
        if run.times > ROUNDS:
            runs.append(run)
            at += run.length * run.times
        else:
            at += 1
    return tuple(runs)


def _run(kinds: Sequence[Hashable], start: int, length: int) -> Run:
    end = start + length
    while end < len(kinds) and kinds[end] == kinds[end - length]:
        end += 1
    return Run(start, length, (end - start) // length)


def _saved(run: Run) -> int:
    return run.length * (run.times - ROUNDS)


def kept_layers(layers: int, runs: Sequence[Run]) -> tuple[int, ...]:
    """Return the layers to build.

    >>> kept_layers(10, [Run(0, 1, 8)])
    (0, 1, 2, 3, 8, 9)
    """
    left_out = {
        layer for run in runs for layer in range(run.first + ROUNDS * run.length, run.first + run.times * run.length)
    }
    return tuple(layer for layer in range(layers) if layer not in left_out)


def replayed(events: Sequence[int], rounds: Sequence[Rounds], sizes: list[_T]) -> list[int] | None:
    """Return events with those of rounds that were left out; none where the built rounds are not alike.

    Args:
        events: what the allocator is asked for: n to take memory for tensor n > 0, -n to give it back.
        rounds: where the rounds of each run begin among the events.
        sizes: what is known of each tensor, by its number; grows by the tensors of the rounds that were left out.

    >>> sizes = ["", "a", "b", "c", "d"]
    >>> replayed([1, 2, -1, 3, -2, 4, -3, -4], [Rounds(0, 1, 3, 5, 1)], sizes), sizes[5]
    ([1, 2, -1, 3, -2, 5, -3, 4, -5, -4], 'c')
    >>> sizes = ["", "a", "b", "c", "d"]  # each round gives back an input of its own
    >>> replayed([1, 2, 3, 4, -1, -2, -3, -4], [Rounds(4, 5, 6, 7, 2)], sizes), sizes[5:]
    ([1, 2, 3, 5, 6, 4, -1, -2, -3, -5, -6, -4], ['c', 'c'])
    """
    whole: list[int] = []
    names: dict[int, int] = {}
    at = 0
    for run in rounds:
        pattern = _pattern(events, run)
        if pattern is None:
            return None
        whole += _renamed(events[at : run.fourth], names)
        last = [abs(event) for event in events[run.third : run.fourth]]
        own = sorted(last[index] for index, (_, other) in enumerate(pattern) if other == _OWN)
        after = whole.index(own[-1]) + 1 if own else 0
        before = list(last)
        for _ in range(run.more):
            given = {number: _copied(sizes, number) for number in own}
            whole[after:after] = given.values()
            after += len(given)
            now = list(before)
            for index, (taken, other) in enumerate(pattern):
                if taken:
                    now[index] = _copied(sizes, last[index])
                    whole.append(now[index])
                elif other == _OWN:
                    whole.append(-given[last[index]])
                elif other >= len(pattern):
                    whole.append(-names.get(other - len(pattern), other - len(pattern)))
                else:
                    whole.append(-(now[other] if other >= 0 else before[other]))
            before = now
        names |= {old: new for (taken, _), old, new in zip(pattern, last, before, strict=True) if taken}
        at = run.fourth
    return whole + _renamed(events[at:], names)


def _copied(sizes: list[_T], number: int) -> int:
    """Return the number of one more tensor like another."""
    sizes.append(sizes[number])
    return len(sizes) - 1


def _renamed(events: Sequence[int], names: Mapping[int, int]) -> list[int]:
    return [event if event > 0 else -names.get(-event, -event) for event in events]


def _pattern(events: Sequence[int], run: Rounds) -> list[tuple[bool, int]] | None:
    """Return the third round's requests in terms that hold in any round; none if the second has others.

    An event is whether memory is taken, and of which tensor: one of the round by its place there, one of the round
    before by its place counted from the round's end (below 0), an input of the round's own (`_OWN`), any other by its
    number plus the round's length.
    """
    length = run.fourth - run.third
    if length != run.third - run.second:
        return None
    second = _relative(events, run.first, run.second, length)
    third = _relative(events, run.second, run.third, length)
    # the first round may take memory in another order, so that only its tensors' round is compared
    unlike = [
        index
        for index, (one, other) in enumerate(zip(second, third, strict=True))
        if one != other and not (one[1] < 0 and other[1] < 0)
    ]
    if unlike and not _are_inputs(events[: run.first], [(second[index], third[index]) for index in unlike], length):
        return None
    for index in unlike:
        third[index] = (False, _OWN)
    return third


def _are_inputs(taken: Sequence[int], pairs: Sequence[tuple[tuple[bool, int], tuple[bool, int]]], length: int) -> bool:
    """Whether what two rounds give back otherwise are inputs of their own, taken at the start one round after another.

    Args:
        taken: the events before the first round.
        pairs: the events of both rounds that are not alike.
        length: events of a round.
    """
    step = len(pairs)
    numbers = sorted(other - length for _, (_, other) in pairs)
    return (
        all(not (one[0] or two[0]) and one[1] >= length and two[1] == one[1] + step for one, two in pairs)
        and numbers == list(range(numbers[0], numbers[0] + step))
        and set(numbers) <= set(taken)
    )


def _relative(events: Sequence[int], before: int, begin: int, length: int) -> list[tuple[bool, int]]:
    places = {events[at]: at - begin for at in range(before, begin + length) if events[at] > 0}
    return [(event > 0, places.get(abs(event), length + abs(event))) for event in events[begin : begin + length]]
