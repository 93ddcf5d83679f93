"""Charts in a terminal: every point is on them, wherever it lies."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcalc.render.terminal import line_chart

FINITE = st.floats(-1e6, 1e12, allow_nan=False).map(lambda value: float(f"{value:.6g}"))
ABOVE_ZERO = st.floats(1e-3, 1e18)


def _letters(text):
    body = text.split("\n-----")[0]
    return sum(line.partition("|")[2].count("A") for line in body.splitlines())


@given(x=FINITE, y=FINITE)
@example(x=8.0, y=8.0)
@example(x=6.0, y=16.0)
@example(x=0.0, y=0.0)
@example(x=-1.0, y=10.0)
@settings(max_examples=200, deadline=None)
def test_the_outermost_point_is_shown(x, y):
    assert _letters(line_chart({"one": [(x, y)]}, x="tokens", y="requests", plain=True)) == 1
    assert _letters(line_chart({"one": [(x, y)] * 5}, x="tokens", y="requests")) == 1


@given(x=ABOVE_ZERO, y=ABOVE_ZERO)
@example(x=1000.0, y=1e9)
@example(x=999.999, y=9.999e9)
@example(x=1.0, y=1.0)
@settings(max_examples=200, deadline=None)
def test_the_outermost_point_is_shown_on_logarithmic_axes(x, y):
    assert _letters(line_chart({"one": [(x, y)]}, x="tokens", y="B", log=True, plain=True)) == 1


@given(count=st.integers(1, 100))
@settings(max_examples=60, deadline=None)
def test_a_rising_line_ends_on_the_chart(count):
    points = [(place, place) for place in range(1, count + 1)]
    assert _letters(line_chart({"one": points}, x="passes", y="tokens", plain=True)) >= min(count, 16)
