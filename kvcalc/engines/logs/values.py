"""Numbers and options as logs spell them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcalc.core.units import GIB, MIB
from kvcalc.engines.logs.records import Printed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.engines.logs.records import Option

__all__ = ["NUMBER", "SIZE", "WHOLE", "assigned", "keyed", "option", "pairs", "printed", "size_gib", "whole"]

NUMBER = r"-?\d{1,12}(?:\.\d{1,12})?"
WHOLE = r"\d[\d,]{0,18}"
# A number and its unit, as PyTorch prints sizes.
SIZE = rf"({NUMBER}) (GiB|MiB|KiB|bytes)"
_PER_GIB = {"GiB": 1, "MiB": GIB // MIB, "KiB": MIB, "bytes": GIB}
_WORDS: dict[str, bool] = {"true": True, "false": False}
_LONGEST_OPTION = 500


def printed(text: str, line: int, *, decimals: int = 0) -> Printed:
    """Return a number with half of its last digit.

    Args:
        text: the number.
        line: its line.
        decimals: digits the engine rounds to, if trailing zeros are not printed.

    >>> printed("22.5", 1, decimals=2).half_step
    0.005
    """
    digits = max(decimals, len(text.partition(".")[2]))
    return Printed(value=float(text), half_step=0.5 * 10.0**-digits, line=line)


def size_gib(number: str, unit: str, line: int) -> Printed:
    """Return a size in GiB with half of its last digit.

    >>> size_gib("512.00", "MiB", 1).value
    0.5
    """
    size, scale = printed(number, line), _PER_GIB[unit]
    return Printed(value=size.value / scale, half_step=size.half_step / scale, line=line)


def whole(text: str, line: int) -> Printed:
    """Return a count, with or without thousands separators.

    >>> whole("1,096,000", 3).value
    1096000.0
    """
    return Printed(value=float(text.replace(",", "")), half_step=0.0, line=line)


def option(text: str) -> Option | None:
    """Return an option's value: a number, on or off, or a word; none for ``None`` and nothing.

    >>> option("'auto'"), option("8192"), option("True"), option("None")
    ('auto', 8192, True, None)
    """
    text = text.strip().strip("'\"")[:_LONGEST_OPTION]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text in ("", "None", "null"):
        return None
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", text) else text


def assigned(names: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of ``name=value`` for some names."""
    return re.compile(rf"\b({'|'.join(names)})=('[^']*'|\"[^\"]*\"|[^,\s)]+)")


def keyed(names: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of ``'name': value`` for some names."""
    return re.compile(rf"'({'|'.join(names)})': ('[^']*'|\"[^\"]*\"|[^,}}]+)")


def pairs(pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, Option]]:
    """Yield names and values that a pattern of `assigned` or `keyed` finds."""
    for match in pattern.finditer(text):
        value = option(match[2])
        if value is not None:
            yield match[1], value
