"""Files that are written whole or not at all: every writer of kvcalc goes through `whole_file`."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["check_writable", "sync_folder", "whole_file", "write_whole"]

# Characters of a file's name that stand in the name of its temporary file, which must not get too long.
_NAME_CHARACTERS = 40
# Where files stand that the program has open already.
_OPEN_FILES = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


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
    part = target.with_name(f".{target.name[:_NAME_CHARACTERS]}.{secrets.token_hex(8)}.part")
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
