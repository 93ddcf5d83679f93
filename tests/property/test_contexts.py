"""Sums over sequences that advance together, against adding them up one by one at every step."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.simulate.fast.sums import NEVER, Contexts


@dataclass(eq=False)
class Sequence:
    base: int
    position: int


def _summed(sequences, clock, caps, periods):
    contexts = [sequence.base + clock + 1 for sequence in sequences]
    capped = [sum(min(context, cap) for context in contexts) for cap in caps]
    within = [sum((context - 1) % period + 1 for context in contexts) for period in periods]
    return (len(contexts), sum(contexts), *capped, *within)


limits = st.lists(st.integers(1, 40), max_size=2, unique=True)
# at each step: whether to leave or join, who, and with how many tokens
changes = st.lists(
    st.tuples(st.sampled_from(["join", "join", "leave", "wait"]), st.integers(0, 20), st.integers(0, 60)),
    min_size=1,
    max_size=30,
)


@given(limits, limits, changes)
def test_the_sums_are_those_of_all_sequences_at_every_step(caps, periods, steps):
    contexts, there = Contexts(caps, periods), []
    for clock, (change, which, tokens) in enumerate(steps):
        if change == "join":
            there.append(Sequence(base=tokens - clock, position=clock + 1))
            contexts.add(there[-1], clock)
        elif change == "leave" and there:
            leaving = there.pop(which % len(there))
            contexts.remove(leaving, clock)
            leaving.position = -1
        assert contexts.sums(clock) == _summed(there, clock, caps, periods)
        assert contexts.computed(clock) == sum(sequence.base + clock for sequence in there)


@given(limits, limits, st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_the_slopes_hold_up_to_the_next_knee_and_change_there(caps, periods, tokens):
    contexts = Contexts(caps, periods)
    there = [Sequence(base=size, position=position) for position, size in enumerate(tokens, 1)]
    for sequence in there:
        contexts.add(sequence, 0)
    clock = 0
    while clock < 200:
        knee = contexts.next_knee(clock)
        slopes, start = contexts.slopes(), contexts.sums(clock)
        assert knee > clock
        for later in range(clock, min(knee, 200)):
            grown = tuple(first + slope * (later - clock) for first, slope in zip(start, slopes, strict=True))
            assert grown == _summed(there, later, caps, periods)
        clock = knee
    assert periods or clock == NEVER
