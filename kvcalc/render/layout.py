"""Lines and grids laid out for a terminal or a file: what tables are made of.

Importing a library for this would take longer than the calculation, so the little that is needed stands here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Column", "Grid", "Part", "Text", "laid_out"]

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_GAP = 2


@dataclass(slots=True)
class Text:
    """A line that is printed as it is, however wide the terminal.

    Args:
        plain: the line.
        style: words such as ``bold red``.
    """

    plain: str = ""
    style: str = ""


@dataclass(slots=True)
class Column:
    """A column of a grid.

    Args:
        name: what stands above it.
        justify: the side its cells stand on.
        style: how they are printed.
        wraps: whether its cells may be broken into lines where the grid is too wide.
    """

    name: str = ""
    justify: Literal["left", "right"] = "left"
    style: str = ""
    wraps: bool = True


@dataclass(slots=True)
class Grid:
    """Cells in columns.

    Args:
        columns: the columns.
        rows: a cell for each column.
        header: whether the columns' names are printed.
    """

    columns: list[Column]
    rows: list[list[str]] = field(default_factory=list)
    header: bool = True


Part = Text | Grid


def laid_out(parts: Iterable[Part], *, width: int, styled: bool) -> str:
    """Return parts as text that ends with a newline, without blanks at the ends of lines.

    Args:
        parts: from top to bottom.
        width: columns of the terminal, which grids keep to.
        styled: whether styles are printed.
    """
    lines: list[str] = []
    for part in parts:
        if isinstance(part, Grid):
            lines += _grid_lines(part, width, styled=styled)
        else:
            lines += [_styled(line, str(part.style), styled=styled) for line in part.plain.split("\n")]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _styled(text: str, style: str, *, styled: bool) -> str:
    codes = ";".join(_CODES[word] for word in style.split() if word in _CODES)
    return f"\x1b[{codes}m{text}\x1b[0m" if styled and codes and text.strip() else text


def _grid_lines(grid: Grid, width: int, *, styled: bool) -> Iterator[str]:
    header = [[column.name for column in grid.columns]] if grid.header else []
    widths = _widths(grid, [*header, *grid.rows], width)
    for index, row in enumerate([*header, *grid.rows]):
        cells = [_wrapped(cell, size) for cell, size in zip(row, widths, strict=True)]
        for line in range(max(map(len, cells), default=0)):
            shown = []
            for column, size, lines in zip(grid.columns, widths, cells, strict=True):
                text = lines[line] if line < len(lines) else ""
                text = text.rjust(size) if column.justify == "right" else text.ljust(size)
                style = "bold" if grid.header and index == 0 else column.style
                shown.append(_styled(text, style, styled=styled))
            yield (" " * _GAP).join(shown)


def _widths(grid: Grid, rows: Sequence[Sequence[str]], most: int) -> list[int]:
    """Return the width of each column: what its cells need; where that is too much, the widest give way first."""
    widths = [max((len(row[index]) for row in rows), default=0) for index in range(len(grid.columns))]
    free = [index for index, column in enumerate(grid.columns) if column.wraps]
    excess = sum(widths) + _GAP * (len(widths) - 1) - most
    while excess > 0 and free:
        widest = max(widths[index] for index in free)
        if widest <= 1:
            break
        tied = [index for index in free if widths[index] == widest]
        below = max((widths[index] for index in free if widths[index] < widest), default=1)
        cut = min(widest - below, -(-excess // len(tied)))
        for index in tied:
            step = min(cut, excess)
            widths[index] -= step
            excess -= step
    return widths


def _wrapped(cell: str, size: int) -> list[str]:
    """Return a cell as lines of at most that width, broken between words, or inside those that are longer."""
    if len(cell) <= size:
        return [cell]
    lines, line = [], ""
    for word in cell.split(" "):
        rest = word
        if line and len(line) + 1 + len(rest) > size:
            lines.append(line)
            line = ""
        elif line:
            line += f" {rest}"
            continue
        while len(rest) > size:
            lines.append(rest[:size])
            rest = rest[size:]
        line = rest
    return [*lines, line]
