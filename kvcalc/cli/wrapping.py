"""Words broken into lines, and names beside them: what help is made of."""

from __future__ import annotations

TYPE_CHECKING = False  # the library that has it takes longer to load than the overview to print
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["entry", "wrapped"]

_GAP = 2


def entry(names: str, text: str, width: int, *, names_width: int) -> Iterator[str]:
    """Yield the lines of a name and its text, which stand beside each other; a longer name has a line of its own.

    >>> list(entry("--batch", "Sequences at once.", 28, names_width=8))
    ['  --batch   Sequences at', '            once.']
    """
    indent = " " * (_GAP + names_width + _GAP)
    lines = wrapped(text, width - len(indent), "")
    if len(names) <= names_width:
        yield f"{' ' * _GAP}{names:<{names_width}}{' ' * _GAP}{lines[0]}"
        lines = lines[1:]
    else:
        yield f"{' ' * _GAP}{names}"
    yield from (indent + line for line in lines)


def wrapped(text: str, width: int, indent: str) -> list[str]:
    """Return the lines of a text, each at most so many characters wide without its indent.

    >>> wrapped("Bytes of the cache", 12, "  ")
    ['  Bytes of the', '  cache']
    """
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > width:
            lines.append(indent + line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, indent + line]
