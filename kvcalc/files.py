"""Files: those that anybody may have written are read within bounds, and every one is written whole or not at all.

No more is read of a file than its kind can have, and never an endless one. Every writer of kvcalc goes through
`whole_file`.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from math import isfinite
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, TextIO

from kvcalc.core.errors import InputError, ProfileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "BoundedLines",
    "check_writable",
    "open_regular",
    "open_text",
    "read_bytes",
    "read_json",
    "read_stream",
    "read_text",
    "sync_folder",
    "unique_keys",
    "whole_file",
    "write_whole",
]

# Names under which a shell hands over a pipe: standard input, and what ``<(command)`` stands for.
_HANDED_OVER = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
# Characters of a file's name that stand in the name of its temporary file, which must not get too long.
_NAME_CHARACTERS = 40
# Where files stand that the program has open already.
_OPEN_FILES = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


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
    """Read a file's bytes.

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
    """Read the rest of an open file; arguments and errors as `read_bytes`."""
    content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ProfileError(f"the file has more than {max_bytes:,} bytes: not {what}", where=where, hint=hint)
    return content


def read_text(path: Path, *, max_bytes: int, what: str) -> str:
    """Return the UTF-8 text of a file, without its byte order mark; arguments and errors as `read_bytes`."""
    with open_regular(path) as file:
        return read_stream(file, max_bytes=max_bytes, what=what, where=str(path)).decode("utf-8-sig")


def read_json(path: Path, *, max_bytes: int, what: str) -> Any:
    """Read a JSON file; arguments as `read_bytes`.

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


def check_writable(paths: Iterable[str | Path | None]) -> None:
    """Refuse a file that cannot be written before time is spent on what it would hold.

    Args:
        paths: files; those that are none are passed over.

    Raises:
        InputError: the first such file.
    """
    for name in paths:
        if name is None:
            continue
        if not str(name):
            raise InputError("a file to be written has no name", hint="name a file in a folder that can be written to")
        path = Path(name)
        target = Path(os.path.realpath(path))
        why = ""
        if path.is_dir():
            why = "it is a folder"
        elif _is_replaced(path) and not target.parent.is_dir():
            why = "there is no such folder"
        elif not _may_write(path if not _is_replaced(path) else target):
            why = "it cannot be written to"
        if why:
            raise InputError(f"{path}: {why}", hint="name a file in a folder that can be written to")


@contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Give a binary file that stands in its place once the block has ended without an error.

    It is written beside its place under a name of its own, brought to the disk and moved: whoever reads the place finds
    the old file or the new one, whole. Of two that write one file at once, the last to end wins. Whatever ends the
    block early removes what was written. A pipe or a device is written to as it is.

    Raises:
        OSError: a folder that does not exist or cannot be written to, a full disk; it names the file.
    """
    if not _is_replaced(Path(path)):
        with Path(path).open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name[:_NAME_CHARACTERS]}.{os.urandom(8).hex()}.part")
    try:
        with _created(part) as file:
            yield file
            file.flush()
            if target.exists():
                part.chmod(stat.S_IMODE(target.stat().st_mode))
            os.fsync(file.fileno())
        part.replace(target)
        sync_folder(target.parent)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and (error.filename == str(part) or _is_of_disk(error)):
            error.filename, error.filename2 = str(path), None
        raise


def write_whole(path: str | Path, content: bytes) -> None:
    """Write a file as `whole_file` does.

    Raises:
        OSError: as there.
    """
    with whole_file(path) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Bring the names of a folder to the disk, where its file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _is_replaced(path: Path) -> bool:
    """Return whether a file is put in the place of another: what is no plain file, or an open one, is written into."""
    return path.parent not in _OPEN_FILES and (path.is_file() or not path.exists())


def _may_write(target: Path) -> bool:
    """Return whether a file may be made or replaced: one that is there must itself be free to be written."""
    replaced = _is_replaced(target)
    return (not replaced or os.access(target.parent, os.W_OK)) and (not target.exists() or os.access(target, os.W_OK))


def _created(part: Path) -> IO[bytes]:
    """Return a new file; that the name is new is the file system's word."""
    return os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb")


def _is_of_disk(error: OSError) -> bool:
    """Return whether an error is one of writing, which names no file by itself."""
    return error.filename is None and error.errno in _OF_DISK
