"""A request alone is what the calculators say: the simulator has no second formula."""

import pytest

import kvcalc
from kvcalc.core.requests import Request
from kvcalc.questions import serving
from kvcalc.simulate.timer import ConstantTimer

ALONE = Request(name="a", arrival_s=3.0, prompt_tokens=1000, output_tokens=2)


@pytest.mark.parametrize("kind", ["ideal", "serial"])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama3.1-8b", {}),
        ("llama3.1-8b", {"gpus": 2}),
        ("llama3.1-8b", {"kv_dtype": "fp8", "weights": "fp8"}),
        ("gemma-3-27b", {"gpus": 2}),
        ("mixtral-8x7b", {"gpus": 4}),
        ("qwen3-30b-a3b", {}),
        ("gpt-oss-20b", {}),
    ],
)
def test_a_request_alone_has_the_bounds_of_prefill_and_decode(model, options, kind):
    deployment = kvcalc.deployment(model, gpu="h200", **options)
    serving = kvcalc.Serving(step_times=kind)
    summary = kvcalc.simulate_serving(deployment, [ALONE], serving=serving).summary
    prefill = kvcalc.prefill(deployment, prompts=[1000]).rows[0]
    decode = kvcalc.decode(deployment, contexts=[1001]).rows[0]
    assert summary.ttft_s["p50"] == pytest.approx(getattr(prefill, f"{kind}_s"), rel=1e-12)
    assert summary.tpot_s["p50"] == pytest.approx(getattr(decode, f"{kind}_s"), rel=1e-12)


def test_a_pipeline_passes_a_step_through_its_stages_one_by_one():
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h200", pipeline_parallel=2)
    summary = kvcalc.simulate_serving(deployment, [ALONE]).summary
    decode = kvcalc.decode(deployment, contexts=[1001]).rows[0]
    assert summary.tpot_s["p50"] == pytest.approx(1 / decode.tokens_per_s_per_sequence, rel=1e-12)


def test_a_load_describes_itself():
    load = kvcalc.Load(prompt="100", output_tokens="uniform:5-9", rate=2.5, requests=4, arrival="gamma")
    assert load.text == "100 in, uniform:5-9 out, gamma arrivals at 2.50 requests/s, seed 0"
    assert len(list(load.source())) == 4
    assert load.at_rate(5.0).rate == 5.0


def test_a_draft_is_timed_with_the_cache_that_the_engine_was_asked_to_keep(monkeypatch):
    """Its memory is counted in that format, and its steps read no other bytes."""
    timed = []
    monkeypatch.setattr(
        serving, "step_timer", lambda deployment, *_: timed.append(deployment) or ConstantTimer(step_s=1.0)
    )
    target = kvcalc.deployment("llama3.1-8b", gpu="h200", kv_dtype="fp8")
    load = kvcalc.Load(prompt="8", output_tokens="4", rate=1.0, requests=1)
    drafting = kvcalc.Serving(gamma=2, acceptance=0.5, draft="llama3.2-1b")
    kvcalc.simulate_serving(target, load, serving=drafting)
    assert [(each.model.name, each.formats.key.name) for each in timed] == [
        ("llama3.1-8b", "fp8"),
        ("llama3.2-1b", "fp8"),
    ]
