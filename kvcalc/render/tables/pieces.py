"""Pieces that the tables of several reports are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import JustifyMethod, RenderableType

__all__ = ["facts", "grid", "heading", "note_lines"]


_WORDS = ("limiter", "fits", "reason")


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """Return a table whose first ``left`` columns, and those of words by name, stand left and numbers right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, name in enumerate(columns):
        side: JustifyMethod = "left" if place < left or name in _WORDS else "right"
        table.add_column(name, justify=side, header_style="bold", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def heading(text: str) -> Text:
    """Return a line in bold."""
    return Text(text, style="bold")


def facts(rows: Iterable[tuple[str, ...]]) -> Table:
    """Return lines of a name, a value and a remark."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_column(style="dim")
    for row in rows:
        table.add_row(*(Text(cell) for cell in (*row, "", "")[:3]))
    return table


def note_lines(notes: Sequence[str]) -> list[RenderableType]:
    """Return the notes of a report, one a line."""
    return [Text(f"note: {note}", style="dim") for note in notes]
