"""Sums and products as text that can be evaluated, and the source of a size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.provenance import source_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile

__all__ = ["ASKED", "factor", "profile_source", "total"]

# The source of a batch, a context or a format.
ASKED = "asked for"


def factor(text: str) -> str:
    """Return text that can stand in a product: a sum gets brackets.

    >>> factor("2 * (3 + 4)"), factor("3 + 4")
    ('2 * (3 + 4)', '(3 + 4)')
    """
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth and text[index : index + 3] in (" + ", " - "):
            return f"({text})"
    return text


def total(terms: Iterable[str]) -> str:
    """Return a sum; zero where there is nothing to add."""
    return " + ".join(terms) or "0"


def profile_source(profile: ModelProfile | HardwareProfile, path: str) -> tuple[str, ...]:
    """Return the source of a profile's field, where it names one."""
    source = source_of(path, profile.sources, profile.provenance)
    return (str(source),) if source else ()
