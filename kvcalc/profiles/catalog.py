"""Places of profiles: shipped folders, users' folders, names and aliases."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path
from typing import Any, Literal

from kvcalc.core.errors import ProfileError
from kvcalc.core.records import dataclass
from kvcalc.files import read_bytes
from kvcalc.profiles.reader import MAX_BYTES, expanded, read_profile

__all__ = [
    "Entry", "Kind", "alias_folders", "entries", "file_beside", "folders", "is_shipped_name", "lookup", "names",
    "profile_files", "shipped_folder", "stamp",
]  # fmt: skip

Kind = Literal["model", "hardware", "calibration"]

_FOLDER = {"model": "model_profiles", "hardware": "hardware_profiles", "calibration": "calibration_profiles"}
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Entry:
    """A profile file that a name led to.

    Args:
        path: the file.
        by_alias: whether the name was an alias, not the profile's own.
        shipped: whether it is one of kvcalc's own, or equal to it byte for byte, as in a checkout.
        shadows: whether it is a user's, and kvcalc has one of that name or alias too.
    """

    path: Path
    by_alias: bool
    shipped: bool
    shadows: bool = False


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

    These are the folders of ``KVCALC_PROFILES``, the user's (``$XDG_CONFIG_HOME/kvcalc`` or ``~/.config/kvcalc``), each
    with or without a folder of the kind's name below it (``model_profiles``, ``hardware_profiles``,
    ``calibration_profiles``), and the shipped. The current folder is not among them: a file that happens to lie there
    must not stand in for a name of the catalogue, so it is given with a path, or ``KVCALC_PROFILES=.`` asks for it.
    """
    roots = [Path(part) for part in os.environ.get("KVCALC_PROFILES", "").split(os.pathsep) if part]
    config = os.environ.get("XDG_CONFIG_HOME") or expanded("~/.config")
    roots.append(Path(config) / "kvcalc")
    existing = [folder for root in roots for folder in (root / _FOLDER[kind], root) if folder.is_dir()]
    shipped = shipped_folder(kind)
    return [folder for folder in existing if folder.resolve() != shipped.resolve()] + [shipped]


def alias_folders(kind: Kind) -> list[Path]:
    """Return the folders whose profiles are found by aliases too: those where files of this kind alone lie."""
    searched = folders(kind)
    return [folder for folder in searched[:-1] if folder.name == _FOLDER[kind]] + searched[-1:]


def profile_files(folder: Path) -> list[Path]:
    """Return the profile files of a folder, sorted; none where it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and _is_profile(path))
    except OSError:
        return []


def _is_profile(path: Path) -> bool:
    """Whether a file may be a profile: an empty one is what a shell leaves for output that is still to come."""
    try:
        about = path.stat()
    except (OSError, ValueError):  # a name that no file can have
        return False
    return stat.S_ISREG(about.st_mode) and about.st_size > 0


def names(kind: Kind) -> list[str]:
    """Return the names of all profiles that can be found, sorted."""
    return sorted(entries(kind))


def entries(kind: Kind) -> dict[str, Entry]:
    """Return the files of all profiles that can be found, by their names."""
    *others, _ = folders(kind)
    listed = dict(_shipped_entries(kind))
    for folder in reversed(others):
        if folder.name == _FOLDER[kind]:
            listed |= {path.stem: _entry(path, path.stem, kind, by_alias=False) for path in profile_files(folder)}
    return listed


@cache
def _shipped_entries(kind: Kind) -> dict[str, Entry]:
    """Return the files of kvcalc's own profiles, which don't change while it runs."""
    paths = profile_files(shipped_folder(kind))
    return {path.stem: _entry(path, path.stem, kind, by_alias=False) for path in paths}


def _entry(path: Path, key: str, kind: Kind, *, by_alias: bool) -> Entry:
    shipped = _is_shipped(path, kind)
    return Entry(path, by_alias=by_alias, shipped=shipped, shadows=not shipped and is_shipped_name(key, kind))


def is_shipped_name(name: str, kind: Kind) -> bool:
    """Return whether kvcalc has a profile of its own by that name or alias."""
    return _search(name.strip().lower(), [shipped_folder(kind)]) is not None


def stamp() -> tuple[tuple[Path, bytes], ...]:
    """Return users' profile files with digests of their contents: as long as it is equal, they are the same.

    Shipped files are left out: they don't change while kvcalc runs.
    """
    kinds: tuple[Kind, ...] = ("model", "hardware", "calibration")
    own = dict.fromkeys(folder for kind in kinds for folder in folders(kind)[:-1])
    return tuple((path, _digest(path)) for folder in own for path in profile_files(folder))


def _digest(path: Path) -> bytes:
    """Return the digest of a file's content: two writes within a moment can leave it the same size and time."""
    from hashlib import sha256  # it takes a fortieth of the time of a short command

    try:
        return sha256(read_bytes(path, max_bytes=MAX_BYTES, what="a profile")).digest()
    except ProfileError:
        return b""


def lookup(name: str, kind: Kind) -> Entry | None:
    """Return the file of a profile by its name or one of its aliases, or none."""
    key = name.strip().lower()
    path = _search(key, folders(kind), alias_folders(kind))
    return None if path is None else _entry(path, key, kind, by_alias=path.stem != key)


def _search(key: str, searched: list[Path], with_aliases: list[Path] | None = None) -> Path | None:
    """Return the first file of that name in some folders, else the first with that alias."""
    if key and "/" not in key and "\\" not in key and key not in (".", ".."):
        for folder in searched:
            for suffix in _SUFFIXES:
                path = folder / f"{key}{suffix}"
                if _is_profile(path):
                    return path
    files = (path for folder in with_aliases or searched for path in profile_files(folder))
    return next((path for path in files if key in _aliases(path, key)), None)


def _is_shipped(path: Path, kind: Kind) -> bool:
    own = shipped_folder(kind) / path.name
    try:
        same_size = path == own or path.stat().st_size == own.stat().st_size
        return same_size and (path == own or path.read_bytes() == own.read_bytes())
    except OSError:
        return False


def _aliases(path: Path, key: str) -> list[str]:
    """Return a file's aliases in lower case, reading only files whose text holds the key at all."""
    try:
        if key.encode(errors="surrogateescape") not in read_bytes(path, max_bytes=MAX_BYTES, what="a profile").lower():
            return []
    except ProfileError:
        return []
    aliases: Any = read_profile(path).data.get("aliases") or []
    return [str(alias).lower() for alias in aliases]


def file_beside(name: str, kind: Kind) -> Path | None:
    """Return the profile of that name in the current folder, which is not searched; none where there is none."""
    if "/" in name or "\\" in name or not name.strip():
        return None
    paths = (folder / f"{name.strip()}{suffix}" for folder in (Path(), Path(_FOLDER[kind])) for suffix in _SUFFIXES)
    return next((path for path in paths if _is_profile(path)), None)
