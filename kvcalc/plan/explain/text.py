"""Spelling arithmetic: numbers, shares of a rank and bytes of a format, as text that can be evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.provenance import source_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.core.formats import Format
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile

__all__ = ["ASKED", "factor", "number", "per_element", "profile_source", "share", "stored", "total"]

# The source of a batch, a context or a format.
ASKED = "asked for"

_MOST_EXACT = 2**53


def number(value: float) -> str:
    """Return a number as it can be read back, without a fraction where it is whole.

    >>> number(3.0), number(0.5)
    ('3', '0.5')
    """
    return str(int(value)) if value == int(value) and abs(value) < _MOST_EXACT else repr(value)


def factor(text: str) -> str:
    """Return text that can stand in a product: a sum gets brackets.

    >>> factor("2 * (3 + 4)"), factor("3 + 4")
    ('2 * (3 + 4)', '(3 + 4)')
    """
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth and text[place : place + 3] in (" + ", " - "):
            return f"({text})"
    return text


def total(terms: Iterable[str]) -> str:
    """Return a sum; zero where there is nothing to add."""
    return " + ".join(terms) or "0"


def share(whole: int, ranks: int) -> str:
    """Return the part of the fullest of several ranks.

    >>> share(8, 1), share(8, 4), share(9, 4)
    ('8', '(8 / 4)', '(-(-9 // 4))')
    """
    if ranks == 1:
        return str(whole)
    return f"(-(-{whole} // {ranks}))" if whole % ranks else f"({whole} / {ranks})"


def per_element(fmt: Format) -> str:
    """Return the bytes of one element."""
    return str(fmt.block_bytes) if fmt.block_elements == 1 else f"{fmt.block_bytes} / {fmt.block_elements}"


def stored(text: str, elements: int, fmt: Format, *, heads: str = "") -> str:
    """Return the bytes of elements in a format, as a factor; a byte begun is a byte.

    Args:
        text: the elements, spelled out.
        elements: how many these are.
        fmt: their format.
        heads: heads, for the formats with a scale for each head and token; none where there are no such scales.

    >>> from kvcalc.core.formats import FORMATS
    >>> stored("8 * 4", 32, FORMATS["q8_0"]), stored("1 + 2", 3, FORMATS["int4"])
    ('8 * 4 * 34 / 32', '(-(-(1 + 2) * 1 // 2))')
    """
    if elements * fmt.block_bytes % fmt.block_elements:
        found = f"(-(-{factor(text)} * {fmt.block_bytes} // {fmt.block_elements}))"
    else:
        found = f"{factor(text)} * {per_element(fmt)}"
    return f"({found} + {heads} * {fmt.per_head})" if fmt.per_head and heads else found


def profile_source(profile: ModelProfile | HardwareProfile, path: str) -> tuple[str, ...]:
    """Return the source of a profile's field, where it names one."""
    source = source_of(path, profile.sources, profile.provenance)
    return (str(source),) if source else ()
