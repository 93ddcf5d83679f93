"""From what people type to a profile, never another one: spellings, ids of quantised files, variants of cards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnknownNameError
from kvcalc.core.records import dataclass
from kvcalc.core.units import label_bytes, parse_bytes
from kvcalc.profiles.catalog import file_beside, lookup
from kvcalc.profiles.name_index import is_other_version, key_of, own_names, profile_names, spellings
from kvcalc.profiles.spellings import Reading, card_words, readings, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.profiles.catalog import Entry, Kind
    from kvcalc.profiles.name_index import Spelling

__all__ = ["Match", "find", "resolve"]

_SIZE = re.compile(r" (?:e )?(\d+(?:\.\d+)?)(?:x(\d+))?([bmt])\b")
_DIGIT = re.compile(r"\d")
_WHOLE = re.compile(r" \d+$")
# What people leave out before the number of a card.
_SERIES = ("rtx", "gtx", "rx")
# Several cards in one word: 2x4090, 8 x h100, h100x8.
_SEVERAL = re.compile(r"(?P<count>\d{1,4}) ?[x*] ?(?P<card>.+)|(?P<before>.+?) ?[x*] ?(?P<after>\d{1,4})")
_TYPED_MEMORY = re.compile(r" (\d+)gb$")
# What tells variants of a card apart: memory, form, and how many cores of its GPU are enabled.
_VARIANT = re.compile(r"(?: (?:\d+gb|sxm|pcie|nvl|\d+|workstation|server|max q))+")
_SHOWN = {"model": "model", "hardware": "GPU", "calibration": "calibration"}
_LIST = {"model": "kvcalc models", "hardware": "kvcalc gpus", "calibration": "docs/estimates.md"}
_MAX_NAMED, _ALIKE, _ALIKE_FIRST = 8, 0.6, 0.75


@dataclass(frozen=True, slots=True)
class Match:
    """The profile that a typed name means.

    Args:
        entry: its file.
        alias: the name of the catalogue that the typed one is a spelling of.
        reading: what the typed name says besides.
        memory_gb: a memory that the name has beside that of the card.
        variants: other cards that the name may mean.
    """

    entry: Entry
    alias: str
    reading: Reading
    memory_gb: int | None = None
    variants: tuple[str, ...] = ()


def find(name: str, kind: Kind) -> Match:
    """Return the profile that a typed name means.

    Raises:
        UnknownNameError: it means none; the hint names the sizes of a family, else what is spelled alike.
    """
    match = resolve(name, kind)
    if match is None:
        raise _unknown(name, kind)
    return match


def resolve(name: str, kind: Kind) -> Match | None:
    """Return the profile that a typed name means, or none where no reading of it is a name of the catalogue."""
    entry = lookup(name, kind)
    if kind == "hardware" and (entry is None or entry.by_alias):
        return _card(name, entry)
    if entry is not None or kind == "calibration":
        return None if entry is None else Match(entry, name.strip(), Reading(words(name)))
    keys = spellings(kind)
    for reading in readings(name):
        spelling = keys.get(reading.key)
        entry = None if spelling is None else lookup(spelling.alias, kind)
        if spelling is not None and entry is not None:
            return Match(entry, spelling.alias, reading)
    return None


def _card(name: str, entry: Entry | None) -> Match | None:
    """Return the card that a name means: in any spelling, with a memory it is sold with, or the largest variant.

    A name that begins with a number, as 5090 laptop does, may lack the name of its series.
    """
    key = card_words(name)
    keys = [key, *(f"{series} {key}" for series in _SERIES if _DIGIT.match(key))]
    return next(filter(None, (_card_of(each, entry) for each in keys)), None)


def _card_of(key: str, entry: Entry | None) -> Match | None:
    memory_gb = None
    keys, variants = spellings("hardware"), _variants(key)
    card = entry.path.stem if entry is not None else keys[key].name if key in keys else None
    typed = _TYPED_MEMORY.search(key)
    if card is None and typed is not None:
        memory_gb, bare = int(typed[1]), key[: typed.start()]
        sold = [keys[bare].name] if bare in keys else _variants(bare)
        variants = [each for each in sold if _may_have(each, memory_gb)]
    card = card or (variants[-1] if variants else None)
    entry = None if card is None else entry or lookup(card, "hardware")
    if card is None or entry is None:
        return None
    return Match(entry, card, Reading(key), memory_gb, tuple(each for each in variants if each != card))


def _may_have(card: str, memory_gb: int) -> bool:
    """Whether a card is sold with that memory; Apple's chips are with several."""
    known = next(each for each in profile_names("hardware") if each.name == card)
    return known.title.startswith("Apple") or label_bytes(known.memory_bytes) == parse_bytes(f"{memory_gb}GiB")


def _variants(key: str) -> list[str]:
    """Return the cards whose own names add memory, form or cores to these words, in order of their numbers."""
    asked = key.split()
    longer = [own for words_of, own in own_names("hardware").items() if _adds_variant(asked, words_of.split())]
    return sorted(longer, key=lambda own: [int(number) for number in re.findall(r"\d+", own)])


