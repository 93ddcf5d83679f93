"""Typed names of models that the catalogue lacks and whose kind of config is known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnknownNameError
from kvcalc.importers.families import known_types
from kvcalc.importers.families.refused import REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["type_of_name", "unlisted"]

_WORD = re.compile(r"[a-z]+|\d+")
# What a model_type adds to the name of its family.
_ADDED = re.compile(r"(?:_(?:text|model|moe|vl|ref))+$")
_SHORTEST_STEM, _SHORTEST_PART = 4, 5


def unlisted(name: str, unknown: UnknownNameError, listed: Iterable[str]) -> UnknownNameError:
    """Return the error for a name that is not in the catalogue.

    Args:
        name: the name.
        unknown: the error of the catalogue, with the names that are spelled alike.
        listed: the names of the catalogue.

    Returns:
        Where the name is of a model_type that no name of the catalogue begins with, an error that says so: what is
        spelled alike would be another model. Else the catalogue's own.
    """
    model_type = type_of_name(name, listed)
    if not model_type:
        return unknown
    reason, shown = REFUSED.get(model_type), model_type.removesuffix("_text")
    hint = (
        f"its model_type {shown!r} is refused: it {reason}"
        if reason
        else f"no profile of it is shipped; its config.json is read as model_type {shown!r}: give that file"
    )
    return UnknownNameError(unknown.what, hint=hint)


def type_of_name(name: str, listed: Iterable[str]) -> str:
    """Return the model_type that a name begins with, where none of the listed names does; else an empty text.

    >>> type_of_name("inclusionAI/LLaDA2.0-mini", ["llama2-7b"]), type_of_name("Qwen3-8C", ["qwen3-8b"])
    ('llada2_moe', '')
    """
    typed = _WORD.findall(name.rpartition("/")[2].lower())
    beginnings = {"".join(typed[:count]) for count in range(1, len(typed) + 1)}
    whole = "".join(typed)
    known = ["".join(_WORD.findall(each.rpartition("/")[2].lower())) for each in listed]
    stems = {each: _stem(each) for each in sorted({*known_types(), *REFUSED}, key=lambda each: (len(each), each))}
    others = {
        each: stem
        for each, stem in stems.items()
        if len(stem) >= _SHORTEST_STEM and not any(own.startswith(stem) for own in known)
    }
    begun = [each for each, stem in others.items() if stem in beginnings]
    if begun:
        return max(begun, key=lambda each: len(others[each]))
    is_part = len(whole) >= _SHORTEST_PART and not any(own.startswith(whole) for own in known)
    return next((each for each, stem in others.items() if is_part and stem.startswith(whole)), "")


def _stem(model_type: str) -> str:
    """Return the letters and numbers of a model_type without what it adds to its family's name."""
    return "".join(_WORD.findall(_ADDED.sub("", model_type.lower())))
