"""Quantiles of a stream: exact while it is short, within the stated error beyond, and the mean exact always."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.simulate.quantiles import RELATIVE_ERROR, Quantiles

DURATIONS = st.floats(0.0, 1e4, allow_nan=False).map(lambda value: 0.0 if value < 1e-9 else value)
LINES = st.tuples(DURATIONS, DURATIONS, st.integers(1, 30), st.integers(1, 50)).map(
    lambda line: (line[0], line[0] if line[2] == 1 else line[1], *line[2:])
)
SHARES = (0.01, 0.5, 0.9, 0.95, 0.99, 1.0)


def _expanded(values, lines):
    """Every value as often as it counts, in order."""
    found = list(values)
    for first, last, steps, weight in lines:
        apart = (last - first) / (steps - 1) if steps > 1 else 0.0
        found += [first + place * apart for place in range(steps) for _ in range(weight)]
    return sorted(found)


def _taken(values, lines, most_exact):
    found = Quantiles(most_exact=most_exact)
    for value in values:
        found.add(value)
    found.add_lines(lines)
    return found


@given(values=st.lists(DURATIONS, max_size=30), lines=st.lists(LINES, max_size=5))
def test_a_short_stream_is_exact(values, lines):
    found, whole = _taken(values, lines, 10_000), _expanded(values, lines)
    assert found.exact
    assert found.count == len(whole)
    if not whole:
        assert math.isnan(found.quantile(0.5))
        assert math.isnan(found.mean)
        return
    assert found.mean == pytest.approx(sum(whole) / len(whole))
    assert found.quantiles(SHARES) == [whole[math.ceil(share * len(whole) - 1e-9) - 1] for share in SHARES]


@given(values=st.lists(DURATIONS, min_size=1, max_size=30), lines=st.lists(LINES, min_size=1, max_size=5))
def test_a_long_stream_is_within_the_stated_error(values, lines):
    found, whole = _taken(values, lines, 0), _expanded(values, lines)
    assert not found.exact
    assert found.count == len(whole)
    assert found.mean == pytest.approx(sum(whole) / len(whole))
    for share, value in zip(SHARES, found.quantiles(SHARES), strict=True):
        # a value at the very edge of a bucket may be counted in the one beside it
        place = math.ceil(share * len(whole) - 1e-9) - 1
        assert value == pytest.approx(whole[place], rel=3 * RELATIVE_ERROR, abs=1e-12)


def test_the_stated_error_is_met_by_many_values():
    values = [1.0005**place for place in range(20_000)]
    found = _taken(values, [], 100)
    for share in (0.1, 0.5, 0.95, 0.999):
        exact = values[math.ceil(share * len(values)) - 1]
        assert found.quantile(share) == pytest.approx(exact, rel=RELATIVE_ERROR * 1.0001)


def test_it_turns_to_buckets_when_it_has_to():
    found = Quantiles(most_exact=10)
    for _ in range(10):
        found.add(1.0)
    assert found.exact
    found.add(1.0)
    assert not found.exact
