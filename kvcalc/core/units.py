"""Unit prefixes, and the only place where they stand: reading and printing quantities.

SI prefixes (1000) for rates and FLOP, IEC prefixes (1024) for memory. A quantity in the code is always in its base
unit (bytes, seconds, FLOP, tokens), with the unit in its name.
"""

from __future__ import annotations

import math
import re
from contextvars import ContextVar

from kvcalc.core.errors import InputError

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "MICROSECOND",
    "MILLISECOND",
    "SECONDS_PER_DAY",
    "SECONDS_PER_HOUR",
    "TOKENS_PER_MILLION",
    "TRANSFERS_PER_MT",
    "bytes_text",
    "ceil_div",
    "count_text",
    "counted",
    "flop_rate_text",
    "flop_text",
    "label_bytes",
    "label_of_bytes",
    "microseconds",
    "number_text",
    "parse_bytes",
    "parse_count",
    "parse_rate",
    "parse_seconds",
    "parse_speed",
    "print_bytes_as",
    "rate_text",
    "request_rate",
    "seconds_of",
    "seconds_text",
    "usd_text",
]

GIB = 2**30
MIB = 2**20
KIB = 2**10
SECONDS_PER_HOUR = 3600
SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR
TOKENS_PER_MILLION = 10**6
TRANSFERS_PER_MT = 10**6
MILLISECOND = 1e-3
MICROSECOND = 1e-6

# What a reader wants to see; the numbers of reports are in base units whatever it is.
_SI_BYTES: ContextVar[bool] = ContextVar("_SI_BYTES", default=False)
_SI = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_IEC = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_PER = re.compile(r"\s*\bper\b\s*", re.IGNORECASE)
_PREFIX = re.compile(r"^(\s*[\d.]+\s*[kM])\s+(?=t)", re.IGNORECASE)
_QUANTITY = re.compile(r"\s*([+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*")


