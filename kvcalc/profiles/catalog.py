"""Where profiles are found: shipped folders, users' folders, names and aliases."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from kvcalc.core.errors import UnknownNameError, did_you_mean
from kvcalc.profiles.reader import expanded, read_profile

__all__ = ["Entry", "Kind", "entries", "find", "folders", "lookup", "names", "shipped_folder", "stamp"]

Kind = Literal["model", "hardware", "calibration"]

_FOLDER = {"model": "model_profiles", "hardware": "hardware_profiles", "calibration": "calibration_profiles"}
_SHOWN = {"model": "model", "hardware": "GPU", "calibration": "calibration"}
_LIST = {"model": "kvcalc models", "hardware": "kvcalc gpus", "calibration": "docs/estimates.md"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A profile file that a name led to.

    Args:
        path: the file.
        by_alias: whether the name was an alias, not the profile's own.
        shipped: whether it is one of kvcalc's own, or equal to it byte for byte, as in a checkout.
    """

    path: Path
    by_alias: bool
    shipped: bool


@cache
def shipped_folder(kind: Kind) -> Path:
    """Return the folder of kvcalc's own profiles: inside the package, or beside it in a checkout."""
    if kind == "calibration":
        return Path(__file__).parent / "calibrations"
    package = Path(__file__).parents[1]
    inside = package / _FOLDER[kind]
    return inside if inside.is_dir() else package.parent / _FOLDER[kind]


def folders(kind: Kind) -> list[Path]:
    """Return the folders that are searched, first found first used.

    These are the folders of ``KVCALC_PROFILES``, the current one, the user's (``$XDG_CONFIG_HOME/kvcalc`` or
    ``~/.config/kvcalc``), each with or without a folder of the kind's name below it (``model_profiles``,
    ``hardware_profiles``, ``calibration_profiles``), and the shipped.
    """
    roots = [Path(part) for part in os.environ.get("KVCALC_PROFILES", "").split(os.pathsep) if part]
    config = os.environ.get("XDG_CONFIG_HOME") or expanded("~/.config")
    roots += [Path(), Path(config) / "kvcalc"]
    found = [folder for root in roots for folder in (root / _FOLDER[kind], root) if folder.is_dir()]
    shipped = shipped_folder(kind)
    return [folder for folder in found if folder.resolve() != shipped.resolve()] + [shipped]


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
    except OSError:
        return []


def names(kind: Kind) -> list[str]:
    """Return the names of all profiles that can be found, sorted."""
    return sorted(entries(kind))


def entries(kind: Kind) -> dict[str, Entry]:
    """Return the files of all profiles that can be found, by their names."""
    *others, shipped = folders(kind)
    found = {path.stem: path for path in _files(shipped)}
    for folder in reversed(others):
        if folder.name == _FOLDER[kind]:
            found |= {path.stem: path for path in _files(folder)}
    return {name: Entry(path, by_alias=False, shipped=_is_shipped(path, kind)) for name, path in found.items()}


def stamp() -> tuple[tuple[Path, int, int], ...]:
    """Return users' profile files with their sizes and times of change: another stamp, and they are no longer the same.

    Shipped files are left out: they don't change while kvcalc runs.
    """
    kinds: tuple[Kind, ...] = ("model", "hardware", "calibration")
    own = dict.fromkeys(folder for kind in kinds for folder in folders(kind)[:-1])
    found = []
    for path in (path for folder in own for path in _files(folder)):
        with suppress(OSError):
            about = path.stat()
            found.append((path, about.st_size, about.st_mtime_ns))
    return tuple(found)


def find(name: str, kind: Kind) -> Entry:
    """Return the file of a profile by its name or one of its aliases.

    Raises:
        UnknownNameError: there is none; the hint names the closest.
    """
    entry = lookup(name, kind)
    if entry is None:
        raise _unknown(name, kind)
    return entry


def lookup(name: str, kind: Kind) -> Entry | None:
    """Return the file of a profile by its name or one of its aliases, or none."""
    key = name.strip().lower()
    searched = folders(kind)
    if key and "/" not in key and "\\" not in key and key not in (".", ".."):
        for folder in searched:
            for suffix in (".yaml", ".yml"):
                path = folder / f"{key}{suffix}"
                if path.is_file():
                    return Entry(path, by_alias=False, shipped=_is_shipped(path, kind))
    for folder in searched:
        for path in _files(folder) if folder == searched[-1] or folder.name == _FOLDER[kind] else ():
            if key in _aliases(path, key):
                return Entry(path, by_alias=True, shipped=_is_shipped(path, kind))
    return None


def _is_shipped(path: Path, kind: Kind) -> bool:
    own = shipped_folder(kind) / path.name
    try:
        return path == own or path.read_bytes() == own.read_bytes()
    except OSError:
        return False


def _aliases(path: Path, key: str) -> list[str]:
    """Return a file's aliases in lower case, reading only files whose text holds the key at all."""
    try:
        if key.encode(errors="surrogateescape") not in path.read_bytes().lower():
            return []
    except OSError:
        return []
    aliases: Any = read_profile(path).data.get("aliases") or []
    return [str(alias).lower() for alias in aliases]


def _unknown(name: str, kind: Kind) -> UnknownNameError:
    known = set(names(kind))
    for path in _files(shipped_folder(kind)):
        known |= {str(alias).lower() for alias in read_profile(path).data.get("aliases") or ()}
    hint = did_you_mean(name, known)
    listed = f"{_LIST[kind]} lists them; a profile file works too"
    return UnknownNameError(f"unknown {_SHOWN[kind]} {name!r}", hint=f"{hint} ({listed})" if hint else listed)
