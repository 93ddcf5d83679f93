"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

__all__ = ["beside", "write_whole"]


def beside(path: Path) -> Path:
    """Return where a file is written before it stands in its place.

    Raises:
        OSError: the folder does not exist.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return path.with_name(f".{path.name}.part")


def write_whole(path: str | Path, content: bytes) -> None:
    """Write a file beside its place and move it there, so that an interruption leaves the old one or none.

    Raises:
        OSError: a folder that does not exist or cannot be written to.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        path.write_bytes(content)  # a pipe or a device is written to as it is
        return
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
