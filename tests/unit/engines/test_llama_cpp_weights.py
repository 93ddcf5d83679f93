"""Weights by place, counted by hand: copies, overrides, padding, and what the CPU repacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.model import Block, Full, Gated, Head, ModelProfile, Table
from kvcalc.core.tensors import Tensor
from kvcalc.core.workload import Formats
from kvcalc.engines.llama_cpp.backends import BACKENDS, CPU, MEMORY, is_repacked, stored_bytes
from kvcalc.engines.llama_cpp.overrides import Override
from kvcalc.engines.llama_cpp.placement import PlacementOptions, place
from kvcalc.engines.llama_cpp.recipes import GgufTensor
from kvcalc.engines.llama_cpp.weights import Weight, all_layers, model_weights, place_weights

GIB = 2**30
CUDA, METAL = BACKENDS["nvidia"], BACKENDS["apple"]
BLOCK = Block(mixers=(Full(heads=8, kv_heads=2, head_dim=64),), mlp=Gated(width=1024), vector_parameters=1024)
MODEL = ModelProfile(
    name="tiny",
    architecture="llama",
    hidden_size=512,
    context_limit=4096,
    blocks=(BLOCK,) * 2,
    embeddings=(Table(name="token", rows=1000, width=512),),
    head=Head(rows=1000, tied=True),
    vector_parameters=512,
)
LAYER = 2 * (512 * 512 + 2 * 512 * 128 + 512 * 512 + 3 * 512 * 1024) + 4 * 1024
TABLE = 2 * 1000 * 512
NORM = 4 * 512


def placed(model, weights, options, *, devices=1, backend=MEMORY):
    placement = place(options, layers=all_layers(model), free_bytes=(GIB,) * devices)
    return place_weights(model, weights, placement, (backend,) * devices)


def test_a_tied_head_is_a_copy_on_the_output_s_device():
    found = placed(MODEL, model_weights(MODEL, "bf16"), PlacementOptions())
    assert found.by_place == {0: 2 * LAYER + TABLE + NORM, None: TABLE}
    assert found.copied_bytes == TABLE


def test_on_the_host_a_tied_head_is_the_table_itself():
    found = placed(MODEL, model_weights(MODEL, "bf16"), PlacementOptions(gpu_layers=0))
    assert found.by_place == {0: 0, None: 2 * LAYER + TABLE + NORM}
    assert found.copied_bytes == 0


def test_layers_follow_the_placement():
    found = placed(MODEL, model_weights(MODEL, "bf16"), PlacementOptions(gpu_layers=2))
    assert found.by_place == {0: LAYER + TABLE + NORM, None: LAYER + TABLE}


def test_an_override_moves_a_tensor():
    options = PlacementOptions(overrides=(Override(pattern=r"blk\.0\.ffn_down"), Override(pattern="^output_norm")))
    found = placed(MODEL, model_weights(MODEL, "bf16"), options)
    assert found.by_place[None] == TABLE + 2 * 512 * 1024


def test_rotary_factors_are_copied_to_every_place_that_holds_layers():
    model = replace(MODEL, rotary_factors=32)
    found = placed(model, model_weights(model, "bf16"), PlacementOptions(gpu_layers=2))
    assert found.by_place == {0: LAYER + TABLE + NORM + 128, None: LAYER + TABLE + 128}


def test_layers_that_predict_tokens_are_placed_but_not_loaded():
    tensors = {
        "token_embd.weight": Tensor("fp16", (512, 1000), TABLE),
        "blk.0.attn_q.weight": Tensor("fp16", (512, 512), 2 * 512 * 512),
        "blk.2.nextn.eh_proj.weight": Tensor("fp16", (1024, 512), 2 * 1024 * 512),
    }
    model = replace(MODEL, file_tensors=tensors, prediction_layers=1)
    weights = model_weights(model, None)
    assert len(weights) == 3
    placement = place(PlacementOptions(gpu_layers=3), layers=3, free_bytes=(GIB,))
    assert placement.layers == (None, 0, 0)
    assert place_weights(model, weights, placement, (MEMORY,)).by_place == {0: TABLE, None: TABLE + 2 * 512 * 512}


def test_a_file_by_part_keeps_norms_in_32_bits():
    formats = Formats(weights=FORMATS["q8_0"])
    weights = {weight.name: weight for weight in model_weights(MODEL, None, formats=formats)}
    assert weights["blk.0.attn_q.weight"].size == 512 * 512 * 34 // 32
    assert weights["blk.1.norms and other vectors"].kind == "fp32"


def test_a_format_that_no_file_has_is_refused():
    with pytest.raises(UnsupportedError, match="no weights in int4-g128"):
        model_weights(MODEL, None, formats=Formats(weights=parse_format("int4-g128")))


@pytest.mark.parametrize(("backend", "size"), [(CUDA, 9728), (MEMORY, 9664), (CPU, 9536), (METAL, 9536)])
def test_the_last_row_of_a_quantised_matrix_is_padded_as_the_back_end_does(backend, size):
    """10 rows of 896 in q8_0 are 9,520 B; a row is padded to 1,024 by 136 B, and the whole to the alignment."""
    assert stored_bytes(9520, width=896, form=FORMATS["q8_0"], backend=backend) == size
    assert stored_bytes(9520, width=896, form=FORMATS["fp16"], backend=CPU) == 9536


@pytest.mark.parametrize(("name", "shape", "kind", "repacked"), [
    ("blk.0.ffn_up.weight", (512, 1024), "q4_k", True),
    ("blk.0.ffn_up.weight", (512, 1024, 1), "q4_k", True),
    ("blk.0.ffn_up.weight", (512, 1020), "q4_k", False),
    ("blk.0.ffn_up.weight", (512, 1024), "q6_k", False),
    ("blk.0.ffn_up_exps.weight", (512, 1024, 8), "mxfp4", True),
    ("blk.0.attn_k_b.weight", (512, 1024, 8), "q4_0", False),
])  # fmt: skip
def test_matrices_that_the_cpu_repacks(name, shape, kind, repacked):
    assert is_repacked(GgufTensor(name, shape, "mlp"), kind) is repacked


def test_repacked_weights_are_counted_apart_unless_a_device_pins_the_host():
    weights = model_weights(MODEL, "q4_0")
    apart = placed(MODEL, weights, PlacementOptions(gpu_layers=0))
    pinned = placed(MODEL, weights, PlacementOptions(gpu_layers=0), backend=CUDA)
    assert apart.repacked_bytes > 0
    assert apart.by_place[None] + apart.repacked_bytes == pinned.by_place[None]
    assert pinned.repacked_bytes == 0


def test_a_tied_head_that_the_cpu_repacks_is_a_copy():
    table = Weight(GgufTensor("token_embd.weight", (512, 1000), "head"), "q4_0", 1000 * 512 * 18 // 32)
    found = placed(MODEL, (table,), PlacementOptions(gpu_layers=0))
    assert found.by_place[None] == found.repacked_bytes == found.copied_bytes == table.size
