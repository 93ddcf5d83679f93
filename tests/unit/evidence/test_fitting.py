"""Fitting: parameters that made the times are found again, and the same samples give the same numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
from kvcalc.cost.estimate import OperatorTerms, PassTerms, reached_seconds
from kvcalc.evidence.fit import Sample, fit, interval, left_out, sample_seconds

EVEN = Interval(low=1, high=1)
TRUE = Calibration(
    name="true",
    engine="any",
    applies_to=("any",),
    reach={
        "matrix": Reach(bandwidth_share=0.7, flop_share=0.35),
        "experts": Reach(bandwidth_share=0.5, flop_share=0.5),
    },
    memory_interval=EVEN,
    compute_interval=EVEN,
    step_s=4e-4,
    layer_s=3e-5,
    measured=Measured(device="any"),
)
START = replace(
    TRUE, reach={**TRUE.reach, "matrix": Reach(bandwidth_share=0.9, flop_share=0.9)}, step_s=1e-3, layer_s=1e-5
)
FREE = ("step_s", "layer_s", "matrix.bandwidth_share", "matrix.flop_share")


def sample(campaign: str, compute: float, memory: float, layers: int, *, factor: float = 1.0) -> Sample:
    terms = PassTerms(operators={("matrix", "bf16"): (OperatorTerms(compute, memory, layers),)}, layers=layers)
    return Sample(
        campaign=campaign,
        measured_s=reached_seconds(terms, TRUE) * factor,
        passes=((terms, max(compute, memory), 1.0),),
        limiter="compute" if compute > memory else "memory",
    )


SAMPLES = [
    sample(campaign, compute * 1e-3, memory * 1e-3, layers)
    for campaign, layers in (("a", 16), ("b", 32), ("c", 80))
    for compute, memory in ((0.1, 0.5), (0.1, 2), (0.2, 8), (1, 0.2), (5, 0.5), (30, 1))
]


def test_the_parameters_that_made_the_times_are_found_again() -> None:
    found = fit(START, SAMPLES, FREE)
    assert found.reach["matrix"].bandwidth_share == pytest.approx(0.7, rel=0.03)
    assert found.reach["matrix"].flop_share == pytest.approx(0.35, rel=0.03)
    assert found.layer_s == pytest.approx(3e-5, rel=0.2)
    assert max(abs(sample_seconds(one, found) / one.measured_s - 1) for one in SAMPLES) < 0.03


def test_what_is_not_free_or_not_told_stays() -> None:
    found = fit(START, SAMPLES, (*FREE, "experts.flop_share"))
    assert found.reach["experts"] == START.reach["experts"]
    assert (found.collective_s, found.link_share) == (START.collective_s, START.link_share)


def test_the_same_samples_give_the_same_numbers() -> None:
    assert fit(START, SAMPLES, FREE) == fit(START, list(SAMPLES), FREE)


def test_one_wild_record_moves_little() -> None:
    wild = [*SAMPLES, sample("a", 1e-4, 2e-3, 16, factor=20)]
    assert fit(START, wild, FREE).reach["matrix"].bandwidth_share == pytest.approx(0.7, rel=0.1)


def test_a_share_stays_below_what_any_kernel_reached() -> None:
    fast = [replace(one, measured_s=one.passes[0][1]) for one in SAMPLES]
    found = fit(START, fast, ("matrix.bandwidth_share", "matrix.flop_share"))
    assert max(found.reach["matrix"].bandwidth_share, found.reach["matrix"].flop_share) <= 0.95


def test_a_campaign_is_judged_by_a_fit_that_has_not_seen_it() -> None:
    slow = [replace(one, measured_s=2 * one.measured_s) for one in SAMPLES if one.campaign == "c"]
    others = [one for one in SAMPLES if one.campaign != "c"]
    ratios = {one.campaign: ratio for one, ratio in left_out(START, [*others, *slow], FREE)}
    assert ratios["c"] == pytest.approx(2, rel=0.1)


def test_an_interval_leaves_a_tenth_on_each_side() -> None:
    found = interval([("a", place / 100) for place in range(50, 150)])
    assert (found.low, found.high) == (0.59, 1.39)


def test_a_large_campaign_weighs_as_the_root_of_its_records() -> None:
    ratios = [("large", 1.0)] * 100 + [("small", 2.0)] * 4
    assert interval(ratios).high == 2.0  # 2 of 12, not 4 of 104
