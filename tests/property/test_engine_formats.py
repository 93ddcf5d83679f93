"""A bound without an engine is no slower than any common engine's in the formats that engine multiplies in."""

from __future__ import annotations

import pytest

import kvcalc
from kvcalc.core.reports.speed import DecodeRow, PrefillRow

CARDS = ("h100-sxm", "a100-80gb", "rtx-4090", "rtx-3090", "t4", "v100-sxm2-32gb", "mi300x", "m3-max-40", "b200")
ENGINES = ("vllm", "sglang", "llama.cpp", "transformers", "ideal")


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("model", ["llama3.2-1b", "gemma-3-1b", "gpt-oss-20b"])
@pytest.mark.parametrize("card", CARDS)
def test_no_engine_beats_the_bound_without_one(card: str, model: str, dtype: str) -> None:
    setting = (f"dtype={dtype}",)
    for engine in ENGINES:
        run = kvcalc.deployment(model, gpu=card, settings=setting, engine=engine)
        bound = kvcalc.deployment(model, gpu=card, settings=setting)
        if run.formats.activations.name in ("int8", "fp4"):
            # llama.cpp's of mxfp4, whose attention is in fp16
            assert (engine, model) == ("llama.cpp", "gpt-oss-20b")
            plain = "dtype=fp16" if dtype == "bf16" else setting[0]
            multiplied = run.formats.activations.name
            bound = kvcalc.deployment(model, gpu=card, settings=(plain,), activations=multiplied)
        for most, row in zip(_rows(bound), _rows(run), strict=True):
            assert most.ideal_s <= row.ideal_s * (1 + 1e-12), (engine, row.ideal_s)


def _rows(deployment: kvcalc.Deployment) -> tuple[DecodeRow | PrefillRow, ...]:
    decode = kvcalc.decode(deployment, batches=[1, 64], contexts=[1024]).rows
    return (*decode, *kvcalc.prefill(deployment, prompts=[2048]).rows)


@pytest.mark.parametrize("card", CARDS)
def test_a_bound_that_llama_cpp_may_beat_says_so(card: str) -> None:
    # the definitions multiply mxfp4 in the checkpoint's 16 bits, llama.cpp in 8-bit integers, or in 4 bits on Blackwell
    engine, plain = (kvcalc.deployment("gpt-oss-20b", gpu=card, engine=name) for name in ("llama.cpp", None))
    beats = _rows(engine)[-1].ideal_s < _rows(plain)[-1].ideal_s
    assert any("--engine llama.cpp bounds that" in note for note in plain.notes) is beats
    assert not any("--engine llama.cpp bounds that" in note for note in engine.notes)


def test_a_32_bit_checkpoint_is_bounded_at_the_16_bit_peak() -> None:
    # 29.69 TFLOP of 2,048 tokens at 989.4 TFLOP/s of bf16 take 30.01 ms
    row = kvcalc.prefill(kvcalc.deployment("exaone-3.5-7.8b", gpu="h100-sxm"), prompts=[2048]).rows[0]
    assert row.ideal_s == pytest.approx(row.flop / 989.4e12)
    kept = kvcalc.deployment("exaone-3.5-7.8b", gpu="h100-sxm", weights="fp32", kv_dtype="fp32", activations="fp32")
    assert kvcalc.prefill(kept, prompts=[2048]).rows[0].ideal_s > 1.9 * row.ideal_s


@pytest.mark.parametrize(("engine", "weights"), [("vllm", "bf16"), ("sglang", "fp16"), ("transformers", "fp32")])
def test_engines_run_a_32_bit_checkpoint_in_their_own_format(engine: str, weights: str) -> None:
    deployment = kvcalc.deployment("starcoder2-15b", gpu="l40s", engine=engine)
    assert deployment.formats.weights.name == deployment.formats.key.name == weights
    assert bool(deployment.notes) == (weights != "fp32")


def test_starcoder2_fits_on_an_l40s_as_vllm_runs_it() -> None:
    # vLLM holds 29.7 GiB of it
    report = kvcalc.fit(kvcalc.deployment("starcoder2-15b", gpu="l40s"), context=8192)
    assert report.fits
    assert report.budget is not None
    assert report.budget.weight_bytes / 2**30 == pytest.approx(29.7, abs=0.05)
