"""Estimated rounds: passes at the rates reached, kept states, the host, and ways to draft in blocks."""

import pytest

import kvcalc
from kvcalc.core.speculation import chain
from kvcalc.cost.parameters import parameters
from kvcalc.plan.speculative.estimated import served_terms
from kvcalc.plan.speculative.methods import drafter
from kvcalc.plan.speculative.passes import Passes
from kvcalc.sources import load_calibration

EAGLE = {"method": "eagle", "gammas": [3], "accepted_length": 2.79, "context": 512}


def target(model="llama3.1-8b", **given):
    return kvcalc.deployment(model, **{"gpu": "h100-sxm", **given})


def engine(version):
    return kvcalc.EngineOptions(version=version)


def test_a_round_is_its_draft_its_verification_and_the_host():
    report = kvcalc.speculate(target(engine="sglang", options=engine("0.4.4")), batch=32, estimate=True, **EAGLE)
    row = report.rows[0]
    assert row.estimate_host_s == pytest.approx(1.88e-3 + 32 * 8.36e-5)
    taken = row.estimate_draft_s + row.estimate_verify_s + row.estimate_host_s
    assert row.estimate_speedup == pytest.approx(2.79 * row.estimate_plain_s / taken)
    assert row.estimate_low_speedup < row.estimate_speedup < row.estimate_high_speedup
    assert report.calibration.name == "sglang-hopper"
    assert (report.estimate_speedup, report.verdict) == (row.estimate_speedup, row.verdict)


def test_the_host_is_hidden_in_newer_versions():
    old, new = (
        kvcalc.speculate(target(engine="sglang", options=engine(version)), batch=32, estimate=True, **EAGLE)
        for version in ("0.4.4", "0.5.23")
    )
    assert new.rows[0].estimate_host_s == 0
    assert new.estimate_speedup > old.estimate_speedup
    assert any("without overlap scheduling" in note for note in old.notes)


@pytest.mark.parametrize(("acceptance", "verdict"), [(0.9, "pays"), (0.35, "may pay"), (0.02, "does not pay")])
def test_a_verdict_is_yes_or_no_only_where_the_whole_interval_is(acceptance, verdict):
    report = kvcalc.speculate(target(), method="eagle", gammas=[3], acceptance=acceptance, context=512, estimate=True)
    low, high = report.estimate_low_speedup, report.estimate_high_speedup
    assert report.verdict == verdict
    assert {"pays": low > 1, "may pay": low <= 1 <= high, "does not pay": high < 1}[verdict]


def test_nothing_is_estimated_unless_asked_for_and_bounds_stay_what_they_are():
    plain, estimated = (kvcalc.speculate(target(), batch=8, estimate=asked, **EAGLE) for asked in (False, True))
    assert (plain.verdict, plain.estimate_speedup, plain.rows[0].estimate_host_s) == (None, None, None)
    assert plain.by_context[0].estimate_paying is None
    assert plain.speedup == estimated.speedup
    assert plain.by_context[0].paying == estimated.by_context[0].paying


def test_batches_where_it_surely_pays_are_fewer_than_in_ideal_times():
    limit = kvcalc.speculate(target(), estimate=True, **EAGLE).by_context[0]
    (sure,), (ideal,) = limit.estimate_paying, limit.paying
    assert sure.first_batch == ideal.first_batch == 1
    assert sure.last_batch < ideal.last_batch


def test_lengths_are_chosen_by_the_estimate():
    given = {"method": "eagle", "acceptance": 0.8, "context": 512}
    assert kvcalc.speculate(target(), estimate=True, **given).gamma < kvcalc.speculate(target(), **given).gamma


def test_a_state_is_kept_for_each_drafted_token():
    """Qwen3.8-27B: 48 layers of 48 states of 128 x 128 numbers of 4 bytes, and the convolution's columns."""
    hybrid, calibration = target("qwen3.8-27b", gpu="h200"), load_calibration("sglang-hopper")
    none, seven = (served_terms(hybrid, None, calibration, gamma=gamma) for gamma in (1, 7))
    kept_s = (seven.sequence_s - none.sequence_s) / 6
    share = calibration.reach_of("state", "").bandwidth_share
    assert kept_s * share * hybrid.hardware.memory_bandwidth_bytes_per_s == pytest.approx(
        48 * 48 * 128 * 128 * 4, rel=0.05
    )
    assert served_terms(hybrid, None, None, gamma=7) is None
    assert served_terms(target(), None, calibration, gamma=7) == served_terms(target(), None, calibration, gamma=1)


def test_an_engine_whose_rounds_were_not_measured_says_so():
    report = kvcalc.speculate(target(gpu="m4-max-40", weights="q4_0", engine="llama.cpp"), estimate=True, **EAGLE)
    assert any("no rounds of llama.cpp were measured" in note for note in report.notes)


def test_a_block_drafter_takes_one_pass_over_the_block():
    way = drafter("dflash", target(), None)
    assert way.steps(chain(7)) == (8,)
    backbone = way.runs(7).model
    assert backbone.layers == 5
    assert backbone.matrix_parameters == 5 * 4096**2
    assert drafter("dflash", target(), None, layers=3).runs(7).model.layers == 3


def test_a_markov_head_corrects_each_token_of_the_block():
    way = drafter("dspark", target(), None)
    passes = Passes(target(), way, load_calibration("vllm-hopper"))
    times = passes.draft_times(1, 512, chain(7))
    assert len(times) == 1 + 7
    assert sum(parameters(way.corrects.model).values()) == 256 * 128256
    block = Passes(target(), drafter("dflash", target(), None), load_calibration("vllm-hopper"))
    added = way.weight_bytes(7) - drafter("dflash", target(), None).weight_bytes(7)
    assert added == 2 * 256 * 128256 * 2
    more = passes.ratios(1, 512, chain(7), "estimate_s").draft_s - block.ratios(1, 512, chain(7), "estimate_s").draft_s
    assert 0 < more < 7 * 1e-4


def test_several_prediction_layers_are_held_and_one_runs_for_each_token():
    one, three = (drafter("mtp", target(), None, layers=layers) for layers in (1, 3))
    assert three.weight_bytes(3) == 3 * one.weight_bytes(3)
    assert three.steps(chain(3)) == (1, 1, 1)
    assert three.runs(3).model.layers == 1


def test_a_simulated_round_takes_what_the_estimate_says():
    load = kvcalc.Load(requests=4, prompt="256", output_tokens="64", arrival="closed", users=4)
    serving = kvcalc.Serving(gamma=3, acceptance=0.7, draft="llama3.2-1b", step_times="estimate")
    old, new = (
        kvcalc.simulate_serving(target(engine="vllm", options=engine(version)), serving=serving, load=load)
        for version in ("0.13.0", "0.33")
    )
    assert old.summary.tpot_s["mean"] > 1.05 * new.summary.tpot_s["mean"]
