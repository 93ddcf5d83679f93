"""The search for the highest rate: within its tolerance, from any first guess, and never without an end."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc import api
from kvcalc.core.errors import InputError
from kvcalc.engines.options import EngineOptions
from kvcalc.simulate.capacity import highest_rate

RATES = st.floats(1e-4, 1e4)


def told(held):
    """The pressure of a rate of which nothing is known but whether it held."""
    return 0.0 if held else math.inf


@given(limit=RATES, start=RATES, tolerance=st.sampled_from([0.3, 0.01, 0.001]))
def test_the_rate_is_found_within_the_tolerance(limit, start, tolerance):
    found = highest_rate(lambda rate: told(rate <= limit), start_per_s=start, tolerance=tolerance)
    assert found.rate_per_s <= limit < found.above_rate_per_s
    assert found.above_rate_per_s <= found.rate_per_s * (1 + tolerance)


@given(limit=RATES, start=RATES, power=st.sampled_from([0.1, 1.0, 8.0, 30.0]), tolerance=st.sampled_from([0.3, 0.01]))
def test_a_pressure_that_is_known_leads_to_the_same_rate_sooner(limit, start, power, tolerance):
    found = highest_rate(lambda rate: (rate / limit) ** power, start_per_s=start, tolerance=tolerance)
    assert found.rate_per_s <= limit * (1 + 1e-9)
    assert limit < found.above_rate_per_s * (1 + 1e-9)
    assert found.above_rate_per_s <= found.rate_per_s * (1 + tolerance) * (1 + 1e-9)
    blind = highest_rate(lambda rate: told(rate <= limit), start_per_s=start, tolerance=tolerance)
    assert found.tried <= blind.tried + 3


def test_limits_that_nothing_keeps_are_told_at_once():
    found = highest_rate(lambda _: math.inf, start_per_s=5.0, tolerance=0.01)
    assert (found.rate_per_s, found.tried) == (0.0, 2)


def test_limits_that_always_hold_end_the_search():
    found = highest_rate(lambda _: 0.0, start_per_s=5.0, tolerance=0.01)
    assert found.above_rate_per_s is None
    assert found.tried < 30


@pytest.mark.parametrize(
    ("start", "tolerance"), [(0.0, 0.01), (float("inf"), 0.01), (1.0, 0.0), (1.0, float("nan")), (1.0, -1.0)]
)
def test_a_search_that_cannot_be_is_refused(start, tolerance):
    with pytest.raises(InputError):
        highest_rate(lambda _: 0.0, start_per_s=start, tolerance=tolerance)


@given(limit=RATES, start=RATES)
def test_no_rate_is_tried_that_is_more_than_twice_too_high_or_too_low(limit, start):
    # a run at a rate that is far too high takes long
    tried = []

    def holds(rate):
        tried.append(rate)
        return told(rate <= limit)

    highest_rate(holds, start_per_s=start, tolerance=0.1)
    assert max(tried) <= max(start, 2 * limit)
    assert sorted(tried)[1:][0] >= min(start, limit / 2) or len(tried) == 2


def test_a_queue_that_grows_without_end_breaks_what_no_limit_is_about():
    deployment = api.deployment("llama3.1-8b", gpu="l4", engine="vllm")
    load = api.Load(rate=1, prompt="512", output_tokens="64", requests=600)
    serving = api.Serving(options=EngineOptions(max_num_seqs=4, max_model_len=1024), slo="tpot_p95=1s")
    found = api.find_capacity(deployment, load, serving=serving, tolerance=0.05)
    assert found.broken == "served_rate"
    at_once = api.simulate_serving(deployment, load.at_rate(1e6), serving=serving).summary.requests_per_s
    assert found.requests_per_s == pytest.approx(at_once, rel=0.1)
