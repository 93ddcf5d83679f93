"""Number formats: their true bytes per element, scales included, and the arithmetic unit that multiplies them."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnknownNameError, did_you_mean
from kvcalc.core.records import dataclass
from kvcalc.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FORMATS", "GGML_TYPES", "Format", "cache_formats", "exact_format", "is_exllama", "parse_format"]


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


# ggml's types: number in a GGUF file, name, elements and bytes of a block, as ggml-common.h lays them out.
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("fp32", 1, 4), 1: ("fp16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 36), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144), 13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98), 19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110), 22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136),
    24: ("int8", 1, 1), 25: ("int16", 1, 2), 26: ("int32", 1, 4), 27: ("int64", 1, 8), 28: ("fp64", 1, 8),
    29: ("iq1_m", 256, 56), 30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18),
}  # fmt: skip

# Name, elements and bytes of a block, and the unit that multiplies it.
_PLAIN = (
    ("fp64", 1, 8, "fp64"), ("int64", 1, 8, "fp64"), ("fp32", 1, 4, "fp32"), ("tf32", 1, 4, "tf32"),
    ("int32", 1, 4, "fp32"), ("bf16", 1, 2, "bf16"), ("fp16", 1, 2, "fp16"), ("int16", 1, 2, "fp16"),
    ("fp8", 1, 1, "fp8"), ("fp8_e4m3", 1, 1, "fp8"), ("fp8_e5m2", 1, 1, "fp8"), ("fp4", 2, 1, "fp4"),
    ("int8", 1, 1, "int8"), ("int6", 4, 3, "int8"), ("int5", 8, 5, "int8"),
    ("int4", 2, 1, "int4"), ("int3", 8, 3, "int4"), ("int2", 4, 1, "int4"),
    # OCP microscaling (one 8-bit scale for 32 elements) and NVIDIA's nvfp4 (one fp8 scale for 16)
    ("mxfp8", 32, 33, "fp8"), ("mxfp6", 32, 25, "fp6"), ("mxfp4", 32, 17, "fp4"), ("nvfp4", 16, 9, "fp4"),
    ("nvfp4_4over6", 16, 9, "fp4"),
    # one fp32 scale for a tile of 128 x 128 (DeepSeek-V3 checkpoints)
    ("fp8_block128", 128 * 128, 128 * 128 + 4, "fp8"),
    # bitsandbytes: an fp32 scale for 64 elements; double quantisation: an 8-bit one, and an fp32 for 256 of these
    ("nf4", 64, 36, "fp4"), ("nf4_double", 64 * 256, 32 * 256 + 256 + 4, "fp4"),
    # index keys beside packed latent vectors: one fp32 scale for 128 elements
    ("fp8_scaled", 128, 132, "fp8"),
    # latent vectors of 512 elements beside a rotary key of 64 in bf16: fp8 with four fp32 scales, and nvfp4
    ("fp8_ds_mla", 576, 512 + 4 * 4 + 128, "fp8"), ("nvfp4_ds_mla", 576, 352, "fp4"),
)  # fmt: skip

# Caches that store something for each head and token beside the elements: name, elements and bytes of a block, bytes of
# a head, unit. Source: vLLM 0.33, the slots of its backends: a scale in fp32, or TurboQuant's norm of a key and scale
# and zero of a value, in fp16 each.
_BY_HEAD = (
    ("int8_per_token_head", 1, 1, 4, "int8"), ("fp8_per_token_head", 1, 1, 4, "fp8"),
    ("int4_per_token_head", 2, 1, 4, "int4"),
    ("turboquant_k4", 2, 1, 2, "int4"), ("turboquant_k3", 8, 3, 2, "int4"),
    ("turboquant_v4", 2, 1, 4, "int4"), ("turboquant_v3", 8, 3, 4, "int4"),
    # fp16 scales: one for 64 elements of a key, one for a value; compact keys in 3 bits have one too
    ("octave_k4", 64, 34, 0, "int4"), ("octave_k3", 8, 3, 2, "int4"),
    ("octave_v4", 2, 1, 2, "int4"), ("octave_v3", 8, 3, 2, "int4"),
    # an 8-bit scale for 32 elements
    ("ultraquant_4bit", 32, 17, 0, "int4"),
)  # fmt: skip

# Names of caches whose keys and values are stored in two ways. Octave's keys in 4 bits are those of its rotary part,
# here the whole head.
_PAIRS = {
    "turboquant_k8v4": ("fp8", "turboquant_v4"),
    "turboquant_4bit_nc": ("turboquant_k4", "turboquant_v4"),
    "turboquant_k3v4_nc": ("turboquant_k3", "turboquant_v4"),
    "turboquant_3bit_nc": ("turboquant_k3", "turboquant_v3"),
    "octave_k3v4": ("octave_k4", "octave_v4"),
    "octave_k3v3": ("octave_k4", "octave_v3"),
    "octave_k3v3_compact": ("octave_k3", "octave_v3"),
}


def _table() -> dict[str, Format]:
    ggml = {name: Format(name, elements, size, "int8") for name, elements, size in GGML_TYPES.values()}
    table = ggml | {name: Format(name, elements, size, unit) for name, elements, size, unit in _PLAIN}
    return table | {name: Format(name, elements, size, unit, head) for name, elements, size, head, unit in _BY_HEAD}


FORMATS = _table()
_GROUPED = ("int2", "int3", "int4", "int5", "int6", "int8", "fp8", "fp4")
_EXLLAMA = ("exl2", "exl3")
_MAX_DIGITS, _MAX_BITS = 20, 16

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
    "fp8_inc": "fp8_e4m3",
    "bitnet": "int2",
    # an fp16 scale and zero point for 32 elements, of a channel's keys and of a token's values (KIVI, arXiv 2402.02750)
    "kivi2": "int2-g32-zp",
    "kivi-2bit": "int2-g32-zp",
    "kivi4": "int4-g32-zp",
}


def parse_format(text: str) -> Format:
    """Return the format of that name or alias.

    Grouped integers are declared in the name: ``int4-g128`` has one 16-bit scale for 128 elements, ``int4-g128-zp``
    a 16-bit zero point beside it, ``int4-g128-zp4`` a zero point packed in 4 bits. ``exl3-4.25bpw`` has that many bits
    an element. A part whose tensors are stored in several ways has an exact mixture of bytes, elements and arithmetic
    unit: ``mixed-4503599/8000000:int8`` (unit bf16 where it is left out); a part of ExLlama's files is named by its
    method: ``exl3-4104/8192:int4``.

    Raises:
        UnknownNameError: no such format.

    >>> parse_format("bfloat16").name, parse_format("int4-g128").bytes(256), parse_format("int3-g64-zp").bytes(64)
    ('bf16', 132, 28)
    >>> parse_format("int4-g128-zp4").bytes(256), parse_format("mixed-9/16:int8").bytes(320)
    (133, 180)
    >>> parse_format("exl3-4.25bpw").bytes(3200)
    1700
    """
    key = text.strip().lower()
    key = _ALIASES.get(key, key)
    if key in FORMATS:
        return FORMATS[key]
    named = _mixed(key) or _grouped(key) or _bits_per_weight(key)
    if named is not None:
        return named
    hint = did_you_mean(key, FORMATS) or "for example bf16, fp8, int8, int4-g128, q8_0, q4_0, mxfp4 or nvfp4"
    raise UnknownNameError(f"unknown number format {text!r}", hint=hint)


def cache_formats(text: str) -> tuple[Format, Format]:
    """Return the formats of cached keys and values: one name for both, ``K/V``, or a name that means a pair.

    Raises:
        UnknownNameError: no such format.

    >>> [form.name for form in cache_formats("q8_0/q4_0")], [form.name for form in cache_formats("fp8")]
    (['q8_0', 'q4_0'], ['fp8', 'fp8'])
    >>> sum(form.bytes(128, head_dim=128) for form in cache_formats("turboquant_4bit_nc"))
    134
    """
    key, slash, value = text.partition("/")
    pair = _PAIRS.get(text.strip().lower())
    if pair is not None:
        return FORMATS[pair[0]], FORMATS[pair[1]]
    stored = parse_format(key)
    return stored, parse_format(value) if slash else stored


def exact_format(size: int, elements: int, *, names: Sequence[str], unit: str) -> str:
    """Return the format of a part from its bytes: the first of ``names`` that gives exactly these, else the mixture.

    >>> exact_format(64, 32, names=("bf16",), unit="bf16"), exact_format(52, 64, names=("q8_0", "q4_0"), unit="int8")
    ('bf16', 'mixed-52/64:int8')
    """
    exact_name = next((name for name in names if parse_format(name).bytes(elements) == size), None)
    return exact_name or f"mixed-{size}/{elements}:{unit}"


def is_exllama(form: Format) -> bool:
    """Whether a format is one of ExLlama's, which no other engine runs."""
    return form.name.partition("-")[0] in _EXLLAMA


