"""Reading files that anybody may have written: no more of them than their kind can have, and never an endless one."""

from __future__ import annotations

import stat
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from math import isfinite
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from kvcalc.core.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "BoundedLines",
    "open_regular",
    "open_text",
    "read_bytes",
    "read_json",
    "read_stream",
    "read_text",
    "unique_keys",
]

# Names under which a shell hands over a pipe: standard input, and what ``<(command)`` stands for.
_HANDED_OVER = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; pipes only where a shell hands them over, no sockets and no devices.

    Raises:
        ProfileError: it is none of these, or cannot be opened or read.
    """
    if "\x00" in str(path):
        raise ProfileError("no file has a name with a zero byte", where=repr(str(path)))
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode) and not str(path).startswith(_HANDED_OVER):
            raise ProfileError("a pipe, a socket or a device, not a file", where=str(path))
        with path.open("rb") as file:
            yield file
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)) from error


@contextmanager
def open_text(path: Path, *, errors: str = "strict") -> Iterator[TextIO]:
    """Open a UTF-8 text file, its line ends as they are, to be read bit by bit; errors of `open_regular`.

    Args:
        path: the file.
        errors: what becomes of bytes that are not UTF-8: ``strict`` refuses them, ``replace`` marks them.
    """
    with open_regular(path) as file:
        yield TextIOWrapper(file, encoding="utf-8-sig", errors=errors, newline="")


def read_bytes(path: Path, *, max_bytes: int, what: str, hint: str = "") -> bytes:
    """Return what a file holds.

    Args:
        path: the file.
        max_bytes: more than any such file has; not one byte more is read, whatever size the file claims to have.
        what: what the file should be, for the message: ``a profile``.
        hint: what to do about a larger one.

    Raises:
        ProfileError: the file cannot be read, or has more bytes.
    """
    with open_regular(path) as file:
        return read_stream(file, max_bytes=max_bytes, what=what, where=str(path), hint=hint)


def read_stream(file: BinaryIO, *, max_bytes: int, what: str, where: str, hint: str = "") -> bytes:
    """Return what is left of an open file; arguments and errors as `read_bytes`."""
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ProfileError(f"the file has more than {max_bytes:,} bytes: not {what}", where=where, hint=hint)
    return content


def read_text(path: Path, *, max_bytes: int, what: str) -> str:
    """Return the UTF-8 text of a file, without its byte order mark; arguments and errors as `read_bytes`."""
    with open_regular(path) as file:
        return read_stream(file, max_bytes=max_bytes, what=what, where=str(path)).decode("utf-8-sig")


def read_json(path: Path, *, max_bytes: int, what: str) -> Any:
    """Return what a JSON file holds; arguments as `read_bytes`.

    Raises:
        ProfileError: as `read_bytes`, and for what is not JSON, a number that is none (NaN, an infinity, ``1e999``), or
            a key that stands twice with different values.
    """
    import json

    text = read_text(path, max_bytes=max_bytes, what=what)
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=unique_keys)
    except ProfileError as error:
        raise ProfileError(error.what, where=str(path)) from None
    except RecursionError:
        raise ProfileError("not usable JSON: nested too deeply", where=str(path)) from None
    except ValueError as error:
        raise ProfileError(f"not JSON: {error}"[:200], where=str(path)) from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object of its keys and values; a key may repeat with the same value only.

    Raises:
        ProfileError: a key with two values; it names no file.
    """
    row = dict(pairs)
    if len(row) != len(pairs):
        for key, value in pairs:
            if row[key] != value:
                raise ProfileError(f"the key {key!r} stands twice, with different values"[:200])
    return row


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


class BoundedLines:
    """The lines of a text of any length, of which no record may be longer than its kind can be.

    A record is the lines between two calls of `next_record`.

    Args:
        text: an open text file.
        max_characters: of one record.
        where: the file, for the message.
    """

    def __init__(self, text: TextIO, *, max_characters: int, where: str) -> None:
        self._text = text
        self._max = max_characters
        self._where = where
        self._characters = 0
        self._lines = 0

    def __iter__(self) -> Iterator[str]:
        for line in iter(partial(self._text.readline, self._max + 1), ""):
            self._lines += 1
            self._characters += len(line)
            if self._characters > self._max:
                where = f"{self._where}:{self._lines}"
                raise ProfileError(f"more than {self._max:,} characters in one row", where=where)
            yield line

    def next_record(self) -> None:
        """Count from here: what follows belongs to another record."""
        self._characters = 0
