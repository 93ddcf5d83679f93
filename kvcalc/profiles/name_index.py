"""The names that profiles go by, each in the words it is made of: own names, aliases, titles."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.core.errors import ProfileError
from kvcalc.files import read_bytes
from kvcalc.profiles.catalog import alias_folders, profile_files
from kvcalc.profiles.reader import MAX_BYTES, read_profile
from kvcalc.profiles.spellings import card_words, words

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.profiles.catalog import Kind

__all__ = ["Names", "Spelling", "is_other_version", "key_of", "own_names", "profile_names", "spellings"]

_ALIASES = re.compile(r"^aliases: *\[([^\]]*)\]", re.MULTILINE)
_VERSION = re.compile(r"\d+(?:\.\d+)?")
_TITLE = re.compile(r"^title: *(.+?) *$", re.MULTILINE)
_MEMORY = re.compile(r"^memory_label_bytes: *([\d.e]+)", re.MULTILINE)


class Names(NamedTuple):
    """Names in a profile file.

    Args:
        name: its own.
        aliases: other names.
        title: a card's full name; empty for models.
        memory_bytes: a card's memory as the box says; 0 for models.
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    memory_bytes: float


class Spelling(NamedTuple):
    """A name or alias of the catalogue, and the name of its profile."""

    alias: str
    name: str


def key_of(name: str, kind: Kind) -> str:
    """Return the words of a name, those of a card without its vendor."""
    return card_words(name) if kind == "hardware" else words(name)


def is_other_version(alias: str, name: str) -> bool:
    """Whether an alias has none of a version that a profile's name has: a model of that shape and another name.

    >>> is_other_version("allenai/Olmo-3-32B-Think", "olmo-3.1-32b"), is_other_version("Qwen/Qwen3-8B", "qwen3-8b")
    (True, False)
    """
    versions = [{float(word) for word in words(each).split() if _VERSION.fullmatch(word)} for each in (alias, name)]
    return not versions[1] <= versions[0]


def profile_names(kind: Kind) -> list[Names]:
    """Return the names of all profiles that can be found, users' before kvcalc's own."""
    *others, shipped = alias_folders(kind)
    return [*(_read(path) for folder in others for path in profile_files(folder)), *_shipped(shipped)]


def own_names(kind: Kind) -> dict[str, str]:
    """Return the profiles' own names by their words."""
    return {key_of(each.name, kind): each.name for each in profile_names(kind)}


def spellings(kind: Kind) -> dict[str, Spelling]:
    """Return names by their words: own names come first, then aliases, then these without owner, then titles."""
    return _spelled(tuple(profile_names(kind)), kind)


# As long as no file of a user's changes, the names are the same.
@lru_cache(maxsize=8)
def _spelled(known: tuple[Names, ...], kind: Kind) -> dict[str, Spelling]:
    spelled = [(each.name, each.name, each.name) for each in known]
    spelled += [(alias, alias, each.name) for each in known for alias in each.aliases]
    spelled += [(alias.rpartition("/")[2], alias, each.name) for each in known for alias in each.aliases]
    spelled += [
        (f"{alias.partition('/')[0]} {each.name}", each.name, each.name) for each in known for alias in each.aliases
    ]
    spelled += [(each.title, each.name, each.name) for each in known if each.title]
    keys: dict[str, Spelling] = {}
    for text, alias, name in spelled:
        keys.setdefault(key_of(text, kind), Spelling(alias, name))
    return keys


@cache
def _shipped(folder: Path) -> tuple[Names, ...]:
    return tuple(_read(path) for path in profile_files(folder))


def _read(path: Path) -> Names:
    """Return the names in a file, from its text where they stand as kvcalc writes them: YAML takes far longer."""
    try:
        text = read_bytes(path, max_bytes=MAX_BYTES, what="a profile").decode(errors="replace")
        listed, title, memory = (pattern.search(text) for pattern in (_ALIASES, _TITLE, _MEMORY))
        if listed is None and "\naliases:" in text:
            aliases = tuple(map(str, read_profile(path).data.get("aliases") or ()))
        else:
            split = [] if listed is None else [each.strip(" \n'\"") for each in listed[1].split(",")]
            aliases = tuple(filter(None, split))
    except ProfileError:
        return Names(path.stem, (), "", 0.0)
    return Names(path.stem, aliases, title[1] if title else "", float(memory[1]) if memory else 0.0)
