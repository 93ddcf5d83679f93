"""How many steps begin before a gap is over: by counting them, and where the ticks have more digits than a float."""

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.simulate.fast.sums import steps_before

EXACT = 2**100  # ticks of a second


def _start(step, first, slope):
    """When a step begins, the first being step 0."""
    return step * first + slope * step * (step - 1) // 2


@given(st.integers(1, 400), st.integers(1, 60), st.integers(0, 20), st.integers(1, 40))
def test_every_step_that_begins_before_the_end_is_counted(gap, first, slope, steps):
    counted = sum(_start(step, first, slope) < gap for step in range(steps))
    assert steps_before(gap, first, slope, steps) == max(1, counted)


@given(st.integers(1, 10**6), st.integers(EXACT // 10**6, EXACT), st.integers(0, EXACT // 10**6), st.integers(-1, 1))
def test_the_last_digit_of_a_tick_decides(steps, first, slope, ticks):
    gap = _start(steps, first, slope) + ticks
    assert steps_before(gap, first, slope, 10**7) == steps + (ticks > 0)
