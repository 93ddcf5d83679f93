"""Keys that look like one that was looked for in vain: what they were meant to say would be lost without a word."""

from __future__ import annotations

import re
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError
from kvcalc.importers.towers import TOWERS
from kvcalc.importers.unread import WATCHED, decides_nothing
from kvcalc.importers.wrappers import class_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvcalc.importers.config_reader import Config

__all__ = ["refuse_misspelt"]

# Letters that may be lost, doubled, changed or swapped in a name of so many letters.
_SHORT, _LONG = 4, 9
# A config has some hundred keys; a list of quantised modules has more, none of which is misspelt.
_MAX_KEYS = 2_000
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_APART = re.compile(r"[\W_]+")
# Words that say the same in the names of keys, or nothing.
_WORDS = {
    **dict.fromkeys(("n", "num", "nb", "nr", "number", "of", "the", "total", "attention", "attn", "config", "cfg"), ""),
    **dict.fromkeys(("dim", "dims", "dimension", "width", "d"), "size"),
    **dict.fromkeys(("quant", "quantisation", "quantize", "quantized"), "quantization"),
    **dict.fromkeys(("ffn", "mlp", "inner", "feedforward"), "intermediate"),
    **dict.fromkeys(("vocabulary",), "vocab"),
    **dict.fromkeys(("slide", "local"), "sliding"),
    **dict.fromkeys(("tied",), "tie"),
    **dict.fromkeys(("tok", "toks"), "token"),
    "kv": "key value",
    "keyvalue": "key value",
}
# Whole names that say the same as another.
_NAMES = {
    **dict.fromkeys(("hidden", "model size", "embed size", "embd", "size"), "hidden size"),
    **dict.fromkeys(("window", "window size", "sliding window size", "sliding window len"), "sliding window"),
    **dict.fromkeys(("hidden layer",), "layer"),
    **dict.fromkeys(("tie embedding", "tie weight"), "tie word embedding"),
    **dict.fromkeys(("intermediate hidden size",), "intermediate size"),
    **dict.fromkeys(("headsize",), "head size"),
    **dict.fromkeys(("vocab",), "vocab size"),
}


def refuse_misspelt(chain: Sequence[Config]) -> None:
    """Refuse a key that no rule reads and that is spelled nearly as one that a rule looked for and did not find.

    Args:
        chain: the configs from the outermost to that of the text model, after they were read.

    Raises:
        ProfileError: such a key, with the one that is meant.
    """
    top = chain[0]
    levels: dict[str, set[str]] = {config.path: set() for config in chain}
    own = set(levels)
    towers = {config.key_path(key) for config in chain for key in TOWERS}
    for path in top.absent:
        level, _, name = path.rpartition(".")
        levels.setdefault(level, set()).add(name)
    for level, names in levels.items():
        data = _at(top.data, level)
        prefix = f"{level}." if level else ""
        asked = [name for name in sorted(names) if name not in data]
        watched = [name for name in sorted(WATCHED) if name not in data] if level in own else []
        if level in own and len(data) > _MAX_KEYS:
            raise ProfileError(f"more than {_MAX_KEYS:,} keys: not a model config", where=top.where)
        for key, value in islice(data.items(), _MAX_KEYS):
            path = prefix + key
            # what is of no text model may well be of a tower: image_size
            harmless = level not in towers and decides_nothing(key, value)
            if value is None or key in WATCHED or _was_read(path, value, top) or harmless:
                continue
            meant = _meant(key, asked if key in class_keys() else [*asked, *watched])
            if meant is not None and not _same(value, top, prefix + meant):
                raise ProfileError(
                    f"{path} is no key that is known, but nearly {meant!r}",
                    where=top.where,
                    hint=f"did you mean {meant}? Correct the key, or remove it if it has no effect",
                )


def _was_read(path: str, value: Any, top: Config) -> bool:
    return path in top.uses or (isinstance(value, dict) and any(used.startswith(f"{path}.") for used in top.uses))


def _same(value: Any, top: Config, path: str) -> bool:
    """Whether a key says what is in force without it."""
    use = top.uses.get(path)
    return use is not None and use.value == value and type(use.value) is type(value)


def _at(data: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    for step in path.split(".") if path else ():
        inner = data.get(step)
        data = inner if isinstance(inner, dict) else {}
    return data


def _meant(key: str, missing: Iterable[str]) -> str | None:
    """Return the missing name that a key stands for, or none."""
    words, spelled = _words(key), _spelled(key)
    known = key in class_keys()
    meant = [name for name in missing if words == _words(name) or (not known and _near(spelled, _spelled(name)))]
    return min(meant, key=lambda name: (_distance(spelled, _spelled(name)), -len(name)), default=None)


@cache
def _spelled(name: str) -> str:
    return _APART.sub("_", name.lower()).strip("_")


@cache
def _words(name: str) -> tuple[str, ...]:
    """Split a name into sorted words, whatever the order and the usual short forms.

    >>> _words("num_key_value_heads") == _words("n_kv_heads") == _words("nHeadKV") == ("head", "key", "value")
    True
    """
    parts = _APART.split(_CAMEL.sub("_", name).lower())
    spelled = " ".join(_WORDS.get(part, part.removesuffix("s")) for part in parts).split()
    return tuple(sorted(_NAMES.get(" ".join(spelled), " ".join(spelled)).split()))


def _near(one: str, other: str) -> bool:
    """Whether two names differ by a letter or two that were lost, added, changed or swapped."""
    if one.replace("_", "") == other.replace("_", ""):
        return True
    shorter = min(len(one), len(other))
    allowed = 0 if shorter < _SHORT else 1 if shorter < _LONG else 2
    may_be = abs(len(one) - len(other)) <= allowed and len(set(one) ^ set(other)) <= 2 * allowed
    return may_be and _distance(one, other, allowed) <= allowed


def _distance(one: str, other: str, limit: int = 99) -> int:
    """Return the letters to change, each at most once, neighbours that are swapped as one (Damerau 1964).

    Beyond ``limit`` it is only known to be more.

    >>> _distance("window", "widnow"), _distance("heads", "head"), _distance("size", "sizes_")
    (1, 1, 2)
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        last, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
        if min(row) > limit and min(before) > limit:
            return limit + 1
    return row[-1]
