"""Number formats: bytes of a block by the standard that defines it, and the unit that multiplies it."""

from __future__ import annotations

import pytest

from kvcalc.core.formats import parse_format

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
