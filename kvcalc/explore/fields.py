"""Fields of a page: the command line's options, within a page's bounds, each mistake told with its field."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, KvcalcError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kvcalc.core.readers import Reader

__all__ = ["FieldError", "Values", "of_field", "read_fields"]

_LONGEST = 200


class FieldError(Exception):
    """A mistake of the user and the field that it is in.

    Args:
        error: the mistake.
        field: the option's name without dashes; empty where it is not one option's.
    """

    def __init__(self, error: KvcalcError, field: str) -> None:
        super().__init__(error.message)
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


@dataclass(frozen=True, slots=True)
class Values:
    """Fields of a question: each text as given, and its value.

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


def read_fields(items: Iterable[tuple[str, str]], names: Sequence[str], readers: Mapping[str, Reader]) -> Values:
    """Read the fields of a query.

    Args:
        items: names and texts, as in a URL.
        names: the fields that there are.
        readers: how fields are read whose question does not read them itself.

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
                read[name] = readers.get(name, _stripped)(text, name)
    return Values(tuple(given.items()), read)


def _stripped(given: str, name: str) -> str:
    del name
    return given.strip()
