"""Pieces that the tables of several reports are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.layout import Column, Grid, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.render.layout import Part

__all__ = ["facts", "grid", "heading", "note_lines"]


_WORDS = ("limiter", "fits", "reason")


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Grid:
    """Return a table whose first ``left`` columns, and those of words by name, stand left and numbers right."""
    named = [
        Column(name=name, justify="left" if place < left or name in _WORDS else "right")
        for place, name in enumerate(columns)
    ]
    return Grid(named, [list(row) for row in rows])


def heading(text: str) -> Text:
    """Return a line in bold."""
    return Text(text, style="bold")


def facts(rows: Iterable[tuple[str, ...]]) -> Grid:
    """Return lines of a name, a value and a remark."""
    columns = [Column(style="dim", wraps=False), Column(), Column(style="dim")]
    return Grid(columns, [[*row, "", ""][:3] for row in rows], header=False)


def note_lines(notes: Sequence[str]) -> list[Part]:
    """Return the notes of a report, one a line."""
    return [Text(f"note: {note}", style="dim") for note in notes]
