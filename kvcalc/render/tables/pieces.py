"""Pieces that the tables of several reports are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text
from kvcalc.render.layout import Column, Grid, Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.render.layout import Part

__all__ = ["facts", "grid", "heading", "memory_text", "misfit_lines", "note_lines"]


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


def memory_text(memory_bytes: int, *, gpu: str, gpus: int) -> str:
    """Return the memory of an accelerator: ``79.65 GiB of one h100-sxm``."""
    return f"{bytes_text(memory_bytes)} of {'each' if gpus > 1 else 'one'} {gpu}"


def misfit_lines(
    over: Sequence[int], *, rows: int, available_bytes: int, memory: str, gpus: int, reason: str
) -> list[Part]:
    """Return the lines above speeds that are hypothetical, since their batch does not fit.

    Args:
        over: bytes of weights and cache on the fullest accelerator, of each row that does not fit.
        rows: how many rows there are.
        available_bytes: memory of one accelerator.
        memory: the same, as `memory_text` says it.
        gpus: accelerators.
        reason: why the first of them does not fit under which engine.
    """
    if not over:
        return []
    need = bytes_text(min(over)) + (" per GPU" if gpus > 1 else "")
    if min(over) <= available_bytes:
        which = "" if rows == 1 else f"{len(over)} of {rows} rows, "
        needs = f"DOES NOT FIT: {which}{reason} (weights and cache: {need} of the {memory})."
    else:
        which = f"this needs {need}" if rows == 1 else f"{len(over)} of {rows} rows, from {need} on"
        needs = f"DOES NOT FIT: {which}, more than the {memory}."
    return [Text(f"{needs} Speeds marked * are hypothetical.", style="bold red"), Text()]
