"""Kinds of quantised checkpoints that an engine does not load are remarked on, with what it takes instead."""

from __future__ import annotations

import pytest

import kvcalc


def _notes(weights: str, engine: str | None) -> str:
    return " ".join(kvcalc.deployment("llama3.1-8b", weights=weights, engine=engine).notes)


@pytest.mark.parametrize(
    ("engine", "weights", "said"),
    [
        ("llama.cpp", "awq", "llama.cpp loads no AWQ checkpoints; it takes GGUF files"),
        ("llama.cpp", "w4a16", "no compressed-tensors checkpoints"),
        ("llama.cpp", "mlx-4bit", "no MLX checkpoints"),
        ("mlx", "gptq", "mlx-lm loads no GPTQ checkpoints; it takes MLX's own"),
        ("mlx", "q4_k_m", "no GGUF checkpoints"),
        ("vllm", "mlx_4bit", "vLLM 0.33 loads no MLX checkpoints"),
        ("vllm", "bnb-4bit", "no bitsandbytes checkpoints"),
        ("vllm", "hqq", "no HQQ checkpoints"),
        ("vllm", "q4_k_m", "no GGUF checkpoints"),
        ("sglang", "bitnet", "SGLang 0.5.23 loads no BitNet checkpoints"),
        ("transformers", "w4a8-fp8", "transformers 5.24 loads no W4AFP8 checkpoints"),
    ],
)
def test_an_engine_that_loads_no_such_checkpoint_is_named(engine: str, weights: str, said: str) -> None:
    assert said in _notes(weights, engine)


@pytest.mark.parametrize(
    ("engine", "weights"),
    [
        ("vllm", "awq"), ("vllm", "gptq-int8"), ("vllm", "fp8-dynamic"), ("vllm", "nvfp4"), ("vllm", "torchao-int4"),
        ("sglang", "bnb-4bit"), ("sglang", "q4_k_m"), ("llama.cpp", "q4_k_m"), ("llama.cpp", "bf16"), ("mlx", "mlx-8bit"),
        ("transformers", "hqq"), ("ideal", "awq"), (None, "awq"), ("vllm", "int4-g64"),
    ],
)  # fmt: skip
def test_what_is_loaded_or_no_kind_of_checkpoint_passes(engine: str | None, weights: str) -> None:
    assert "loads no" not in _notes(weights, engine)


@pytest.mark.parametrize(("weights", "other"), [("int8", "w8a16"), ("mxfp4", "mxfp4-w4a4"), ("mxfp8", "mxfp8-w8a8")])
def test_a_format_of_every_parameter_says_so_and_names_the_word_for_checkpoints(weights: str, other: str) -> None:
    assert f"--weights {weights} is one format for every parameter" in _notes(weights, None)
    assert other in _notes(weights, None)
    assert "one format" not in _notes(f"{weights},head=bf16", None)
    assert "one format" not in _notes(other, None)


def test_weights_that_kernels_pad_say_by_how_much() -> None:
    padded = kvcalc.fit(kvcalc.deployment("gpt-oss-120b", gpu="h100-sxm"))
    assert any("3.56 GiB a GPU beside the checkpoint" in note for note in padded.notes)
    assert not any(
        "beside the checkpoint" in note for note in kvcalc.fit(kvcalc.deployment("qwen3-8b", gpu="h200")).notes
    )
