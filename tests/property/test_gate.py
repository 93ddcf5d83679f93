"""Laws of the gate: below the bound every speed holds, above it none does without a cause, for any deployment."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc import api
from kvcalc.core.reports.check import CheckReport

# Dense models in 16 bits whose step moves far more than any last-level cache: no cause applies.
MODELS = ("llama2-7b", "llama3.1-8b", "qwen3-32b", "gemma-3-27b")
GPUS = ("h100-sxm", "a100-80gb", "l40s", "rtx-4090", "mi300x", "b200")


@st.composite
def claims(draw):
    told = {
        "model": draw(st.sampled_from(MODELS)),
        "gpu": draw(st.sampled_from(GPUS)),
        "tensor_parallel": draw(st.sampled_from((1, 2, 4))),
        "pipeline_parallel": draw(st.sampled_from((1, 2))),
    }
    phase = draw(st.sampled_from(("decode", "prefill")))
    return told, phase, draw(st.integers(1, 64)), draw(st.integers(2, 4000))


def claimed(told, phase, batch, tokens, share) -> CheckReport:
    deployment = api.deployment(**told)
    if phase == "decode":
        row = api.decode(deployment, batches=[batch], contexts=[tokens]).rows[0]
        seconds = batch / row.tokens_per_s if batch > 1 else 1 / row.tokens_per_s_per_sequence
    else:
        seconds = api.prefill(deployment, batches=[batch], prompts=[tokens]).rows[0].ideal_s
    return api.check_measured(deployment, f"{seconds / share}s", phase=phase, batch=batch, tokens=tokens)


@settings(max_examples=40)
@given(claims(), st.floats(0.01, 0.999))
def test_what_is_slower_than_the_bound_is_plausible(claim, share):
    assert claimed(*claim, share).checks[0].verdict.startswith("plausible")


@settings(max_examples=40)
@given(claims(), st.floats(1.2, 50))
def test_what_is_faster_is_impossible(claim, share):
    report = claimed(*claim, share)
    assert not report.passed
    assert report.checks[0].verdict.startswith("impossible")