def _adds_variant(asked: list[str], own: list[str]) -> bool:
    rest = list(own)
    if not any(map(_DIGIT.search, asked)) or rest[:1] != asked[:1]:
        return False
    for word in asked:
        if word not in rest:
            return False
        rest.remove(word)
    return _VARIANT.fullmatch("".join(f" {word}" for word in rest)) is not None


def _unknown(name: str, kind: Kind) -> UnknownNameError:
    file = file_beside(name, kind)
    if file is not None:
        hint = f"for the file in the current folder write ./{file}"
        return UnknownNameError(f"unknown {_SHOWN[kind]} {name!r}", hint=hint)
    several = _SEVERAL.fullmatch(name.strip().lower()) if kind == "hardware" else None
    card = resolve(several["card"] or several["before"], kind) if several is not None else None
    if several is not None and card is not None:
        count = several["count"] or several["after"]
        hint = f"--gpu {card.alias} --gpus {count}, and in plan --gpus-at-most {count}"
        return UnknownNameError(f"unknown {_SHOWN[kind]} {name!r}", hint=hint)
    listed = f"{_LIST[kind]} lists them; a profile file works too"
    others = _other_generations(key_of(name, kind)) if kind == "hardware" else []
    if others:
        hint = f"cards of that number are of other generations: {', '.join(others)} ({listed})"
        return UnknownNameError(f"unknown {_SHOWN[kind]} {name!r}", hint=hint)
    read = [key_of(name, kind)] if kind == "hardware" else [reading.key for reading in readings(name)]
    family = next(filter(None, (_family(key, kind) for key in read)), [])
    if len(family) > 1:
        return UnknownNameError(f"{name!r} names a family", hint=f"name one of {', '.join(family)} ({listed})")
    close = family or _alike(read[-1], kind)
    hint = f"did you mean {' or '.join(close)}? ({listed})" if close else listed
    return UnknownNameError(f"unknown {_SHOWN[kind]} {name!r}", hint=hint)


def _other_generations(key: str) -> list[str]:
    """Return the cards of a number that NVIDIA gives again: before Ada there were cards of the same name without it."""
    own = own_names("hardware")
    number = key.rpartition(" ")[2]
    return [name for words_of, name in own.items() if number in words_of.split()] if f"{key} ada" in own else []


def _family(key: str, kind: Kind) -> list[str]:
    """Return the profiles whose names go on where these words end: with a size where any does, smallest first."""
    own_words = own_names(kind).items()
    further = (" ", "t") if kind == "hardware" else (" ",)  # TPU 8t is of TPU 8; its t is read as a unit
    starts = tuple(f"{key}{each}" for each in further)
    longer = {own: words_of[len(key) :] for words_of, own in own_words if words_of.startswith(starts)}
    if not longer and _WHOLE.search(key):  # Granite 4 is Granite 4.0
        return _family(f"{key}.0", kind)
    sized = [own for own, rest in longer.items() if _SIZE.match(rest)]
    shown = sized if len(sized) > 1 else longer
    return sorted(shown, key=lambda own: _size(longer[own]))[:_MAX_NAMED] if key else []


def _size(rest: str) -> tuple[str, float]:
    """Return the unit of a size, millions before billions before trillions, and its number."""
    size = _SIZE.search(rest)
    return ("", 0.0) if size is None else ({"m": "", "b": "b", "t": "t"}[size[3]], float(size[1]) * float(size[2] or 1))


def _alike(key: str, kind: Kind) -> list[str]:
    """Return names that are spelled alike and have all the numbers; else others of the family.

    Where there are none, numbers count as well that only begin like those of the typed name, which may be cut short.
    A profile is named as its own name or as the alias that is alike, which may be another maker's model.
    """
    size = _SIZE.search(key)
    sizes = [] if size is None else _family(key[: size.start()], kind)
    return _close(key, kind, lambda typed, own: typed == own) or sizes or _close(key, kind, _begins)


def _begins(typed: str, own: str) -> bool:
    return own.startswith(typed)


def _close(key: str, kind: Kind, same: Callable[[str, str], bool]) -> list[str]:
    """Return the names that are closest, of those whose first word is alike and that have all numbers of a key."""
    from difflib import get_close_matches

    known = spellings(kind)
    first, *rest = key.split() or [""]
    numbers = [word for word in (first, *rest) if _DIGIT.search(word)]
    words_of = {each: each.split() for each in known}
    firsts = {own[0] for own in words_of.values() if own}
    agreeing = [each for each, own in words_of.items() if all(any(same(n, word) for word in own) for n in numbers)]
    alike = [first] if first in firsts else get_close_matches(first, firsts, n=_MAX_NAMED, cutoff=_ALIKE_FIRST)
    related = [each for each in agreeing if words_of[each][0] in alike]
    close: dict[str, str] = {}
    for each in get_close_matches(key, related, n=3, cutoff=_ALIKE):
        close.setdefault(known[each].name, _as_offered(known[each], kind))
    return list(close.values())


def _as_offered(spelling: Spelling, kind: Kind) -> str:
    """Return the name to offer for a spelling: the profile's own, or an alias of another family or version."""
    alias = spelling.alias.rpartition("/")[2]
    family, own = (key_of(each, kind).partition(" ")[0] for each in (alias, spelling.name))
    is_other = kind == "model" and is_other_version(alias, spelling.name)
    return spelling.name if family == own and not is_other else alias
