"""Engines by the names that people write, and what is said of those that are not described."""

from __future__ import annotations

import pytest

import kvcalc
from kvcalc.engines.checkpoint import ENGINES, FRONTS, engine_named


@pytest.mark.parametrize(
    ("typed", "engine"),
    [
        ("vLLM", "vllm"),
        ("SGLang", "sglang"),
        ("llama_cpp", "llama.cpp"),
        ("llama-server", "llama.cpp"),
        ("LM Studio", "lm-studio"),
        ("mlx-lm", "mlx"),
        ("TRT-LLM", "tensorrt-llm"),
        ("TensorRT-LLM", "tensorrt-llm"),
        ("vlm", "vlm"),
    ],
)
def test_an_engine_is_taken_by_any_of_its_names(typed: str, engine: str) -> None:
    assert engine_named(typed) == engine


def test_own_names_stay() -> None:
    assert [engine_named(name) for name in (*ENGINES, *FRONTS)] == [*ENGINES, *FRONTS]


def test_questions_and_python_take_these_names() -> None:
    asked = {"model": "llama3.1-8b", "context": 4096}
    assert kvcalc.ask("size", asked | {"engine": "vLLM"}) == kvcalc.ask("size", asked | {"engine": "vllm"})
    assert kvcalc.deployment("llama3.1-8b", engine="Llama_CPP").engine == "llama.cpp"


@pytest.mark.parametrize("name", ["trtllm", "TGI", "exllamav2", "ktransformers"])
def test_an_engine_that_is_not_described_is_told_so_and_no_other_is_offered(name: str) -> None:
    with pytest.raises(kvcalc.InputError, match="is not modelled: ") as caught:
        kvcalc.ask("size", {"model": "llama3.1-8b", "engine": name})
    assert "did you mean" not in caught.value.hint


def test_keys_and_values_have_formats_of_their_own_in_one_word() -> None:
    pair = kvcalc.deployment("llama3.1-8b", engine="llama.cpp", kv_dtype="q8_0/q4_0").formats
    assert (pair.key.name, pair.value.name) == ("q8_0", "q4_0")
    one = kvcalc.deployment("llama3.1-8b", engine="llama.cpp", kv_dtype="q8_0").formats
    assert (one.key.name, one.value.name) == ("q8_0", "q8_0")