def _split(text: str, what: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise InputError(f"{text!r} is not a {what}", hint="write a number with an optional unit")
    return float(match[1].replace(",", "").replace("_", "")), match[2]


def _scale(prefix: str) -> int | None:
    if prefix in _IEC:
        return _IEC[prefix]
    folded = (
        prefix if prefix in _SI else {"K": "k", "m": "M", "g": "G", "t": "T", "p": "P", "b": "G", "B": "G"}.get(prefix)
    )
    return None if folded is None else _SI[folded]


def _whole(value: float, text: str, what: str) -> int:
    if not 0 <= value < float("inf"):
        raise InputError(f"{text!r} is not a {what} of zero or more")
    return round(value)


def ceil_div(number: int, divisor: int) -> int:
    """Return a whole number divided and rounded up: groups of ``divisor`` that hold ``number``.

    >>> ceil_div(8, 4), ceil_div(9, 4), ceil_div(0, 4)
    (2, 3, 0)
    """
    return -(-number // divisor)


def parse_bytes(text: str) -> int:
    """Read an amount of memory, whose unit says whether it is SI or IEC; only nothing needs none.

    >>> parse_bytes("80GB"), parse_bytes("23.45GiB"), parse_bytes("1024 B"), parse_bytes("0")
    (80000000000, 25179245773, 1024, 0)
    """
    value, unit = _split(text, "number of bytes")
    if not unit and value:
        digits = text.strip()
        raise InputError(f"{text!r} has no unit: bytes or GiB?", hint=f"write {digits}GiB, {digits}GB or {digits}B")
    if unit and unit[-1] in "bB":
        unit = unit[:-1]
    scale = _IEC.get(unit.capitalize() if unit.endswith("i") else unit) or (
        _scale(unit) if unit not in ("b", "B") else None
    )
    if scale is None:
        raise InputError(
            f"{text!r} has an unknown unit", hint="use B, kB, MB, GB, TB (1000) or KiB, MiB, GiB, TiB (1024)"
        )
    return _whole(value * scale, text, "number of bytes")


def parse_count(text: str) -> int:
    """Read a count of tokens or sequences; ``k`` and ``M`` are 1000s, ``Ki`` and ``Mi`` 1024s.

    >>> parse_count("4096"), parse_count("8k"), parse_count("128Ki"), parse_count("1_000")
    (4096, 8000, 131072, 1000)
    """
    value, unit = _split(text, "count")
    scale = _IEC.get(unit.capitalize() if unit.endswith("i") else unit) or _scale(unit)
    if scale is None:
        raise InputError(f"{text!r} has an unknown unit", hint="counts take k (1000), Ki (1024), M or Mi")
    scaled = value * scale
    if scaled < float("inf") and scaled != int(scaled):
        raise InputError(f"{text!r} is not a whole number")
    return _whole(scaled, text, "count")


def parse_rate(text: str) -> float:
    """Read a rate such as ``3.35TB/s`` or ``989TFLOP/s`` in base units a second.

    >>> parse_rate("3.35TB/s"), parse_rate("989.4 TFLOP/s"), parse_rate("1e12")
    (3350000000000.0, 989400000000000.0, 1000000000000.0)
    """
    value, unit = _split(text, "rate")
    stem = re.sub(r"(?i)(flop/s|flops|b/s|bytes/s|op/s|ops|/s)$", "", unit)
    scale = _scale(stem)
    if scale is None:
        raise InputError(f"{text!r} has an unknown unit", hint="use for example 3.35TB/s or 989TFLOP/s")
    if not 0 < value * scale < float("inf"):
        raise InputError(f"{text!r} is not a positive rate")
    return value * scale


def parse_seconds(text: str) -> float:
    """Read a duration: seconds, or with one of the units ns, us, ms, s, min, h.

    >>> parse_seconds("50ms"), parse_seconds("1s"), parse_seconds("2.5"), parse_seconds("2 min")
    (0.05, 1.0, 2.5, 120.0)
    """
    value, unit = _split(text, "duration")
    if unit not in _SECONDS:
        raise InputError(f"{text!r} has an unknown unit", hint="durations take ms, s, min or h")
    if not 0 <= value < float("inf"):
        raise InputError(f"{text!r} is not a duration of zero or more")
    return value * _SECONDS[unit]


def parse_speed(text: str) -> tuple[float, str]:
    """Read a measured speed: a rate of tokens or a time, in the unit that is returned with it, without its SI prefix.

    >>> parse_speed("3,000 tok/s"), parse_speed("1.5k tok/s/gpu"), parse_speed("12ms"), parse_speed("5 tokens per s")
    ((3000.0, 'tok/s'), (1500.0, 'tok/s/gpu'), (12.0, 'ms'), (5.0, 'tok/s'))
    """
    value, unit = _split(_PREFIX.sub(r"\1", _PER.sub("/", text)), "speed")
    hint = "for example 3000tok/s, 50tok/s/user, 12ms"
    if not 0 < value < float("inf"):
        raise InputError(f"{text!r} is not a positive speed", hint=hint)
    if seconds_of(value, unit) is not None:
        return value, unit
    match = re.fullmatch(r"(?i)([kM]?)(?:(?:tok(?:en)?s?|t)/s(?:ec(?:ond)?)?|tps)((?:/(?:gpu|user|sequence))?)", unit)
    if match is None:
        raise InputError(f"{text!r} is neither a rate of tokens nor a time", hint=hint)
    return value * _SI["k" if match[1] == "K" else match[1].replace("m", "M")], f"tok/s{match[2].lower()}"


def seconds_of(value: float, unit: str) -> float | None:
    """Return a time in seconds, or none where the unit is not one of time.

    >>> seconds_of(12, "ms"), seconds_of(3, "s"), seconds_of(3, "tok/s")
    (0.012, 3.0, None)
    """
    return value * _SECONDS[unit] if unit and unit in _SECONDS else None


def _scaled(value: float, prefixes: dict[str, int], unit: str, digits: int) -> str:
    size = abs(value)
    prefix = ""
    for name, scale in prefixes.items():
        if size >= scale * (1 - 10**-digits / 2):
            prefix = name
    shown = value / prefixes[prefix]
    text = f"{shown:.{digits}f}" if prefix or shown != int(shown) else f"{int(shown)}"
    return f"{text} {prefix}{unit}".rstrip()


def print_bytes_as(units: str) -> None:
    """Choose the units that `bytes_text` prints from now on in this context: ``iec`` (GiB) or ``si`` (GB).

    Raises:
        InputError: neither.
    """
    if units not in ("iec", "si"):
        raise InputError(f"--units {units!r} are no units", hint="iec (GiB, 1024) or si (GB, 1000)")
    _SI_BYTES.set(units == "si")


def bytes_text(value: float, *, si: bool | None = None) -> str:
    """Print bytes with the unit: IEC unless SI is asked for, here or by `print_bytes_as`.

    >>> bytes_text(327680), bytes_text(671088640000, si=True), bytes_text(512)
    ('320.00 KiB', '671.09 GB', '512 B')
    """
    wanted = _SI_BYTES.get() if si is None else si
    return _scaled(value, _SI if wanted else _IEC, "B", 2)


def label_bytes(si_bytes: float) -> int:
    """Return the bytes that a memory's label stands for: chips come in powers of two, so that "80 GB" is 80 GiB.

    >>> label_bytes(80e9) == 80 * GIB
    True
    """
    return round(si_bytes / _SI["G"] * GIB)


def label_of_bytes(memory_bytes: int) -> float:
    """Return the SI bytes that a box says of a memory: the inverse of `label_bytes`.

    >>> label_of_bytes(36 * GIB)
    36000000000.0
    """
    return memory_bytes / GIB * _SI["G"]


def rate_text(value: float) -> str:
    """Print bytes a second with an SI prefix.

    >>> rate_text(3.35e12)
    '3.35 TB/s'
    """
    return _scaled(value, _SI, "B/s", 2)


def flop_text(value: float) -> str:
    """Print a FLOP count with an SI prefix.

    >>> flop_text(1.4e11)
    '140.00 GFLOP'
    """
    return _scaled(value, _SI, "FLOP", 2)


def flop_rate_text(value: float) -> str:
    """Print FLOP a second with an SI prefix.

    >>> flop_rate_text(989.4e12)
    '989.40 TFLOP/s'
    """
    return _scaled(value, _SI, "FLOP/s", 2)


def microseconds(value_s: float) -> float:
    """Return a time in microseconds, as trace files want it.

    >>> microseconds(0.0015)
    1500.0
    """
    return value_s * _SI["M"]


def seconds_text(value: float) -> str:
    """Print a duration in the unit that fits it; a dash where there is none.

    >>> seconds_text(0.0411), seconds_text(75), seconds_text(2.5e-6)
    ('41.10 ms', '75.00 s', '2.50 µs')
    """
    if math.isnan(value):
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= scale:
            return f"{value / scale:.2f} {unit}"
    return f"{value * 1e9:.2f} ns"


def number_text(value: float) -> str:
    """Print a plain number with thousands separators and no more digits than it needs.

    >>> number_text(131072), number_text(24.3261), number_text(0.001234)
    ('131,072', '24.33', '0.00123')
    """
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"


def counted(number: float, noun: str) -> str:
    """Print a count of something, in the plural unless it is one; the noun is given in the singular.

    >>> counted(1, "token"), counted(131072, "token"), counted(0, "query head")
    ('1 token', '131,072 tokens', '0 query heads')
    """
    return f"{number_text(number)} {noun}{'' if number == 1 else 's'}"


def request_rate(per_s: float, spec: str = "") -> str:
    """Print a rate of requests, with a format's digits where one is given.

    >>> request_rate(1), request_rate(2.5), request_rate(0.12345, ".4g")
    ('1 request/s', '2.50 requests/s', '0.1235 requests/s')
    """
    text = format(per_s, spec) if spec else number_text(per_s)
    return f"{text} request{'' if text == '1' else 's'}/s"


def usd_text(value: float) -> str:
    """Print an amount of dollars with cents, or with three digits where it is less than a dollar.

    >>> usd_text(1234.5), usd_text(0.04567)
    ('$1,234.50', '$0.0457')
    """
    return f"${value:,.2f}" if value >= 1 else f"${value:#.3g}"


def count_text(value: float) -> str:
    """Print a large count with an SI prefix.

    >>> count_text(68976648192), count_text(950)
    ('68.98 G', '950')
    """
    return _scaled(value, _SI, "", 2)
