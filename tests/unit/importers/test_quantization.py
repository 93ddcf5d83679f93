"""Formats that a quantisation config declares, against bytes known from real checkpoints and from hand counts."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.errors import ProfileError, UnsupportedError
from kvcalc.core.formats import parse_format
from kvcalc.core.model import Block, Full, Gated, Head, Mixture, ModelProfile, State, Table
from kvcalc.core.workload import Formats
from kvcalc.cost.parameters import parameters, weight_bytes
from kvcalc.importers.config_reader import Config
from kvcalc.importers.families.shape import Shape
from kvcalc.importers.modules import Selection
from kvcalc.importers.quantization import CheckpointFormats, weight_formats


def _shape(*blocks: Block, hidden: int, rows: int, tied: bool = False) -> Shape:
    return Shape(
        hidden_size=hidden,
        context_limit=None,
        blocks=blocks,
        embeddings=(Table(name="token", rows=rows, width=hidden),),
        head=Head(rows=rows, tied=tied),
        vector_parameters=hidden,
    )


_ATTENTION = Full(heads=32, kv_heads=32, head_dim=128)
_LLAMA = _shape(
    *(Block(mixers=(_ATTENTION,), mlp=Gated(width=11008), vector_parameters=2 * 4096),) * 32, hidden=4096, rows=32000
)
_SPARSE = _shape(
    Block(mixers=(_ATTENTION,), mlp=Gated(width=8192)),
    *(Block(mixers=(_ATTENTION,), mlp=Mixture(experts=8, experts_per_token=2, width=1024, shared_width=1024)),) * 3,
    hidden=4096,
    rows=32000,
)
_HALF = {"num_bits": 8, "type": "float"}


def _formats(
    quantization: dict[str, Any] | None, shape: Shape = _LLAMA, *, dtype: str = "bf16", **keys: Any
) -> CheckpointFormats:
    data = {"model_type": "llama", **keys} | ({} if quantization is None else {"quantization_config": quantization})
    return weight_formats(Config(data), Config(data), shape, dtype=dtype)


def _bytes(found: CheckpointFormats, shape: Shape) -> int:
    model = ModelProfile(
        name="m",
        architecture="m",
        hidden_size=shape.hidden_size,
        context_limit=None,
        blocks=shape.blocks,
        embeddings=shape.embeddings,
        head=shape.head,
        vector_parameters=shape.vector_parameters,
    )
    return weight_bytes(model, Formats(parts={part: parse_format(name) for part, name in found.parts.items()}))


def test_config_without_quantization_declares_nothing() -> None:
    assert _formats(None) == CheckpointFormats()


@pytest.mark.parametrize(("layers", "experts", "total"), [(24, 32, 13_761_264_768), (36, 128, 65_248_815_744)])
def test_gpt_oss_mxfp4_has_the_bytes_of_its_checkpoint(layers: int, experts: int, total: int) -> None:
    hidden = 2880
    block = Block(
        mixers=(Full(heads=64, kv_heads=8, head_dim=64),),
        mlp=Mixture(experts=experts, experts_per_token=4, width=2880, expert_bias=True),
        vector_parameters=2 * hidden + 64 * 64 + 2 * 8 * 64 + hidden + 64 + experts,
    )
    shape = _shape(*(block,) * layers, hidden=hidden, rows=201_088)
    left = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    found = _formats({"quant_method": "mxfp4", "modules_to_not_convert": left}, shape)
    assert set(found.parts) == {"experts"}
    assert found.activations is None
    assert _bytes(found, shape) == total


def test_fp8_blocks_keep_their_name_where_tiles_fit() -> None:
    found = _formats({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"})
    assert found == CheckpointFormats(
        parts={"attention": "fp8_block128", "mlp": "fp8_block128"}, kv=None, activations="fp8"
    )


@pytest.mark.parametrize(
    "tile", [[128], [128, 128, 128], [0, 128], [128, -1], [True, 128], ["128", 128], [1.5, 128], [None, 1]]
)
def test_tiles_have_two_sides_of_one_element_or_more(tile: list[Any]) -> None:
    with pytest.raises(ProfileError, match="two whole numbers"):
        _formats({"quant_method": "fp8", "weight_block_size": tile})
    assert _formats({"quant_method": "fp8", "weight_block_size": [1, 1]}).parts


def test_fp8_blocks_of_odd_matrices_round_each_matrix_up() -> None:
    shape = _shape(Block(mixers=(Full(heads=1, kv_heads=1, head_dim=100),)), hidden=256, rows=8)
    found = _formats({"quant_method": "fp8", "weight_block_size": [128, 128]}, shape)
    assert found.parts["attention"] == f"mixed-{4 * 25600 + 4 * 2 * 4}/{4 * 25600}:fp8"


def test_fp8_without_blocks_is_one_byte_an_element() -> None:
    assert _formats({"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}).parts == {
        "attention": "fp8",
        "mlp": "fp8",
    }


def test_modules_left_alone_stay_in_the_dtype() -> None:
    left = [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(32) for name in "qkvo"]
    found = _formats({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": left})
    assert set(found.parts) == {"mlp"}
    half = _formats({"quant_method": "fp8", "modules_to_not_convert": left[: 16 * 4]})
    elements = parameters_of("attention")
    assert found.parts["mlp"] == "fp8_block128"
    assert half.parts["attention"] == f"mixed-{elements // 2 * 3}/{elements}:fp8"


def parameters_of(part: str) -> int:
    """Return the elements of a part of the Llama."""
    model = ModelProfile(
        name="m", architecture="m", hidden_size=4096, context_limit=None, blocks=_LLAMA.blocks, embeddings=(), head=None
    )
    return parameters(model)[part]


def test_deepseek_v4_experts_are_in_four_bits() -> None:
    found = _formats(
        {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}, _SPARSE, expert_dtype="fp4"
    )
    assert found.parts["experts"] == "mxfp4"
    assert found.parts["mlp"] == "fp8_block128"


@pytest.mark.parametrize(
    ("scale_fmt", "keys", "scale_bytes"),
    [
        ("ue8m0", {"compress_ratios": [4]}, 1),  # DeepSeek-V4 stores the scales as 8-bit exponents
        ("ue8m0", {}, 4),  # DeepSeek-V3.1 rounds its 32-bit scales to such exponents, and stores 32 bits
        ("", {"compress_ratios": [4]}, 4),
    ],
)
def test_scales_of_fp8_tiles_take_one_byte_only_where_they_are_stored_as_exponents(
    scale_fmt: str, keys: dict[str, Any], scale_bytes: int
) -> None:
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": scale_fmt}
    elements, tiles = parameters_of("attention"), 32 * 4 * (4096 // 128) ** 2
    shape = _shape(*_LLAMA.blocks, hidden=4096, rows=8)
    plain = _bytes(_formats(None, shape), shape)
    found = _formats(quantization, shape, **keys)
    mlp, mlp_tiles = parameters_of("mlp"), 32 * 3 * (4096 // 128) * (11008 // 128)
    assert plain - _bytes(found, shape) == elements + mlp - scale_bytes * (tiles + mlp_tiles)


@pytest.mark.parametrize(("method", "scale_bytes"), [("eetq", 2), ("fbgemm_fp8", 4)])
def test_the_scale_of_a_row_has_the_bits_of_its_method(method: str, scale_bytes: int) -> None:
    """EETQ keeps 16-bit scales, FBGEMM 32-bit ones; both one for each output of a matrix."""
    elements, rows = parameters_of("attention"), 32 * 4 * 4096
    found = parse_format(_formats({"quant_method": method}).parts["attention"])
    assert found.bytes(elements) == elements + rows * scale_bytes


def test_compressed_tensors_channels_add_a_scale_a_row() -> None:
    group = {"targets": ["Linear"], "weights": _HALF | {"strategy": "channel"}, "input_activations": _HALF}
    found = _formats(
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
            "kv_cache_scheme": _HALF,
        }
    )
    elements = parameters_of("attention")
    assert found.parts["attention"] == f"mixed-{elements + 32 * 4 * 4096 * 2}/{elements}:fp8"
    assert (found.kv, found.activations) == ("fp8", "fp8")


def test_compressed_tensors_ignores_by_expression() -> None:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    found = _formats(
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
            "ignore": [
                "lm_head",
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            ],
        },
        _SPARSE,
    )
    assert found.parts == {"experts": "int4-g32"}


def test_modelopt_names_one_algorithm_or_one_for_each_layer() -> None:
    whole = _formats(
        {"quant_algo": "FP8", "producer": {"name": "modelopt"}, "kv_cache_scheme": "FP8", "ignore": ["lm_head"]}
    )
    assert whole == CheckpointFormats(parts={"attention": "fp8", "mlp": "fp8"}, kv="fp8", activations="fp8")
    layers = {
        f"model.language_model.layers.{layer}.mlp": {"quant_algo": "NVFP4", "group_size": 16} for layer in range(4)
    }
    layers |= {"model.language_model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"}}
    mixed = _formats({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}, _SPARSE)
    square = 4096 * 4096
    assert mixed.parts["experts"] == mixed.parts["mlp"] == "nvfp4"
    assert mixed.parts["attention"] == f"mixed-{square + 15 * square * 2}/{16 * square}:fp8"
    assert mixed.activations == "nvfp4"


def test_layers_beyond_the_model_and_other_towers_are_passed_over() -> None:
    ignore = ["visual.blocks.0*", "model.vision_tower*", "mtp*", "model.layers.99*", "lm_head"]
    found = _formats({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore})
    assert found.parts == {"attention": "nvfp4", "mlp": "nvfp4"}


@pytest.mark.parametrize(
    ("config", "bytes_per_128"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 64 + 2 + 0.5),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False}, 64 + 2),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 64 + 8),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
             "bnb_4bit_use_double_quant": True},
            64 + 2 + 4 / 128,
        ),
    ],
)  # fmt: skip
def test_grouped_formats_have_true_bytes(config: dict[str, Any], bytes_per_128: float) -> None:
    found = _formats(config, dtype="fp16")
    assert parse_format(found.parts["mlp"]).bytes_per_element * 128 == bytes_per_128


def test_gptq_counts_the_group_index_of_each_input() -> None:
    found = _formats({"quant_method": "gptq", "bits": 4, "group_size": 128}, dtype="fp16")
    elements = parameters_of("attention")
    assert found.parts["attention"] == f"mixed-{elements * 133 // 256 + 32 * 4 * 4096 * 4}/{elements}:int4"


def test_gates_of_a_delta_rule_can_stay_while_its_projections_are_quantised() -> None:
    hidden, inner = 64, 128
    state = State(
        variant="gated_delta", heads=8, key_dim=16, value_dim=16, conv_channels=2 * inner,
        matrix_parameters=hidden * (2 * inner + 2 * inner + 2 * 8),
    )  # fmt: skip
    shape = _shape(Block(mixers=(state,)), hidden=hidden, rows=8)
    found = _formats(
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["*.linear_attn.in_proj_ba", "lm_head"]}, shape
    )
    quantised, kept = hidden * 4 * inner, hidden * 16
    assert found.parts["attention"] == f"mixed-{quantised + 2 * kept}/{quantised + kept}:fp8"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "gptqq"}, "'gptqq' is not known"),
        ({"quant_method": "quip"}, "'quip' is not known"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:lm_head": {}}}, "dynamic"),
        ({"quant_method": "awq", "bits": 3}, "bits 3 of the quantisation method 'awq'"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ'"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask"}}, "sparsity_config"),
        ({"quant_method": "compressed-tensors", "ignore": ["re:(a+)+$"]}, "too involved"),
        ({"quant_method": "quark", "layer_quant_config": {"*": {}}}, "layer_quant_config"),
    ],
)
def test_what_is_not_exact_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        _formats(config)


@pytest.mark.parametrize(
    "config",
    [{}, {"quant_method": "fp8", "weight_block_size": [128]}, {"quant_method": "compressed-tensors", "ignore": [1]}],
)
def test_senseless_config_is_an_error(config: dict[str, Any]) -> None:
    with pytest.raises(ProfileError):
        _formats(config or {"bits": 4})


def test_selection_compares_whole_names() -> None:
    picked = Selection(["gate", "model.layers.1.", "h.2.attn", "*.mlp.shared_expert.*"], where="x")
    assert picked.has("layers.0.mlp.gate")
    assert not picked.has("layers.0.mlp.gate_proj")
    assert not picked.has("layers.10.mlp.up_proj")
    assert picked.has("layers.2.attn.c_attn")
    assert picked.has("layers.3.mlp.shared_expert.up_proj")


def _groups(*targets: str, **weights: Any) -> dict[str, Any]:
    scheme = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True, **weights}
    group = {"targets": list(targets), "weights": scheme}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"g": group},
        "ignore": ["lm_head"],
    }


@pytest.mark.parametrize("order", ["group", "dynamic", True])
def test_order_of_activation_by_group_stores_an_index_for_each_input(order: object) -> None:
    elements = parameters_of("attention")
    found = _formats(_groups("Linear", actorder=order))
    assert found.parts["attention"] == f"mixed-{elements * 132 // 256 + 32 * 4 * 4096 * 4}/{elements}:int4"


@pytest.mark.parametrize("order", ["weight", "static", False, None])
def test_other_orders_store_none(order: object) -> None:
    assert _formats(_groups("Linear", actorder=order)).parts["attention"] == "int4-g128"


@pytest.mark.parametrize("target", ["Embedding", "re:.*embed_tokens", "model.embed_tokens", "re:.*"])
def test_token_table_as_a_target_is_refused(target: str) -> None:
    with pytest.raises(UnsupportedError, match="the token table as a target"):
        _formats(_groups("Linear", target))


@pytest.mark.parametrize("target", ["LlamaAttention", "re:.*no_such_proj", "model.layers.99.mlp.up_proj"])
def test_target_that_matches_nothing_is_refused(target: str) -> None:
    with pytest.raises(UnsupportedError, match="no linear module matches the target"):
        _formats(_groups(target))


def test_targets_of_other_towers_are_passed_over() -> None:
    assert _formats(_groups("Linear", "model.vision_tower.layers.0.fc1")).parts["mlp"] == "int4-g128"


def test_marlin_form_of_gptq_has_neither_zero_points_nor_indices() -> None:
    marlin = {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}
    assert _formats(marlin, dtype="fp16").parts["attention"] == "int4-g128"
    with pytest.raises(UnsupportedError, match="checkpoint_format 'bitblas'"):
        _formats(marlin | {"checkpoint_format": "bitblas"})


def test_modelopt_keys_may_stand_in_a_block_of_their_own() -> None:
    keys = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    found = _formats({"producer": {"name": "modelopt"}, "quantization": keys})
    assert found == CheckpointFormats(parts={"attention": "fp8", "mlp": "fp8"}, kv="fp8", activations="fp8")
