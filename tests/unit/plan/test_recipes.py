"""``--weights q4_k_m`` and the other recipes of llama.cpp: what they mean, beside formats, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kvcalc
from kvcalc import api
from kvcalc.core.errors import InputError, UnknownNameError, UnsupportedError
from kvcalc.cost.parameters import parameters
from kvcalc.engines.llama_cpp.recipes import RECIPES
from kvcalc.engines.llama_cpp.tensors import VECTORS, gguf_tensors, unlisted
from kvcalc.engines.options import EngineOptions

if TYPE_CHECKING:
    from kvcalc.core.reports.catalogue import QuantRow

_TABLE = 128_256 * 4096
_DOWN = 14336 * 4096
_VECTORS = 4 * (32 * 2 * 4096 + 4096 + 64)  # with Llama 3.1's rotary factors


def _bytes(model: str = "llama3.1-8b", **deployed: Any) -> int:
    return kvcalc.size(kvcalc.deployment(model, **deployed)).weights.total_bytes


def test_a_recipe_is_taken_in_upper_and_lower_case() -> None:
    # published as Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf with 4,920,739,232 bytes, vocabulary and header included
    assert _bytes(weights="q4_k_m") == _bytes(weights="Q4_K_M", engine="llama.cpp") == 4_912_898_304


def test_a_format_that_is_a_recipe_too_keeps_a_wider_head_and_norms_where_it_stands_alone() -> None:
    matrices = 8_030_261_248 - 32 * 2 * 4096 - 4096
    assert _bytes(weights="q4_0") == (matrices - _TABLE) * 18 // 32 + _TABLE * 210 // 256 + _VECTORS
    assert _bytes(weights="q4_0,head=q6_k") == (8_030_261_248 - _TABLE) * 18 // 32 + _TABLE * 210 // 256
    assert _bytes(weights="q4_k") == 8_030_261_248 * 144 // 256  # the name of a format alone


def test_parts_may_be_named_beside_a_recipe() -> None:
    assert _bytes(weights="q4_k_m,head=q8_0") - _bytes(weights="q4_k_m") == _TABLE * 34 // 32 - _TABLE * 210 // 256


def test_16_bits_are_a_recipe_for_llama_cpp_alone() -> None:
    plain = 2 * 8_030_261_248
    assert _bytes(weights="bf16") == _bytes(weights="bf16", engine="vllm") == plain
    assert _bytes(weights="bf16", engine="llama.cpp") == plain - 2 * (32 * 2 * 4096 + 4096) + _VECTORS


def test_an_importance_matrix_moves_the_types_that_depend_on_it() -> None:
    with_matrix = _bytes(weights="q4_0", engine="llama.cpp", options=EngineOptions(imatrix=True))
    assert with_matrix - _bytes(weights="q4_0") == 4 * _DOWN * 2 // 32  # q4_1 for the MLP's last matrix of 32/8 layers


def test_a_decode_step_reads_the_exact_bytes_of_the_file() -> None:
    row = kvcalc.decode(kvcalc.deployment("llama3.1-8b", gpu="rtx-4090", weights="q4_k_m"), contexts=[4096]).rows[0]
    table = _TABLE * 144 // 256
    assert row.weight_bytes == pytest.approx(4_912_898_304 - table + 4096 * 144 / 256)


def test_a_recipe_leaves_the_projector_for_images_out_and_means_llama_cpp() -> None:
    deployment = kvcalc.deployment("qwen2.5-vl-7b", gpu="rtx-4090", weights="q4_k_m")
    assert "vision" not in kvcalc.size(deployment).weights.parts
    assert deployment.served_by == "llama.cpp"
    with_tower = kvcalc.deployment(
        "qwen2.5-vl-7b", weights="q4_k_m", engine="llama.cpp", options=EngineOptions(mmproj=True)
    )
    assert kvcalc.size(with_tower).weights.parts["vision"] > 0


def test_the_answer_says_bits_a_weight_and_the_mixture() -> None:
    (note,) = kvcalc.deployment("llama3.1-8b", weights="Q4_K_M").notes
    assert note == "Q4_K_M by llama-quantize: 4.89 bits per weight; matrices: 193 in q4_k, 33 in q6_k; norms in fp32"
    assert kvcalc.size(kvcalc.deployment("llama3.1-8b", weights="Q4_K_M")).formats.weights == "q4_k_m"
    assert "asks for an importance matrix" in kvcalc.deployment("llama3.1-8b", weights="iq2_xs").notes[-1]


def test_a_model_whose_tensors_are_not_known_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"kimi-linear-48b-a3b: the tensors .* 'kimi_linear' are not known"):
        kvcalc.deployment("kimi-linear-48b-a3b", weights="q4_k_m")
    with pytest.raises(UnsupportedError, match=r"its encoder|not known"):
        kvcalc.deployment("t5-small", weights="q4_k_m")


def test_a_name_that_is_a_format_too_is_one_where_the_tensors_are_not_known() -> None:
    deployment = kvcalc.deployment("kimi-linear-48b-a3b", weights="q8_0")
    assert not deployment.formats.parts
    assert any("q8_0 is one format for every parameter, no recipe" in note for note in deployment.notes)


def test_an_importance_matrix_is_an_option_of_llama_cpp() -> None:
    with pytest.raises(InputError, match=r"--imatrix is an option of llama\.cpp"):
        api.served(kvcalc.deployment("llama3.1-8b"), "vllm", {"imatrix": True})


def _rows(**asked: Any) -> dict[str, QuantRow]:
    return {row.recipe: row for row in api.quants("llama3.1-8b", **asked).rows}


def test_every_recipe_is_listed_the_largest_first() -> None:
    rows = _rows()
    assert rows.keys() == RECIPES.keys()
    assert [row.total_bytes for row in rows.values()] == sorted((_bytes_of(row) for row in rows.values()), reverse=True)
    assert rows["q4_k_m"].fits is rows["q4_k_m"].max_context is None


def _bytes_of(row: QuantRow) -> int:
    return _bytes(weights=row.recipe, engine="llama.cpp")


def test_a_memory_holds_weights_cache_and_compute_buffers_but_not_the_token_table() -> None:
    asked = {"model": "llama3.1-8b", "weights": "q4_k_m", "devices": ["24GiB"], "gpu_layers": "all", "ctx_size": "8192"}
    (device,) = kvcalc.ask("fit", asked).devices
    exact = device.reserved_bytes
    assert 0 < exact - (device.compute_bytes or 0) < 4_912_898_304 + 8192 * 131_072
    rows = _rows(memory_bytes=exact, context=8192)
    assert rows["q4_k_m"].fits
    assert rows["q4_k_m"].max_context == 8192
    assert not _rows(memory_bytes=exact - 1, context=8192)["q4_k_m"].fits
    assert rows["bf16"].max_context == 0


def test_the_tensors_of_each_listed_architecture_have_the_elements_of_its_model() -> None:
    listed = 0
    models = {model.architecture: model for model in map(kvcalc.load_model, api.profile_names("model"))}
    for model in models.values():
        if unlisted(model) is None:
            tensors = gguf_tensors(model)
            matrices = sum(tensor.elements for tensor in tensors if not tensor.name.endswith(VECTORS))
            parts = parameters(model.text_only())
            padded = 256 * 8960 if model.name == "gemma-3n-e4b" else 0  # its second table has the rows of the first
            assert matrices == sum(parts.values()) - parts.get("vector", 0) + padded, model.name
            listed += 1
    assert listed >= 50


@pytest.mark.parametrize(("typo", "meant"), [("q4_k_n", "q4_k_m"), ("iq3_sx", "iq3_xs"), ("awp", "awq")])
def test_a_misspelt_recipe_or_word_is_answered_with_the_nearest(typo: str, meant: str) -> None:
    with pytest.raises(UnknownNameError, match=typo) as refused:
        kvcalc.deployment("llama3.1-8b", weights=typo)
    assert meant in refused.value.hint
