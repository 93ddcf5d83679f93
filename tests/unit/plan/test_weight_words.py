"""``--weights int4`` and other words for a whole model: what checkpoints of that kind store."""

from __future__ import annotations

import pytest

import kvcalc
from kvcalc.core.units import GIB
from kvcalc.plan.weight_words import WORDS

_EMBEDDING = _HEAD = 128_256 * 4096
_VECTORS = 32 * 2 * 4096 + 4096
_MATRICES = 8_030_261_248 - _EMBEDDING - _HEAD - _VECTORS


@pytest.mark.parametrize(
    ("word", "bits"),
    [
        ("int4", 4.125), ("w4a16", 4.125), ("awq", 4.15625), ("gptq", 4.15625), ("nvfp4", 4.5), ("fp8", 8),
        ("fp8-dynamic", 8), ("FP8_Dynamic", 8), ("w8a8", 8), ("awq-int4", 4.15625), ("GPTQ g128", 4.15625),
        ("awq_marlin", 4.15625), ("gptq-int3", 3 + 16 / 128 + 3 / 128), ("gptq-int8", 8 + 16 / 128 + 8 / 128),
        ("auto-round", 4.125), ("hqq", 4.5), ("torchao-int4", 4.25), ("bitnet", 2), ("w4a8", 4.125), ("w4afp8", 4.125),
        ("mxfp4-w4a4", 4.25), ("mxfp8-w8a8", 8.25), ("nvfp4a16", 4.5),
    ],
)  # fmt: skip
def test_a_word_quantises_matrices_and_leaves_embedding_head_and_norms(word: str, bits: float) -> None:
    weights = kvcalc.size(kvcalc.deployment("llama3.1-8b", weights=word)).weights
    assert weights.total_bytes == _MATRICES * bits / 8 + 2 * (_EMBEDDING + _HEAD + _VECTORS)


def test_a_word_weighs_what_a_published_checkpoint_does() -> None:
    # hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4: vLLM 0.14 printed 37.09 GiB
    size = kvcalc.size(kvcalc.deployment("llama3.1-70b", weights="awq")).weights.total_bytes
    assert 0.997 * 37.09 <= size / GIB <= 37.09


def test_parts_may_be_named_beside_a_word() -> None:
    plain, head = (kvcalc.size(kvcalc.deployment("llama3.1-8b", weights=text)) for text in ("int4", "int4,head=q8_0"))
    assert plain.weights.total_bytes - head.weights.total_bytes == 2 * _HEAD - _HEAD * 34 // 32


def test_experts_are_quantised_and_routers_and_towers_are_not() -> None:
    deployment = kvcalc.deployment("qwen3-vl-30b-a3b", weights="int4")
    names = {part: deployment.formats.of(part).name for part in kvcalc.size(deployment).weights.parts}
    assert {part for part, name in names.items() if name == "int4-g128"} == {"attention", "experts"}
    assert names["router"] == names["vision"] == names["head"] == "bf16"


@pytest.mark.parametrize(
    ("word", "form", "embedding", "head"),
    [
        ("exl3-4bpw", 4, 16, 6),
        ("exl2-4.25bpw", 4.25, 16, 6),
        # a 16-bit scale and bias for 64
        ("mlx-4bit", 4.5, 4.5, 4.5),
        ("mlx-3bit", 3.5, 3.5, 3.5),
        ("mlx-6bit", 6.5, 6.5, 6.5),
    ],
)
def test_a_word_may_take_head_and_embedding_too(word: str, form: float, embedding: float, head: float) -> None:
    size = kvcalc.size(kvcalc.deployment("llama3.1-8b", weights=word))
    bits = _MATRICES * form + _EMBEDDING * embedding + _HEAD * head + _VECTORS * 16
    assert size.weights.total_bytes == bits / 8
    assert any(note.startswith(f"--weights {word} follows common checkpoints") for note in size.notes)


@pytest.mark.parametrize(
    ("word", "activations"),
    [
        ("fp8", "bf16"),
        ("fp8-dynamic", "fp8"),
        ("w8a8", "int8"),
        ("nvfp4", "nvfp4"),
        ("nvfp4a16", "bf16"),
        ("w4afp8", "fp8"),
    ],
)
def test_a_word_says_whether_activations_are_quantised_too(word: str, activations: str) -> None:
    assert kvcalc.deployment("llama3.1-8b", weights=word).formats.activations.name == activations
    assert kvcalc.deployment("llama3.1-8b", weights=word, activations="fp16").formats.activations.name == "fp16"


@pytest.mark.parametrize("word", WORDS)
def test_the_answer_says_what_a_word_was_taken_for(word: str) -> None:
    notes = kvcalc.size(kvcalc.deployment("llama3.1-8b", weights=word)).notes
    assert any(
        note.startswith(f"--weights {word} follows common checkpoints") and "head in bf16" in note for note in notes
    )


@pytest.mark.parametrize("name", ["int8", "bf16", "q4_k", "int4-g128", "mxfp4"])
def test_a_format_is_that_of_every_parameter(name: str) -> None:
    deployment = kvcalc.deployment("llama3.1-8b", weights=name)
    assert not deployment.formats.parts
    said = [note for note in kvcalc.size(deployment).notes if "--weights" in note]
    assert all(note.startswith(f"--weights {name} is one format for every parameter") for note in said)
    assert bool(said) is (name in {"int8", "mxfp4"})  # words that checkpoints have too, for their matrices alone


@pytest.mark.parametrize(
    ("word", "mixture", "near"),
    [
        ("UD-Q4_K_XL", "UD-Q4_K_XL", "q4_k_m"),
        ("ud-iq2_xxs", "UD-IQ2_XXS", "iq2_xxs"),
        ("UD_Q2_K_XL", "UD-Q2_K_XL", "q2_k"),
        ("q8_k_xl", "Q8_K_XL", "q8_0"),
        ("UD-Q4_K_XL,embedding=bf16", "UD-Q4_K_XL", "q4_k_m"),
    ],
)
def test_a_publishers_own_mixture_is_refused_with_where_its_bytes_stand(word: str, mixture: str, near: str) -> None:
    with pytest.raises(kvcalc.UnsupportedError, match=f"{mixture} is its publisher's own mixture") as caught:
        kvcalc.deployment("qwen3-8b", weights=word)
    assert "the .gguf file, whose header says it" in caught.value.hint
    assert caught.value.hint.endswith(f"-m qwen3-8b --weights {near} is llama.cpp's own recipe")
    assert caught.value.parameter == "weights"
