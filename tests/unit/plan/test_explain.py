"""An explanation is arithmetic: evaluated, it gives the number it explains."""

from __future__ import annotations

import pytest

import kvcalc
from kvcalc.api import profile_names


def evaluated(step: object) -> float:
    return eval(step.expression, {"__builtins__": {"max": max}})  # noqa: S307  our own output, no names but max


@pytest.mark.parametrize("name", profile_names("model"))
def test_size_and_speed_expressions_give_their_values(name: str) -> None:
    deployment = kvcalc.deployment(name, gpu="h200")
    size = kvcalc.size(deployment, context=3000, batch=7)
    steps = kvcalc.explain("size", deployment, context=3000, batch=7)
    for step in (*steps, *kvcalc.explain("decode", deployment, context=3000, batch=7)):
        assert evaluated(step) == pytest.approx(step.value, rel=1e-12), step
    found = {step.quantity: step.value for step in steps}
    assert found["kv.bytes_per_sequence"] == size.kv.bytes_per_sequence
    assert found["kv.total_bytes"] == size.kv.total_bytes
    assert found["weights.total_bytes"] == size.weights.total_bytes


@pytest.mark.parametrize("kv_dtype", ["fp8", "q8_0", "q4_0", "int4-g64", "int8_per_token_head"])
def test_cache_formats_are_explained_with_their_scales(kv_dtype: str) -> None:
    deployment = kvcalc.deployment("llama3.1-8b", kv_dtype=kv_dtype)
    for step in kvcalc.explain("size", deployment, context=100):
        assert evaluated(step) == step.value


def test_decode_explanation_is_of_the_row_that_is_printed() -> None:
    deployment = kvcalc.deployment("mixtral-8x7b", gpu="h100", gpus=2)
    row = kvcalc.decode(deployment, batches=[16], contexts=[2000]).rows[0]
    found = {step.quantity: step.value for step in kvcalc.explain("decode", deployment, context=2000, batch=16)}
    assert found["ideal_s"] == row.ideal_s
    assert found["tokens_per_s"] == row.tokens_per_s
    assert found["intensity_flop_per_byte"] == row.intensity_flop_per_byte


def test_every_step_of_a_size_names_a_source() -> None:
    for step in kvcalc.explain("size", kvcalc.deployment("gemma-3-27b")):
        assert step.sources


def test_ridge_points_cite_peak_and_bandwidth() -> None:
    hardware = kvcalc.load_hardware("h100-sxm")
    for step in kvcalc.explain("roofline", hardware):
        assert evaluated(step) == step.value
        assert len(step.sources) == 2
