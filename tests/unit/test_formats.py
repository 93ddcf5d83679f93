"""Number formats: bytes of a block by the standard that defines it, and the unit that multiplies it."""

from __future__ import annotations

import pytest

import kvcalc
from kvcalc.core.formats import FORMATS, GGML_TYPES, cache_formats, parse_format

# format: elements and bytes of a block, arithmetic unit
PLAIN = {
    "fp64": (1, 8, "fp64"), "int64": (1, 8, "fp64"), "fp32": (1, 4, "fp32"), "tf32": (1, 4, "tf32"), "bf16": (1, 2, "bf16"),
    "fp16": (1, 2, "fp16"), "fp8": (1, 1, "fp8"), "fp8_e4m3": (1, 1, "fp8"), "fp8_e5m2": (1, 1, "fp8"), "int8": (1, 1, "int8"),
    "int4": (2, 1, "int4"), "fp4": (2, 1, "fp4"),
    # OCP microscaling: an 8-bit exponent for 32 elements; NVIDIA: an 8-bit scale for 16
    "mxfp8": (32, 32 + 1, "fp8"), "mxfp6": (32, 24 + 1, "fp6"), "mxfp4": (32, 16 + 1, "fp4"), "nvfp4": (16, 8 + 1, "fp4"),
    # DeepSeek-V3: a 32-bit scale for a tile of 128 x 128
    "fp8_block128": (16_384, 16_384 + 4, "fp8"),
    # bitsandbytes: a 32-bit scale for 64; double: an 8-bit one, and 32 bits for 256 of those
    "nf4": (64, 32 + 4, "fp4"), "nf4_double": (16_384, 8192 + 256 + 4, "fp4"),
    # a 32-bit scale for each token and head
    "int8_per_token_head": (1, 1, "int8"), "fp8_per_token_head": (1, 1, "fp8"), "int4_per_token_head": (2, 1, "int4"),
    # groups: a 16-bit scale, and a zero point of 16 bits or packed
    "int4-g128": (128, 64 + 2, "int4"), "int4-g32": (32, 16 + 2, "int4"), "int8-g128": (128, 128 + 2, "int8"),
    "int4-g128-zp": (128, 64 + 2 + 2, "int4"), "int4-g128-zp4": (256, 2 * (64 + 2) + 1, "int4"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_a_block_has_the_bytes_of_its_standard(name: str) -> None:
    elements, size, unit = PLAIN[name]
    found = parse_format(name)
    assert found.bytes(7 * elements) == 7 * size
    assert found.unit == unit


@pytest.mark.parametrize(
    ("alias", "name"),
    [("bfloat16", "bf16"), ("half", "fp16"), ("float16", "fp16"), ("float", "fp32"), ("double", "fp64"), ("e4m3", "fp8_e4m3"),
     ("float8_e5m2", "fp8_e5m2"), ("i8", "int8"), ("i4", "int4")],
)  # fmt: skip
def test_other_names_mean_the_same(alias: str, name: str) -> None:
    assert parse_format(alias) == parse_format(name)


def test_scales_of_a_head_stand_beside_its_elements() -> None:
    assert parse_format("int8_per_token_head").per_head == 4
    assert parse_format("int8").per_head == 0


@pytest.mark.parametrize(
    ("name", "widths"),
    # bytes of a token and KV head, keys and values together, at head widths of 64, 128 and 256, as vLLM 0.33's backends
    # state them; octave's slots are rounded up to multiples of 8 there
    [
        ("bf16", (256, 512, 1024)),
        ("fp8", (128, 256, 512)),
        ("int8_per_token_head", (136, 264, 520)),
        ("fp8_per_token_head", (136, 264, 520)),
        ("int4_per_token_head", (72, 136, 264)),
        ("nvfp4", (72, 144, 288)),
        ("nvfp4_4over6", (72, 144, 288)),
        ("turboquant_k8v4", (100, 196, 388)),
        ("turboquant_4bit_nc", (70, 134, 262)),
        ("turboquant_k3v4_nc", (62, 118, 230)),
        ("turboquant_3bit_nc", (54, 102, 198)),
        ("ultraquant_4bit", (68, 136, 272)),
        ("octave_k3v4", (72 - 4, 136 - 2, 272 - 6)),
        ("octave_k3v3", (64 - 4, 120 - 2, 240 - 6)),
        ("octave_k3v3_compact", (52, 100, 196)),
    ],
)
def test_a_cache_stores_what_the_engine_says_for_a_token_and_head(name: str, widths: tuple[int, ...]) -> None:
    key, value = cache_formats(name)
    assert tuple(key.bytes(d, head_dim=d) + value.bytes(d, head_dim=d) for d in (64, 128, 256)) == widths


def test_latent_vectors_with_a_wide_rotary_part_have_the_bytes_of_their_kernel() -> None:
    # 512 elements in fp8 with an fp32 scale for 128, and 64 rotary elements in bf16
    assert parse_format("fp8_ds_mla").bytes(512 + 64, head_dim=576) == 656
    assert parse_format("nvfp4_ds_mla").bytes(512 + 64, head_dim=576) == 352


def test_keys_and_values_may_be_named_apart() -> None:
    assert [form.name for form in cache_formats("q8_0/q4_0")] == ["q8_0", "q4_0"]
    deployment = kvcalc.deployment("llama3.1-8b", kv_dtype="q8_0/q4_0")
    apart = kvcalc.deployment("llama3.1-8b", key_dtype="q8_0", value_dtype="q4_0")
    assert kvcalc.size(deployment).kv == kvcalc.size(apart).kv
    with pytest.raises(kvcalc.UnknownNameError):
        cache_formats("q8_0/")


def test_two_bits_of_kivi_have_a_scale_and_a_zero_for_32() -> None:
    # KIVI, arXiv 2402.02750, section 4: groups of 32, a 16-bit scale and zero point
    assert parse_format("kivi2").bytes(32) == 32 * 2 // 8 + 2 + 2


@pytest.mark.parametrize(
    ("name", "elements", "size"),
    [
        # GPTQ of 3 bits: 32 elements in three words of 32 bits, a 16-bit scale and a packed zero point for 128
        ("int3-g128-zp3", 1024, 1024 * 3 // 8 + 8 * 2 + 8 * 3 // 8),
        ("int2-g64-zp2", 256, 256 // 4 + 4 * 2 + 1),
        ("int8-g128-zp8", 128, 128 + 2 + 1),
        # MLX, affine: a 16-bit scale and bias for 64
        ("int3-g64-zp", 64, 24 + 4),
        ("int5-g64-zp", 64, 40 + 4),
        ("int6-g64-zp", 64, 48 + 4),
        ("exl3-4bpw", 256, 128),
        ("exl3-3.5bpw", 256, 112),
        ("exl2-4.25bpw", 3200, 1700),
        ("bitnet", 256, 64),
    ],
)
def test_narrow_groups_are_packed_without_gaps(name: str, elements: int, size: int) -> None:
    assert parse_format(name).bytes(elements) == size


@pytest.mark.parametrize(
    "name", ["int4-g0", "int3-g4", "int4-g128-zp7", "exl3-0bpw", "exl3-99bpw", "exl4-4bpw", "exl3-bpw"]
)
def test_what_no_checkpoint_stores_is_refused(name: str) -> None:
    with pytest.raises(kvcalc.KvcalcError):
        parse_format(name)


def test_types_of_a_gguf_file_are_those_of_the_format_table() -> None:
    for name, elements, size in GGML_TYPES.values():
        assert FORMATS[name].bytes(64 * elements) == 64 * size
