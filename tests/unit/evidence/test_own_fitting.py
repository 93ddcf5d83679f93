"""A calibration from a few measurements: what it finds again, what it leaves alone, what it is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvcalc
from kvcalc.cost.estimate import pass_terms, reached_seconds
from kvcalc.evidence.estimates import case_seconds
from kvcalc.evidence.own.calibrating import calibrated
from kvcalc.evidence.own.fitting import factors_of, seconds_at
from kvcalc.evidence.own.terms import part_seconds, slowed, timed
from kvcalc.evidence.passes import case_in
from kvcalc.evidence.record import Record
from kvcalc.sources import load_calibration


@pytest.fixture(scope="module")
def start():
    return load_calibration("vllm-hopper")


def record(batch, prompt, output, *, phase="tpot", value=0.01):
    return Record(id=f"{phase} {batch} {prompt}", row=f"{batch} {prompt}", phase=phase, value=value, unit="s", hardware="h100-sxm",
                  model="llama3.1-8b", engine="vllm", batch=batch, prompt_tokens=prompt, output_tokens=output, ttft_s=0.1)  # fmt: skip


def cases(truth, settings, phase="tpot"):
    """Return records whose times are those of a calibration."""
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm", engine="vllm")
    found = []
    for batch, prompt, output in settings:
        case = case_in(record(batch, prompt, output, phase=phase), deployment, deployment.hardware)
        seconds = case_seconds(case, truth)
        found.append(replace(case, measured_s=seconds, record=replace(case.record, value=seconds)))
    return found


SETTINGS = [(1, 512, 128), (8, 512, 512), (32, 4000, 500), (64, 1000, 1000), (128, 500, 200), (4, 8000, 200)]


def test_parts_of_a_pass_add_up_to_its_time(start):
    case = cases(start, SETTINGS[:1])[0]
    terms = pass_terms(case.passes[0].cost, case.hardware)
    assert sum(part_seconds(terms, start).values()) == pytest.approx(reached_seconds(terms, start), rel=1e-3)


def test_a_sample_at_its_start_is_the_estimate(start):
    for phase in ("tpot", "ttft", "prefill"):
        for case in cases(start, SETTINGS, phase):
            assert seconds_at(timed(case, start), {}) == pytest.approx(case_seconds(case, start), rel=2e-3)


def test_measurements_that_agree_move_nothing(start):
    own = cases(start, SETTINGS)
    factors = factors_of([timed(case, start) for case in own], start)
    assert all(factor == pytest.approx(1, abs=0.02) for factor in factors.values())


# Terms that loads and lengths tell apart; calls and weights, both the same at every small load, are not.
@pytest.mark.parametrize(("term", "factor"), [("attention", 2.5), ("matrix", 1.6), ("tokens", 12.0)])
def test_a_slower_engine_is_found_and_predicts_what_was_not_measured(start, term, factor):
    slower = slowed(start, {term: factor})
    found = calibrated(start, cases(slower, SETTINGS[:5]))
    unseen = cases(slower, [(16, 2000, 300), (100, 3000, 100)])
    for case in unseen:
        assert abs(case_seconds(case, start) / case.measured_s - 1) > 0.04
        assert case_seconds(case, found.calibration) == pytest.approx(case.measured_s, rel=0.04)
    assert found.factors[term] == pytest.approx(factor, rel=0.25)


def test_no_more_terms_are_fitted_than_there_are_measurements(start):
    slower = slowed(start, {"matrix": 1.5, "attention": 1.5, "launches": 2.0})
    for count in (1, 2, 3):
        own = cases(slower, SETTINGS[:count])
        assert 0 < len(factors_of([timed(case, start) for case in own], start)) <= count


def test_shares_of_peaks_stay_below_one_whatever_is_measured(start):
    faster = [replace(case, measured_s=case.measured_s / 3) for case in cases(start, SETTINGS)]
    found = calibrated(start, faster).calibration
    for reach in found.reach.values():
        assert 0 < reach.bandwidth_share <= 1
        assert 0 < reach.flop_share <= 1


def test_a_row_left_out_is_not_seen_by_its_fit(start):
    own = cases(slowed(start, {"matrix": 1.5}), SETTINGS)
    broken = replace(own[2], measured_s=own[2].measured_s * 3)
    left = calibrated(start, [*own[:2], broken, *own[3:]]).left_out_s
    assert left[2] == pytest.approx(own[2].measured_s, rel=0.05)


def test_one_row_has_no_other_to_be_judged_by(start):
    assert calibrated(start, cases(slowed(start, {"matrix": 2.0}), SETTINGS[:1])).left_out_s == (None,)


def test_the_interval_is_as_wide_as_rows_left_out_are_off(start):
    own = cases(start, SETTINGS)
    noisy = [replace(case, measured_s=case.measured_s * factor)
             for case, factor in zip(own, (1.3, 0.75, 1.25, 0.8, 1.3, 0.7), strict=True)]  # fmt: skip
    quiet, loud = (calibrated(start, each).calibration.memory_interval for each in (own, noisy))
    assert loud.high / loud.low > 1.3 * quiet.high / quiet.low
    assert quiet.low < 1 < quiet.high
