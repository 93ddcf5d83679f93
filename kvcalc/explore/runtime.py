"""The Python that runs in a browser: Pyodide's files, from a folder or as npm has them, known by their digest."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from base64 import b64encode
from hashlib import sha512
from io import BytesIO
from pathlib import Path

from kvcalc.core.errors import InputError

__all__ = ["PYODIDE", "RUNTIME_FILES", "runtime_files"]

PYODIDE = "pyodide@314.0.7"
_DIGEST = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
RUNTIME_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
_WAIT_S = 120
_MAX_BYTES = 64 * 2**20
_HINT = f"npm pack {PYODIDE}, tar xf pyodide-*.tgz, then --runtime package"


def runtime_files(folder: Path | None = None) -> dict[str, bytes]:
    """Return the files of Pyodide that a page loads, by their names.

    Args:
        folder: an unpacked ``pyodide`` package, or Pyodide's whole distribution, whose NumPy is taken too; left out,
            npm is asked for the version that kvcalc is tested with.

    Raises:
        InputError: the folder lacks a file, or npm is missing, fails, or gives something else.
    """
    if folder is None:
        return _unpacked(_packed())
    missing = [name for name in RUNTIME_FILES if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder} has no {missing[0]}", hint=_HINT, parameter="runtime")
    numpy = [path.name for path in folder.glob("numpy-*wasm32.whl")]
    return {name: (folder / name).read_bytes() for name in [*RUNTIME_FILES, *numpy]}


def _packed() -> bytes:
    """Return npm's archive of the package."""
    npm = shutil.which("npm")
    if npm is None:
        raise InputError("the static page needs Pyodide, and npm is not here to fetch it", hint=_HINT)
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--silent", PYODIDE]
        try:
            subprocess.run(  # noqa: S603  npm, with words of our own
                command, cwd=folder, check=True, capture_output=True, text=True, timeout=_WAIT_S
            )
            archive = next(Path(folder).glob("*.tgz")).read_bytes()
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            errors = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            what = f"npm could not fetch {PYODIDE}: {errors[-1][:200] if errors else 'no answer'}"
            raise InputError(what, hint=_HINT) from error
    if f"sha512-{b64encode(sha512(archive).digest()).decode()}" != _DIGEST:
        raise InputError(f"npm gave another {PYODIDE} than the one that kvcalc is tested with", hint=_HINT)
    return archive


def _unpacked(archive: bytes) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=BytesIO(archive)) as entries:
        for name in RUNTIME_FILES:
            body = entries.extractfile(f"package/{name}")
            files[name] = b"" if body is None else body.read(_MAX_BYTES)
    return files
