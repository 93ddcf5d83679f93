"""Checkpoints in folders: the files to read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError
from kvcalc.files import open_regular
from kvcalc.importers.safetensors import shard_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Checkpoint", "config_of", "find_checkpoint"]

_INDEX = ".safetensors.index.json"
_FIRST_PART = re.compile(r"-0*1-of-\d+\.gguf$")
_PART = re.compile(r"-\d+-of-\d+\.gguf$")
# Files that hold no model of their own: adapters, projectors of images, importance matrices.
_BESIDE = re.compile(r"^(?:adapter|mmproj|imatrix)|[-_.](?:mmproj|imatrix)[-_.]")
_MAX_NAMED = 3
_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Files of a folder that make up its checkpoint.

    Args:
        path: the file: a weight file or index, or the ``config.json``.
        notes: why the weights' own bytes are not used, where they are not.
    """

    path: Path
    notes: tuple[str, ...] = ()


def find_checkpoint(folder: Path) -> Checkpoint:
    """Return the weight file of a folder, with its ``config.json``; the config alone where no weights are complete.

    Raises:
        ProfileError: the folder holds no checkpoint, or several.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise ProfileError(f"cannot be read: {error.strerror or error}", where=str(folder)) from error
    config = folder / "config.json"
    if config.is_file():
        return _with_config(folder, names)
    models = [name for name in names if name.lower().endswith(".gguf") and not _BESIDE.search(name.lower())]
    whole = [name for name in models if _FIRST_PART.search(name) or not _PART.search(name)]
    if len(whole) == 1:
        return Checkpoint(folder / whole[0])
    if models:
        listed = ", ".join((whole or models)[:5])
        raise ProfileError(
            f"the folder has several models: {listed}" if whole else f"a split file without its first part: {listed}",
            where=str(folder),
            hint="give one of the files",
        )
    raise ProfileError(
        "the folder has no config.json and no .gguf file", where=str(folder), hint="give a profile or checkpoint file"
    )


def config_of(path: Path) -> Path:
    """Return the config of a checkpoint: the file itself, or the one in a folder or beside weights.

    Raises:
        ProfileError: there is none, or the file is one that describes itself.
    """
    suffix = path.suffix.lower()
    if suffix != ".json" and not path.exists():
        raise ProfileError("no such file", where=str(path))
    if suffix in {".gguf", ".yaml", ".yml"}:
        what = "a .gguf file describes itself" if suffix == ".gguf" else "this is a profile"
        other = "import" if suffix == ".gguf" else "validate"
        raise ProfileError(
            f"{what}; only the keys of a config.json can be linted", where=str(path),
            hint=f"kvcalc models {other} {path.name}",
        )  # fmt: skip
    weights = suffix == ".safetensors" or path.name.endswith(_INDEX)
    if not weights and not path.is_dir():
        return path
    config = path.with_name("config.json") if weights else path / "config.json"
    if config.is_file():
        return config
    where = "beside the file" if weights else "in the folder"
    raise ProfileError(f"there is no config.json {where}; only its keys can be linted", where=str(path))


def _with_config(folder: Path, names: Sequence[str]) -> Checkpoint:
    weights, missing = _weights(folder, names)
    if weights is not None and not missing:
        return Checkpoint(folder / weights)
    why = _why(missing, names)
    notes = (f"{why}: weight bytes are parameters x the config's format",) if why else ()
    return Checkpoint(folder / "config.json", notes)


def _why(missing: Sequence[str], names: Sequence[str]) -> str:
    """Return why a folder's config is read without its weights; empty where it holds none."""
    if missing:
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        return f"{', '.join(missing[:_MAX_NAMED])}{more} {'is' if len(missing) == 1 else 'are'} missing"
    beside = [name for name in names if name.endswith((".safetensors", ".gguf"))]
    return f"{', '.join(beside[:_MAX_NAMED])} not read, as none is the config's for certain" if beside else ""


def _weights(folder: Path, names: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the file or index that holds a folder's weights, and which files of it are missing."""
    files = [name for name in names if name.endswith(".safetensors") and not _BESIDE.search(name)]
    indices = [name for name in names if name.endswith(_INDEX)]
    weights = _choose(indices, f"model{_INDEX}") or _choose(files, "model.safetensors")
    if weights is None and len({tuple(shard_names(folder / name)) for name in files}) == 1:
        weights = files[0]
    if weights is None:
        return None, []
    return weights, [name for name in shard_names(folder / weights) if not _is_held(folder / name)]


def _choose(names: Sequence[str], preferred: str) -> str | None:
    return preferred if preferred in names else names[0] if len(names) == 1 else None


def _is_held(path: Path) -> bool:
    """Return whether a file is there itself, not as the pointer that Git LFS leaves in its place."""
    try:
        with open_regular(path) as file:
            return file.read(len(_POINTER)) != _POINTER
    except ProfileError:
        return False
