"""Rounds of speculation in serving engines: the terms are what the shipped records give, and unseen ones judge them."""

from statistics import median

import pytest

from kvcalc.engines.rounds import SEQUENCE_S, SGLANG_ROUND_S, VLLM_ROUND_S, round_terms
from kvcalc.evidence.rounds import fitted_sglang, fitted_vllm, interval, outcomes, rounds

UNSEEN = [each for each in rounds() if not each.fitted]


def errors(predicted, some):
    return [abs(getattr(each, predicted) / each.measured - 1) for each in some]


def test_the_terms_are_fitted_to_the_shipped_records():
    assert pytest.approx(fitted_sglang(), rel=1e-2) == (SGLANG_ROUND_S, SEQUENCE_S)
    assert pytest.approx(fitted_vllm(), rel=1e-2) == VLLM_ROUND_S


@pytest.mark.parametrize("several", [False, True])
def test_the_intervals_are_those_of_the_unseen_records(several):
    found = interval(each for each in UNSEEN if (each.batch > 1) is several)
    shipped = round_terms("vllm", "eagle").spread(2 if several else 1)
    assert shipped.records == found.records
    assert (shipped.low, shipped.high) == pytest.approx((found.low, found.high), abs=5e-3)


def test_batches_that_no_fit_has_seen_are_met_far_better_than_by_passes_alone():
    batched = [each for each in UNSEEN if each.batch > 1]
    assert len(batched) == 24
    assert median(errors("estimate", batched)) < 0.15
    assert median(errors("ideal", batched)) > 0.3


def test_eagle_in_sglang_is_met_at_every_batch():
    """1.81, 1.62, 1.32 and 1.38 were measured, where passes alone make 2.13 to 2.20 of all of them."""
    found = [each for each in UNSEEN if each.group == "eagle3-sglang"]
    assert [each.batch for each in found] == [2, 8, 32, 64]
    assert max(errors("estimate", found)) < 0.2
    assert max(errors("ideal", found)) > 0.55


def test_a_verdict_is_never_the_opposite_of_what_was_measured():
    for each in UNSEEN:
        setting = each.setting
        spread = round_terms(setting["engine"], setting["method"], version=str(setting["version"])).spread(each.batch)
        assert not (each.estimate * spread.low > 1 > each.measured), each
        assert not (each.estimate * spread.high < 1 < each.measured), each


def test_a_mixture_that_reads_more_experts_loses():
    (mixture,) = [each for each in UNSEEN if each.setting["model"] == "qwen3-30b-a3b"]
    assert mixture.measured < 1
    assert mixture.estimate < 1


def test_most_unseen_records_lie_in_their_interval():
    found = [each for each in outcomes() if not each.fitted]
    assert sum(bool(each.covered) for each in found) / len(found) > 0.7
