"""What a page may ask with: the command line's options, read and bounded as there, each mistake told with its field."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, KvcalcError, did_you_mean
from kvcalc.core.ranges import parse_counts
from kvcalc.core.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ["FEW", "LISTS", "ONE", "ONE_OR_NONE", "FieldError", "Values", "of_field", "read_fields"]

_LONGEST = 200
_MOST_COUNTS = 64
_MOST_ROWS = 64
_MOST_FEW = 8


class FieldError(Exception):
    """A mistake of the user and the field that it is in.

    Args:
        error: the mistake.
        field: the option's name without dashes; empty where it is not one option's.
    """

    def __init__(self, error: KvcalcError, field: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.field = field


@contextmanager
def of_field(name: str) -> Iterator[None]:
    """Say of mistakes inside that they are a field's.

    Raises:
        FieldError: in place of a `KvcalcError`.
    """
    try:
        yield
    except KvcalcError as error:
        raise FieldError(error, name) from error


def _counts(text: str, name: str) -> tuple[int, ...]:
    found = parse_counts(text, what=name)
    if len(found) > _MOST_COUNTS:
        raise InputError(f"{name} takes at most {_MOST_COUNTS} numbers here, not {len(found):,}", hint="widen the step")
    return found


def _few(text: str, name: str) -> tuple[int, ...]:
    found = parse_counts(text, what=name)
    if len(found) > _MOST_FEW:
        raise InputError(f"{name} takes at most {_MOST_FEW} numbers here, not {len(found):,}", hint="widen the step")
    return found


def _count(text: str, name: str) -> int:
    found = parse_counts(text, what=name)
    if len(found) > 1:
        raise InputError(f"{name} takes one number here, not {len(found):,}")
    return found[0]


def _zero_or_more(text: str, name: str) -> int:
    return 0 if text.strip() == "0" else _count(text, name)


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{name} must be a number, not {text[:60]!r}")
    return value


def _flag(text: str, name: str) -> bool:
    if text not in ("true", "false"):
        raise InputError(f"{name} must be true or false, not {text[:60]!r}")
    return text == "true"


def _text(text: str, name: str) -> str:
    del name
    return text.strip()


def _bytes(text: str, name: str) -> int:
    del name
    return parse_bytes(text)


_READERS: dict[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(("gpus", "tensor-parallel", "pipeline-parallel", "expert-parallel", "data-parallel"), _count),
    **dict.fromkeys(("max-model-len", "requests", "users", "block-size", "memory-tokens", "layers", "heads", "kv-heads",
                     "trainings", "free-steps", "horizon", "replicas"), _count),
    **dict.fromkeys(("utilization", "rate", "price", "consistency", "accepted-length", "draft-rate"), _number),
    **dict.fromkeys(("estimate", "explain"), _flag),
    "seed": _zero_or_more,
    "kv-memory": _bytes,
}  # fmt: skip
# How fields are read that some reports take as a list, and others as one number.
LISTS = _counts
FEW = _few
ONE = _count
ONE_OR_NONE = _zero_or_more


# Told where they are looked up; elsewhere messages speak of models and GPUs in general.
_LOOKED_UP = ("model", "gpu", "draft")
_LONG_NUMBER = 3


@dataclass(frozen=True, slots=True)
class Values:
    """What was asked: each field's text as given, and its value.

    Args:
        given: name and text of each field that was not empty, in the order given.
        read: the values.
    """

    given: tuple[tuple[str, str], ...]
    read: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field's value, or the default where it was left out."""
        return self.read.get(name, default)

    def some(self, *names: str) -> dict[str, Any]:
        """Return the values of those fields that were given, named as arguments: ``kv_dtype``."""
        return {name.replace("-", "_"): self.read[name] for name in names if name in self.read}

    def field_of(self, error: KvcalcError) -> str:
        """Return the field that a mistake found later is in, by its words; empty where they don't tell.

        A field is told by its value in quotes, its name, the first word of its name, or a long number: the one that
        comes first.
        """
        words = error.what.lower()
        for name, text in self.given:
            if repr(text).lower() in words:
                return name
        words = words.replace("-", " ")
        names = [name for name, _ in self.given if name not in _LOOKED_UP]
        told: list[dict[str, str]] = [
            {name: name.replace("-", " ") for name in names},
            {name: name.partition("-")[0] for name in names},
            {name: text for name, text in self.given if len(text) >= _LONG_NUMBER},
        ]
        for spoken in told:
            found = {name: re.search(rf"\b{re.escape(said.lower())}\b", words) for name, said in spoken.items()}
            places = {name: match.start() for name, match in found.items() if match}
            if places:
                return min(places, key=places.__getitem__)
        return ""


def read_fields(
    items: Iterable[tuple[str, str]], names: Sequence[str], special: Mapping[str, Callable[[str, str], Any]]
) -> Values:
    """Return what a query asks.

    Args:
        items: names and texts, as in a URL.
        names: the fields that there are.
        special: how fields are read that are not read as elsewhere.

    Raises:
        FieldError: an unknown field, one given twice, or a text that cannot be read.
    """
    given: dict[str, str] = {}
    read: dict[str, Any] = {}
    for name, text in items:
        with of_field(name[:_LONGEST]):
            if name not in names:
                hint = did_you_mean(name[:_LONGEST], names) or f"options: {', '.join(names)}"
                raise InputError(f"unknown option {name[:60]!r}", hint=hint)
            if name in given:
                raise InputError(f"{name} is given twice")
            if len(text) > _LONGEST:
                raise InputError(f"{name} has more than {_LONGEST} characters")
            if not text.isprintable():
                raise InputError(f"{name} holds characters that cannot be printed")
            if text.strip():
                given[name] = text
                read[name] = special.get(name, _READERS.get(name, _text))(text, name)
    lists = {name: len(value) for name, value in read.items() if isinstance(value, tuple)}
    if math.prod(lists.values()) > _MOST_ROWS:
        with of_field(max(lists, key=lists.__getitem__)):
            raise InputError(f"at most {_MOST_ROWS} rows are computed here, not {math.prod(lists.values()):,}")
    return Values(tuple(given.items()), read)