def _grouped(key: str) -> Format | None:
    """Return the format of a name such as ``int4-g128-zp``."""
    base, _, group = key.partition("-g")
    size, _, zero_point = group.partition("-")
    zero_bits = _zero_bits(zero_point)
    if base not in _GROUPED or not _whole(size) or zero_bits is None:
        return None
    elements = int(size)
    bits = elements * FORMATS[base].block_bytes * 8 // FORMATS[base].block_elements
    if elements <= 0 or bits % 8:
        raise InputError(f"the group size of {key!r} is not usable", hint="for example int4-g128")
    bits += 16 + zero_bits
    groups = 8 // gcd(bits, 8)
    return Format(key, elements * groups, bits * groups // 8, FORMATS[base].unit)


def _zero_bits(text: str) -> int | None:
    """Return the bits of a zero point: none, 16, or as many as stand behind ``zp``; none where the text is no such."""
    if text in ("", "zp"):
        return 16 if text else 0
    bits = text.removeprefix("zp")
    return int(bits) if bits != text and bits in ("2", "3", "4", "5", "6", "8") else None


def _bits_per_weight(key: str) -> Format | None:
    """Return the format of a name such as ``exl3-4.25bpw``, in which weights take so many bits in the mean.

    Source: turboderp-org/exllamav3: EXL3 stores whole or half bits in tiles of 16 x 16, EXL2 mixes widths to a mean.
    """
    method, _, bits = key.partition("-")
    whole, _, parts = bits.removesuffix("bpw").partition(".")
    if method not in _EXLLAMA or not bits.endswith("bpw") or not _whole(whole) or not _whole(parts or "0"):
        return None
    hundredths = round(float(f"{whole}.{parts or 0}") * 100)
    if not 0 < hundredths <= _MAX_BITS * 100:
        raise InputError(f"{key!r} has no usable number of bits", hint="for example exl3-4.0bpw")
    same = gcd(hundredths, 800)
    return Format(key, 800 // same, hundredths // same, "int4" if hundredths <= 4 * 100 else "int8")


def _mixed(key: str) -> Format | None:
    """Return the format of an exact mixture such as ``mixed-9/16:int8``."""
    method, _, rest = key.partition("-")
    if method != "mixed" and (method not in _EXLLAMA or "/" not in rest):
        return None
    ratio, _, unit = rest.partition(":")
    size, _, elements = ratio.partition("/")
    units = sorted({entry.unit for entry in FORMATS.values()})
    if not (_whole(size) and _whole(elements) and int(elements)) or (unit or "bf16") not in units:
        raise InputError(
            f"{key!r} is not a mixture of formats",
            hint=f"mixed-BYTES/ELEMENTS:UNIT, the unit one of {', '.join(units)}",
        )
    return Format(key, int(elements), int(size), unit or "bf16")


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
