"""Every quantisation method on one matrix of each kind: bytes by hand, what it leaves alone, and what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.core.formats import is_exllama, parse_format
from kvcalc.core.model import Block, Full, Gated, Head, Table
from kvcalc.importers.config_reader import Config
from kvcalc.importers.families.shape import Shape
from kvcalc.importers.quantization import CheckpointFormats, weight_formats

ROWS, COLUMNS = 4096, 4096
ELEMENTS = ROWS * COLUMNS  # of each of the four projections
LAYER = "model.layers.0"
ATTENTION = [f"{LAYER}.self_attn.{name}_proj" for name in "qkvo"]
LEFT_OUT = {
    "aqlm": "linear_weights_not_to_quantize",
    "awq": "modules_to_not_convert",
    "bitsandbytes": "llm_int8_skip_modules",
    "eetq": "modules_to_not_convert",
    "fbgemm_fp8": "modules_to_not_convert",
    "fp8": "modules_to_not_convert",
    "gptq": "modules_in_block_to_not_quantize",
    "quark": "exclude",
    "modelopt": "ignore",
    "auto-round": "modules_to_not_convert",
    "bitnet": "modules_to_not_convert",
    "hqq": "skip_modules",
    "torchao": "modules_to_not_convert",
    "w4afp8": "ignored_layers",
    "w8a8_int8": "ignore",
    "mxfp8": "modules_to_not_convert",
}


def _formats(**quantization: Any) -> CheckpointFormats:
    block = Block(mixers=(Full(heads=32, kv_heads=32, head_dim=128),), mlp=Gated(width=ROWS))
    shape = Shape(
        hidden_size=COLUMNS,
        context_limit=None,
        blocks=(block,),
        embeddings=(Table(name="token", rows=8, width=COLUMNS),),
        head=Head(rows=8, tied=False),
        vector_parameters=COLUMNS,
    )
    config = Config({"model_type": "llama", "quantization_config": quantization})
    return weight_formats(config, config, shape, dtype="fp16")


def _quark(dtype: str, scales: str, group: int | None = None, inputs: str = "", **more: Any) -> dict[str, Any]:
    whole = {"weight": {"dtype": dtype, "qscheme": scales, "group_size": group}, "input_tensors": {"dtype": inputs}}
    return {"quant_method": "quark", "global_quant_config": whole, **more}


def _compressed(
    bits: int,
    kind: str,
    strategy: str,
    group: int,
    *,
    form: str = "pack-quantized",
    inputs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": group, "symmetric": True}
    only = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": only},
        "ignore": ["lm_head"],
    }


BYTES: list[tuple[dict[str, Any], float]] = [
    # codes of two 16-bit books for eight inputs, a book of 2**16 vectors of eight 16-bit numbers each, a scale a row
    ({"quant_method": "aqlm", "num_codebooks": 2, "nbits_per_codebook": 16}, ELEMENTS // 8 * 4 + 2 * 2**16 * 8 * 2 + ROWS * 2),
    # four rows share their codes, of one byte for two inputs
    ({"quant_method": "aqlm", "num_codebooks": 1, "nbits_per_codebook": 8, "out_group_size": 4, "in_group_size": 2},
     ELEMENTS // 8 + 2**8 * 8 * 2 + ROWS // 4 * 2),
    ({"quant_method": "awq", "bits": 4, "group_size": 64}, ELEMENTS // 2 + ELEMENTS // 64 * 2.5),
    ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": False}, ELEMENTS // 2 + ELEMENTS // 64 * 2),
    ({"quant_method": "awq", "bits": 4, "group_size": -1, "zero_point": False}, ELEMENTS // 2 + ROWS * 2),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ELEMENTS + ROWS * 4),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, ELEMENTS // 2 + ELEMENTS // 64 * 4),
    ({"quant_method": "eetq"}, ELEMENTS + ROWS * 2),
    ({"quant_method": "fbgemm_fp8"}, ELEMENTS + ROWS * 4),
    ({"quant_method": "fp8"}, ELEMENTS),
    ({"quant_method": "gptq", "bits": 8, "group_size": 128}, ELEMENTS + ELEMENTS // 128 * 3 + COLUMNS * 4),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}, ELEMENTS // 2 + ELEMENTS // 128 * 2),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "is_marlin_format": True}, ELEMENTS // 2 + ELEMENTS // 128 * 2),
    (_quark("fp8_e4m3", "per_tensor"), ELEMENTS),
    (_quark("fp8_e4m3", "per_channel"), ELEMENTS + ROWS * 4),
    (_quark("fp4", "per_group", 32), ELEMENTS // 2 + ELEMENTS // 32),
    (_quark("int8", "per_tensor"), ELEMENTS),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, ELEMENTS),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ELEMENTS // 2 + ELEMENTS // 16),
    ({"quant_method": "modelopt", "quant_algo": "MXFP8"}, ELEMENTS + ELEMENTS // 32),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_NVFP4_FP8"}, ELEMENTS // 2 + ELEMENTS // 16),
    # AutoRound packs as GPTQ without an index; entries of its own for single modules
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "auto_round:auto_gptq"},
     ELEMENTS // 2 + ELEMENTS // 128 * 2.5),
    ({"quant_method": "auto-round", "bits": 2, "group_size": 64}, ELEMENTS // 4 + ELEMENTS // 64 * 2.25),
    ({"quant_method": "auto-round", "bits": 3, "group_size": 128}, ELEMENTS * 3 // 8 + ELEMENTS // 128 * 2.375),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "mx_fp", "packing_format": "auto_round:llm_compressor"},
     ELEMENTS // 2 + ELEMENTS // 32),
    ({"quant_method": "awq_marlin", "bits": 4, "group_size": 128}, ELEMENTS // 2 + ELEMENTS // 128 * 2.5),
    ({"quant_method": "bitnet"}, ELEMENTS // 4),
    ({"quant_method": "bitnet", "quantization_mode": "online"}, ELEMENTS * 2),
    # 16 bits for each input and each output beside the trellis
    ({"quant_method": "exl3", "bits": 4.0, "head_bits": 6}, ELEMENTS // 2 + 2 * (ROWS + COLUMNS)),
    ({"quant_method": "exl2", "bits": 4.25, "head_bits": 6}, ELEMENTS * 17 // 32 + 2 * (ROWS + COLUMNS)),
    # ten integers of 3 bits in a word of 32, groups padded to a multiple of ten
    ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
     ELEMENTS // 2 + ELEMENTS // 64 * 4),
    ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 3, "group_size": 64}}},
     -(-(ELEMENTS // 64) // 10) * 64 * 4 + ELEMENTS // 64 * 4),
    ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 128}}}},
     ELEMENTS // 2 + ELEMENTS // 128 * 4),
    ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, ELEMENTS + ROWS * 4),
    ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8DynamicActivationFloat8WeightConfig"}}},
     ELEMENTS + ROWS * 4),
    ({"quant_method": "w4afp8"}, ELEMENTS + ELEMENTS // 128**2 * 4),
    ({"quant_method": "w8a8_int8"}, ELEMENTS + ROWS * 4),
    ({"quant_method": "w8a8_fp8"}, ELEMENTS + ROWS * 4),
    ({"quant_method": "mxfp8"}, ELEMENTS + ELEMENTS // 32),
    (_compressed(4, "int", "group", 128, inputs={"num_bits": 8, "type": "float"}), ELEMENTS // 2 + ELEMENTS // 128 * 2),
    (_compressed(3, "int", "group", 128), ELEMENTS * 3 // 8 + ELEMENTS // 128 * 2),
    (_compressed(8, "float", "group", 32, form="mxfp8-quantized"), ELEMENTS + ELEMENTS // 32),
]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "matrix_bytes"), BYTES, ids=lambda value: value["quant_method"] if isinstance(value, dict) else ""
)
def test_a_matrix_takes_what_its_method_stores(config: dict[str, Any], matrix_bytes: float) -> None:
    found = parse_format(_formats(**config).parts["attention"])
    assert found.bytes(4 * ELEMENTS) == 4 * matrix_bytes


@pytest.mark.parametrize("method", LEFT_OUT)
def test_modules_that_a_method_names_stay_as_they_were(method: str) -> None:
    config = next(config for config, _ in BYTES if config["quant_method"] == method)
    whole, left = _formats(**config), _formats(**config, **{LEFT_OUT[method]: ATTENTION})
    assert "attention" not in left.parts
    assert left.parts["mlp"] == whole.parts["mlp"]
    half = parse_format(_formats(**config, **{LEFT_OUT[method]: ATTENTION[:2]}).parts["attention"])
    assert half.bytes(4 * ELEMENTS) == 2 * ELEMENTS * 2 + parse_format(whole.parts["attention"]).bytes(4 * ELEMENTS) / 2


@pytest.mark.parametrize(
    ("config", "activations"),
    [
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "eetq"}, None),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
        ({"quant_method": "fp8", "activation_scheme": "none"}, None),
        (_quark("fp8_e4m3", "per_tensor", inputs="fp8_e4m3"), "fp8"),
        (_quark("int8", "per_tensor", inputs="int8"), "int8"),
        (_quark("fp4", "per_group", 32, inputs="fp4"), "mxfp4"),
        (_quark("fp8_e4m3", "per_tensor"), None),
        ({"quant_method": "bitnet"}, "int8"),
        ({"quant_method": "w4afp8"}, "fp8"),
        ({"quant_method": "w8a8_int8"}, "int8"),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, None),
        ({"quant_method": "torchao", "quant_type": "int8_dynamic_activation_int8_weight"}, "int8"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_NVFP4_FP8"}, "fp8"),
        (_compressed(4, "int", "group", 128, inputs={"num_bits": 8, "type": "float"}), "fp8"),
        (
            _compressed(8, "float", "group", 32, form="mxfp8-quantized", inputs={"num_bits": 8, "type": "float"}),
            "mxfp8",
        ),
    ],
)
def test_activations_run_in_the_format_that_the_config_gives_them(
    config: dict[str, Any], activations: str | None
) -> None:
    assert _formats(**config).activations == activations


@pytest.mark.parametrize(
    ("cache", "kv"),
    [
        ({}, None),
        (
            {
                "*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}},
                "*v_proj": {"output_tensors": {"dtype": "fp8_e4m3"}},
            },
            "fp8",
        ),
    ],
)
def test_quark_may_give_the_cache_a_format(cache: dict[str, Any], kv: str | None) -> None:
    assert _formats(**_quark("fp8_e4m3", "per_tensor", kv_cache_quant_config=cache)).kv == kv


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "aqlm", "nbits_per_codebook": 12}, "nbits_per_codebook"),
        ({"quant_method": "auto-round", "bits": 5}, "data_type"),
        ({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:fp8_static"}, "packing_format"),
        ({"quant_method": "bitnet", "quantization_mode": "later"}, "quantization_mode"),
        ({"quant_method": "hqq", "quant_config": {"self_attn.q_proj": {}}}, "quant_config"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 5}}}, "nbits"),
        ({"quant_method": "torchao", "quant_type": "uintx_weight_only"}, "quant_type"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 128}, "bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "exl2"}, "checkpoint_format"),
        ({"quant_method": "awq", "bits": 4, "version": "exllama"}, "version"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type"),
        (_quark("fp4", "per_group", 16), "global_quant_config"),
        (_quark("int4", "per_group", 128), "global_quant_config"),
        (_quark("fp8_e4m3", "per_tensor", layer_type_quant_config={"a": {}}), "layer_type_quant_config"),
        (
            _quark("fp8_e4m3", "per_tensor", kv_cache_quant_config={"*": {"output_tensors": {"dtype": "int8"}}}),
            "kv_cache_quant_config",
        ),
        (_quark("fp8_e4m3", "per_tensor", kv_cache_quant_config={"*": None}), "kv_cache_quant_config"),
    ],
)
def test_what_a_method_does_not_know_is_refused_by_its_key(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        _formats(**config)


def test_the_head_is_quantised_where_the_config_says_so() -> None:
    for flag, there in ((True, True), (False, False)):
        assert ("head" in _formats(quant_method="gptq", bits=4, group_size=128, lm_head=flag).parts) is there


def test_bitsandbytes_that_loads_in_no_format_changes_nothing() -> None:
    assert _formats(quant_method="bitsandbytes", load_in_4bit=False, load_in_8bit=False).parts == {}


def _group(bits: int, *targets: str) -> dict[str, Any]:
    return {
        "targets": list(targets),
        "weights": {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True},
    }


def test_groups_that_name_modules_come_before_those_that_name_a_class() -> None:
    named, general = _group(8, "re:.*self_attn.*"), _group(4, "Linear")
    for groups in ({"a": named, "b": general}, {"a": general, "b": named}):
        found = _formats(
            quant_method="compressed-tensors", format="pack-quantized", config_groups=groups, ignore=["lm_head"]
        )
        assert found.parts == {"attention": "int8-g128", "mlp": "int4-g128"}
    alone = _formats(
        quant_method="compressed-tensors", format="pack-quantized", config_groups={"a": named}, ignore=["lm_head"]
    )
    assert alone.parts == {"attention": "int8-g128"}
    both = _formats(quant_method="compressed-tensors", format="pack-quantized", ignore=["re:.*self_attn.*", "lm_head"],
                    config_groups={"a": named, "b": general})  # fmt: skip
    assert both.parts == {"mlp": "int4-g128"}


@pytest.mark.parametrize(
    ("keys", "method"),
    [
        ({"bits": 4, "group_size": 64, "zero_point": True}, "awq"),
        ({"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}, "awq"),
        ({"bits": 4, "group_size": 64, "desc_act": False}, "gptq"),
    ],
)
def test_a_method_that_only_its_keys_show_is_read_so_and_noted(keys: dict[str, Any], method: str) -> None:
    formats = _formats(**keys)
    assert formats.parts == _formats(quant_method=method, **keys).parts
    assert formats.notes == (f"quantization_config names no quant_method; its keys are those of {method}",)


def test_keys_that_are_not_known_are_named() -> None:
    awq = {"quant_method": "awq", "bits": 4, "group_size": 64}
    assert _formats(**awq, version="gemm", zero_point=True, do_fuse=False, backend=None).notes == ()
    (note,) = _formats(**awq, kv_scheme={"num_bits": 8}, other=1).notes
    assert note == "keys of quantization_config that are not known, and change nothing here: kv_scheme, other"
    (note,) = _formats(**awq, **{f"key{place}": 1 for place in range(9)}).notes
    assert note.endswith("key0, key1, key2, key3, key4 and 4 more")


_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "symmetric": True}}


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({"bits": 4, "group_size": 64, "zero_point": True, "desc_act": False}, "GPTQ and of AWQ"),
        ({"quant_method": "compressed-tensors"}, "config_groups is None"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups is {}"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": _GROUP}}, "group_size is None"),
        ({"quant_method": "mxfp4"}, "none of the experts"),
        ({"quant_method": "fp8", "activation_scheme": "8"}, "activation_scheme '8'"),
    ],
)
def test_a_quantisation_that_contradicts_itself_or_the_model_is_refused(
    quantization: dict[str, Any], named: str
) -> None:
    with pytest.raises(KvcalcError, match=named):
        _formats(**quantization)


def test_autoround_may_name_modules_with_bits_of_their_own() -> None:
    own = {ATTENTION[0]: {"bits": 16}, ATTENTION[1]: {"bits": 8, "group_size": 128}}
    found = parse_format(
        _formats(quant_method="auto-round", bits=4, group_size=128, extra_config=own).parts["attention"]
    )
    narrow, wide = ELEMENTS // 2 + ELEMENTS // 128 * 2.5, ELEMENTS + ELEMENTS // 128 * 3
    assert found.bytes(4 * ELEMENTS) == 2 * ELEMENTS + wide + 2 * narrow


def test_exllama_quantises_the_head_with_bits_of_its_own() -> None:
    found = parse_format(_formats(quant_method="exl3", bits=4.0, head_bits=6).parts["head"])
    assert found.bytes(8 * COLUMNS) == 8 * COLUMNS * 6 // 8 + 2 * (8 + COLUMNS)
    assert is_exllama(found)
