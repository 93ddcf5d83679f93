"""Ways to damage what is valid: bytes, lines of text, and values of documents. All chance comes from the generator passed in."""

from __future__ import annotations

import struct
from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

WORDS = (
    "0", "-1", "1", "1.5", "1e400", "nan", "inf", "-0", "9" * 30, "0x10", "1_000", "1,000", "true", "null", "None", "~", '""', "''", "é",
    "\u0000", "\ufeff", "\u2028", "\U0001f600", "\\", "{", "}", "[", "]", ":", ": ", ",", "- ", "#", "\n", "\t", "\r", "&a", "*a", "<<: ",
    "!!python/object:os.system", "%s", "$(x)", "../../etc/passwd", "GiB", "12 GiB", "1e9 B", "bf16", "full_attention", "x" * 300,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 10**12, 10**30, 0.5, -0.5, 1e-300, 1e300, float("inf"), float("nan"), "", "auto", "llama",
    "bfloat16", "0", "x" * 300, "re:(a+)+$", "model.layers.0*", [], {}, [[]], [None], [0], ["full_attention"], {"": 0}, {"a": {"b": [1]}},
)  # fmt: skip
NUMBERS = (0, 1, 2, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)


def damaged_bytes(data: bytes, random: Random) -> bytes:
    """Bytes changed, whole numbers blown up, pieces cut, doubled or moved; sometimes the file ends early."""
    found = bytearray(data)
    for _ in range(random.randint(1, 6)):
        index = random.randrange(len(found) or 1)
        match random.randrange(6):
            case 0:
                found[index : index + 1] = bytes([random.randrange(256)])
            case 1:
                found[index : index + 8] = struct.pack("<Q", random.choice(NUMBERS))
            case 2:
                found[index : index + 4] = struct.pack("<I", random.choice(NUMBERS) & 0xFFFFFFFF)
            case 3:
                del found[index : index + random.randint(1, 40)]
            case 4:
                found[index:index] = found[index : index + random.randint(1, 40)]
            case 5:
                found[index:index] = random.randbytes(random.randint(1, 16))
    return bytes(found[: random.randrange(len(found) + 1)] if random.random() < 0.2 else found)


def damaged_text(text: str, random: Random) -> str:
    """Lines lost, doubled or exchanged, and words put over or between what stands there."""
    for _ in range(random.randint(1, 4)):
        text = random.choice((_without_line, _doubled_line, _moved_line, _other_word, _other_word, _cut))(text, random)
    return text


def _without_line(text: str, random: Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    del lines[random.randrange(len(lines))]
    return "".join(lines)


def _doubled_line(text: str, random: Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    index = random.randrange(len(lines))
    return "".join([*lines[: index + 1], *lines[index:]])


def _moved_line(text: str, random: Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    lines.insert(random.randrange(len(lines)), lines.pop(random.randrange(len(lines))))
    return "".join(lines)


def _other_word(text: str, random: Random) -> str:
    """Put an odd word over some characters; half of the time exactly over one word."""
    index = random.randrange(len(text) + 1)
    end = index + random.choice((0, 0, 1, 3, 12))
    if random.random() < 0.5:
        starts = [at for at in range(len(text)) if text[at].isalnum() and not text[at - 1 : at].isalnum()] or [0]
        index = end = random.choice(starts)
        while end < len(text) and (text[end].isalnum() or text[end] in "_.-"):
            end += 1
    return text[:index] + random.choice(WORDS) + text[end:]


def _cut(text: str, random: Random) -> str:
    return text[: random.randrange(len(text) + 1)] if random.random() < 0.2 else text


def damaged_document(document: Any, random: Random) -> Any:
    """Values of a document deleted, replaced, exchanged, wrapped or renamed."""
    found = deepcopy(document)
    for _ in range(random.randint(1, 3)):
        entries = list(_entries(found))
        if not entries:
            return random.choice(VALUES)
        holder, key = random.choice(entries)
        random.choice((_deleted, _replaced, _replaced, _scaled, _wrapped, _exchanged, _renamed))(
            holder, key, found, random
        )
    return found


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every mapping or list of a document with each key or index in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in items:
        yield value, key
        yield from _entries(entry)


def _deleted(holder: Any, key: Any, _document: Any, _random: Random) -> None:
    del holder[key]


def _replaced(holder: Any, key: Any, _document: Any, random: Random) -> None:
    holder[key] = deepcopy(random.choice(VALUES))


def _scaled(holder: Any, key: Any, _document: Any, random: Random) -> None:
    if isinstance(holder[key], int | float):
        change: Callable[[Any], Any] = random.choice(
            (lambda x: -x, lambda x: x + 1, lambda x: x - 1, lambda x: x * 10**6, str)
        )
        holder[key] = change(holder[key])


def _wrapped(holder: Any, key: Any, _document: Any, random: Random) -> None:
    holder[key] = random.choice(([holder[key]], [holder[key]] * 3, {"a": holder[key]}))


def _exchanged(holder: Any, key: Any, document: Any, random: Random) -> None:
    other, name = random.choice(list(_entries(document)))
    holder[key] = deepcopy(other[name])


def _renamed(holder: Any, key: Any, document: Any, random: Random) -> None:
    names = [name for _, name in _entries(document) if isinstance(name, str)]
    if isinstance(holder, dict) and names:
        holder[random.choice((random.choice(names), f"{key}x", str(key)[:-1], str(key).upper(), ""))] = holder.pop(key)
