"""Number formats: their true bytes per element, scales included, and the arithmetic unit that multiplies them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnknownNameError, did_you_mean
from kvcalc.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FORMATS", "Format", "exact_format", "parse_format"]


@dataclass(frozen=True, slots=True)
class Format:
    """A way to store numbers.

    Args:
        name: canonical name, lower case.
        block_elements: elements that share one scale (1 where there is none).
        block_bytes: bytes of such a block, scales and padding included.
        unit: the arithmetic format the hardware would multiply it in.
        per_head: bytes of a scale for each head and token; ``block_elements`` is then 1 and excludes the scale.
    """

    name: str
    block_elements: int
    block_bytes: int
    unit: str
    per_head: int = 0

    def bytes(self, elements: float, *, head_dim: int = 0) -> float:
        """Return the bytes of that many elements; exact (an int) when the count is.

        Args:
            elements: number of elements.
            head_dim: elements that share a scale, for the formats with one scale a head.

        >>> FORMATS["q8_0"].bytes(1024), FORMATS["bf16"].bytes(3)
        (1088, 6)
        >>> FORMATS["int8_per_token_head"].bytes(256, head_dim=128)
        264
        """
        if isinstance(elements, int):
            stored: float = ceil_div(elements * self.block_bytes, self.block_elements)
        else:
            stored = elements * self.block_bytes / self.block_elements
        if self.per_head:
            stored += self.per_head * (elements // head_dim if head_dim else 0)
        return stored

    @property
    def bytes_per_element(self) -> float:
        """Bytes per element, block scales included (a scale per head is not known here)."""
        return self.block_bytes / self.block_elements


def _table() -> dict[str, Format]:
    plain = [
        ("fp32", 1, 4, "fp32"),
        ("tf32", 1, 4, "tf32"),
        ("bf16", 1, 2, "bf16"),
        ("fp16", 1, 2, "fp16"),
        ("fp8", 1, 1, "fp8"),
        ("fp8_e4m3", 1, 1, "fp8"),
        ("fp8_e5m2", 1, 1, "fp8"),
        ("int8", 1, 1, "int8"),
        ("int4", 2, 1, "int4"),
        ("fp4", 2, 1, "fp4"),
        ("fp64", 1, 8, "fp64"),
        ("int64", 1, 8, "fp64"),
        # OCP microscaling (one 8-bit scale for 32 elements) and NVIDIA's nvfp4 (one fp8 scale for 16)
        ("mxfp8", 32, 33, "fp8"),
        ("mxfp6", 32, 25, "fp6"),
        ("mxfp4", 32, 17, "fp4"),
        ("nvfp4", 16, 9, "fp4"),
        # one fp32 scale for a tile of 128 x 128 (DeepSeek-V3 checkpoints)
        ("fp8_block128", 128 * 128, 128 * 128 + 4, "fp8"),
        # bitsandbytes: an fp32 scale for 64 elements; double quantisation: an 8-bit one, and an fp32 for 256 of these
        ("nf4", 64, 36, "fp4"),
        ("nf4_double", 64 * 256, 32 * 256 + 256 + 4, "fp4"),
    ]
    # ggml's block formats: elements and bytes of a block, as ggml-common.h lays them out
    ggml = {
        "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q8_1": (32, 36),
        "q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210),
        "q8_k": (256, 292), "iq1_s": (256, 50), "iq1_m": (256, 56), "iq2_xxs": (256, 66), "iq2_xs": (256, 74),
        "iq2_s": (256, 82), "iq3_xxs": (256, 98), "iq3_s": (256, 110), "iq4_nl": (32, 18), "iq4_xs": (256, 136),
        "tq1_0": (256, 54), "tq2_0": (256, 66), "q1_0": (128, 18),
    }  # fmt: skip
    table = {name: Format(name, elements, size, unit) for name, elements, size, unit in plain}
    table |= {name: Format(name, elements, size, "int8") for name, (elements, size) in ggml.items()}
    # one fp32 scale for each token and head (vLLM's *_per_token_head caches)
    for name, unit in (("int8_per_token_head", "int8"), ("fp8_per_token_head", "fp8")):
        table[name] = Format(name, 1, 1, unit, per_head=4)
    table["int4_per_token_head"] = Format("int4_per_token_head", 2, 1, "int4", per_head=4)
    return table


FORMATS = _table()
_MOST_DIGITS = 20

_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "e4m3": "fp8_e4m3",
    "e5m2": "fp8_e5m2",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "f8_e4m3": "fp8_e4m3",
    "f8_e5m2": "fp8_e5m2",
    "i8": "int8",
    "i4": "int4",
    "mxfp4_moe": "mxfp4",
}


def parse_format(text: str) -> Format:
    """Return the format of that name or alias.

    Grouped integers are declared in the name: ``int4-g128`` has one 16-bit scale for 128 elements, ``int4-g128-zp``
    a 16-bit zero point beside it, ``int4-g128-zp4`` a zero point packed in 4 bits. A part whose tensors are stored in
    several ways has an exact mixture of bytes, elements and arithmetic unit: ``mixed-4503599/8000000:int8`` (unit bf16
    where it is left out).

    Raises:
        UnknownNameError: no such format.

    >>> parse_format("bfloat16").name, parse_format("int4-g128").bytes(256)
    ('bf16', 132)
    >>> parse_format("int4-g128-zp4").bytes(256), parse_format("mixed-9/16:int8").bytes(320)
    (133, 180)
    """
    key = text.strip().lower()
    key = _ALIASES.get(key, key)
    if key in FORMATS:
        return FORMATS[key]
    found = _mixed(key) or _grouped(key)
    if found is not None:
        return found
    hint = did_you_mean(key, FORMATS) or f"known formats: {', '.join(sorted(FORMATS))}"
    raise UnknownNameError(f"unknown number format {text!r}", hint=hint)


def exact_format(size: int, elements: int, *, names: Sequence[str], unit: str) -> str:
    """Return the format of a part from its bytes: the first of ``names`` that gives exactly these, else the mixture.

    >>> exact_format(64, 32, names=("bf16",), unit="bf16"), exact_format(52, 64, names=("q8_0", "q4_0"), unit="int8")
    ('bf16', 'mixed-52/64:int8')
    """
    found = next((name for name in names if parse_format(name).bytes(elements) == size), None)
    return found or f"mixed-{size}/{elements}:{unit}"


def _grouped(key: str) -> Format | None:
    """Return the format of a name such as ``int4-g128-zp``."""
    base, _, group = key.partition("-g")
    size, _, zero_point = group.partition("-")
    zero_bits = {"": 0, "zp": 16, "zp4": 4}.get(zero_point)
    if base not in ("int4", "int8", "fp8", "fp4") or not _whole(size) or zero_bits is None:
        return None
    elements = int(size)
    bits = elements * FORMATS[base].block_bytes * 8 // FORMATS[base].block_elements
    if elements <= 0 or bits % 8:
        raise InputError(f"the group size of {key!r} is not usable", hint="for example int4-g128")
    bits += 16 + zero_bits
    groups = 1 if bits % 8 == 0 else 2
    return Format(key, elements * groups, bits * groups // 8, FORMATS[base].unit)


def _mixed(key: str) -> Format | None:
    """Return the format of an exact mixture such as ``mixed-9/16:int8``."""
    if not key.startswith("mixed-"):
        return None
    ratio, _, unit = key.removeprefix("mixed-").partition(":")
    size, _, elements = ratio.partition("/")
    units = sorted({entry.unit for entry in FORMATS.values()})
    if not (_whole(size) and _whole(elements) and int(elements)) or (unit or "bf16") not in units:
        raise InputError(
            f"{key!r} is not a mixture of formats",
            hint=f"mixed-BYTES/ELEMENTS:UNIT, the unit one of {', '.join(units)}",
        )
    return Format(key, int(elements), int(size), unit or "bf16")


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
