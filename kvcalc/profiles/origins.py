"""Origins of the profiles of an answer: noted while it is computed, so that no file stands in unseen."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvcalc.profiles.catalog import Kind

__all__ = ["CATALOGUE", "Origin", "note_origin", "noted_origins", "noting_origins", "origin_notes", "origins_data"]

CATALOGUE = "catalogue"


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of one profile.

    Args:
        kind: of the profile.
        name: what it was asked for by.
        source: ``catalogue`` for kvcalc's own, else the file.
        shadows: whether kvcalc has one of that name too, which was not used.
        note: what a reader must know of how the name was taken; mostly nothing.
    """

    kind: Kind
    name: str
    source: str
    shadows: bool = False
    note: str = ""


_noted: ContextVar[dict[Origin, None] | None] = ContextVar("noted", default=None)


@contextmanager
def noting_origins() -> Iterator[dict[Origin, None]]:
    """Give a mapping whose keys are the origins of all profiles that are loaded inside, in order."""
    noted: dict[Origin, None] = {}
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)
        around = _noted.get()
        if around is not None:
            around |= noted


def noted_origins() -> tuple[Origin, ...] | None:
    """Return the origins noted so far; none where nobody notes them."""
    noted = _noted.get()
    return None if noted is None else tuple(noted)


def note_origin(
    kind: Kind, name: str, path: str, *, shipped: bool = False, shadows: bool = False, note: str = ""
) -> None:
    """Note where a profile came from, if anybody asked for it; ``shipped`` says that its file is kvcalc's own."""
    noted = _noted.get()
    if noted is not None:
        noted[Origin(kind, name, CATALOGUE if shipped else path, shadows, note)] = None


def origins_data(origins: Iterable[Origin]) -> dict[str, Any]:
    """Return origins as plain data: of each kind, names with their sources, and the names that shadow the catalogue."""
    sources: dict[str, Any] = {"model": {}, "hardware": {}}
    shadowed: dict[str, None] = {}
    for origin in origins:
        sources.setdefault(origin.kind, {})[origin.name] = origin.source
        if origin.shadows:
            shadowed[origin.name] = None
    return {**sources, "shadowed": list(shadowed)}


def origin_notes(origins: Iterable[Origin]) -> tuple[str, ...]:
    """Return a note for each name that was not taken from the catalogue, though it is there, or means several cards."""
    notes = []
    for origin in origins:
        if origin.shadows:
            notes.append(f"{origin.name} was read from {origin.source}, not from kvcalc's own profile of that name")
        if origin.note:
            notes.append(origin.note)
    return tuple(notes)
