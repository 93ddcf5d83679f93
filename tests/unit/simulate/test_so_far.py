"""What a run is told to have come to while it is computed: no more than it was, and the same run all the same."""

import pytest

import kvcalc
from kvcalc.engines.options import EngineOptions
from kvcalc.questions import serving

# Told of steps alone, as they are taken in.
OF_STEPS = ("running_requests", "cache_used_share", "output_tokens_per_s", "inter_token_s")


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(serving, "_TOLD_EVERY_S", 0.0)
    return []


def served(**given):
    load = kvcalc.Load(arrival="poisson", rate=8, requests=400, prompt="uniform:64-512", output_tokens="uniform:16-400")
    return kvcalc.simulate_serving(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), load, **given)


def test_a_run_that_is_told_of_is_the_same_run(told):
    assert served(so_far=told.append) == served()
    assert len(told) >= 3


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_is_told_grows_to_what_is_reported(told, replicas):
    report = served(so_far=told.append, serving=kvcalc.Serving(replicas=replicas))
    finished = [piece.finished_requests for piece in told]
    assert finished == sorted(finished)
    assert finished[-1] <= report.summary.requests
    ends = [piece.series[-1].end_s for piece in told]
    assert ends == sorted(ends)
    assert ends[0] < ends[-1] <= report.series[-1].end_s


def test_slices_of_steps_that_were_taken_in_stay_as_they_were_told(told):
    report = served(so_far=told.append)
    compared = 0
    for piece in told:
        for row, final in zip(piece.series[:-1], report.series, strict=False):
            if (row.start_s, row.end_s) != (final.start_s, final.end_s):
                break  # the slices have been joined since
            assert [getattr(row, name) for name in OF_STEPS] == pytest.approx(
                [getattr(final, name) for name in OF_STEPS]
            )
            compared += 1
    assert compared > 50


def test_telling_leaves_the_waiting_of_the_report_as_it_is(told):
    def waiting(**given):
        load = kvcalc.Load(arrival="poisson", rate=200, requests=400, prompt="512", output_tokens="64")
        asked = kvcalc.Serving(options=EngineOptions(max_num_seqs=8))
        found = kvcalc.simulate_serving(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), load, serving=asked, **given)
        return [row.waiting_requests for row in found.series]

    assert waiting(so_far=told.append) == pytest.approx(waiting())
    assert max(waiting()) > 100
