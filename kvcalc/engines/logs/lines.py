"""The lines of a log that may say something: found by fixed words, so that noise costs next to nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Line", "marked_lines"]

# A configuration fits into one line of some thousand characters; a marker's lines into some hundred.
_MAX_CHARACTERS = 40_000
_MAX_BEFORE_MARKER = 20_000
_MAX_LINES = 1_000
_FOLLOWING_CHARACTERS = 1_500


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log.

    Args:
        number: its number, from 1.
        text: the line, cut where it is far too long.
        rest: what follows its first marker, in this line and the next ones.
    """

    number: int
    text: str
    rest: str

    @property
    def onward(self) -> str:
        """Its marker and what follows, on one line, for messages that were wrapped."""
        return " ".join(self.rest.split())


def marked_lines(text: str, markers: Iterable[str]) -> Iterator[Line]:
    r"""Yield the lines that hold any of the markers, in order; at most 1,000 for each marker.

    >>> [line.number for line in marked_lines("a\nb x\nc\nx y", ["x", "y"])]
    [2, 4]
    """
    first_marker: dict[int, int] = {}
    for marker in markers:
        for start, at in _places(text, marker):
            first_marker[start] = min(at, first_marker.get(start, at))
    number, counted = 1, 0
    for start in sorted(first_marker):
        number += text.count("\n", counted, start)
        counted = start
        begin = start if first_marker[start] - start < _MAX_BEFORE_MARKER else first_marker[start] - _MAX_BEFORE_MARKER
        end = text.find("\n", first_marker[start])
        end = len(text) if end < 0 else end
        rest = text[first_marker[start] : first_marker[start] + _FOLLOWING_CHARACTERS]
        yield Line(number, text[begin : min(end, begin + _MAX_CHARACTERS)], rest)


def _places(text: str, marker: str) -> Iterator[tuple[int, int]]:
    """Yield start of line and place of a marker, once a line."""
    at = text.find(marker)
    for _ in range(_MAX_LINES):
        if at < 0:
            return
        yield text.rfind("\n", 0, at) + 1, at
        end = text.find("\n", at)
        if end < 0:
            return
        at = text.find(marker, end + 1)
