"""Lines, grids and drawings laid out for a terminal or a file: what tables are made of.

A grid that is too wide gives way in this order: prose is broken between words, columns are left out by their rank, and
at last rows become records side by side. A word is never broken, nor a number from its unit.

Importing a library for this would take longer than the calculation, so the little that is needed stands here.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal

from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Column", "Drawing", "Grid", "Part", "Text", "laid_out", "words_of", "wrapped"]

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_GAP = 2
# Prose is broken down to this width before a column is left out.
_PROSE_WIDTH = 14
# What stands beside a name in lines without a header is broken down to this width before it stands below.
_REMARK_WIDTH, _BESIDE_WIDTH = 20, 24
_HANGING = 2
_ASCII = str.maketrans(
    {"µ": "u", "…": "...", "–": "-", "—": "-", "×": "x", "·": "*", "γ": "gamma", "α": "alpha", "≤": "<=", "≥": ">="}  # noqa: RUF001
)
_PREFIXES = ("", "k", "K", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi")
_SCALED = ("B", "FLOP", "B/s", "FLOP/s", "FLOP/B", "")
_UNITS = frozenset([f"{prefix}{unit}" for prefix in _PREFIXES for unit in _SCALED if prefix + unit] +
                   ["ms", "µs", "us", "ns", "s", "min", "h", "W", "J", "x", "%", "*"])  # fmt: skip


@dataclass(slots=True)
class Text:
    """A line of words.

    Args:
        plain: the line.
        style: words such as ``bold red``.
        wraps: whether it may be broken between words where it is wider than the terminal.
    """

    plain: str = ""
    style: str = ""
    wraps: bool = True


@dataclass(slots=True)
class Drawing:
    """A chart in characters.

    Args:
        draw: returns its lines for a width, in ASCII alone or not.
    """

    draw: Callable[[int, bool], str]


@dataclass(slots=True)
class Column:
    """A column of a grid.

    Args:
        name: what stands above it.
        justify: the side its cells stand on; numbers stand right and are never broken.
        style: how they are printed.
        wraps: whether its cells may be broken between words where the grid is too wide.
        rank: when it is left out of a grid that is too wide: the highest first, 0 never.
    """

    name: str = ""
    justify: Literal["left", "right"] = "left"
    style: str = ""
    wraps: bool = True
    rank: int = 0


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


Part = Text | Grid | Drawing


def laid_out(parts: Iterable[Part], *, width: int, styled: bool, ascii_only: bool = False, wraps: bool = True) -> str:
    """Return parts as text that ends with a newline, without blanks at the ends of lines.

    Args:
        parts: from top to bottom.
        width: columns of the terminal, which all keep to but words that are longer.
        styled: whether styles are printed.
        ascii_only: whether no character beyond ASCII is printed.
        wraps: whether lines of words are broken too; grids always are.
    """
    lines: list[str] = []
    for part in parts:
        match part:
            case Grid():
                lines += _grid_lines(part, width, styled=styled)
            case Drawing():
                lines += part.draw(width, ascii_only).split("\n")
            case Text():
                broken = _text_lines(part, width) if wraps else part.plain.split("\n")
                lines += [_styled(line, part.style, styled=styled) for line in broken]
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return text.translate(_ASCII).encode("ascii", "replace").decode() if ascii_only else text


def words_of(text: str) -> list[str]:
    """Return the words of a text, a number and its unit as one, and a shape in brackets.

    >>> words_of("needs 1.25 GiB of 24 GB, or 8,192 tokens")
    ['needs', '1.25 GiB', 'of', '24 GB,', 'or', '8,192', 'tokens']
    >>> words_of("keys [1, 2, 8]")
    ['keys', '[1, 2, 8]']
    """
    words: list[str] = []
    for word in text.split(" "):
        is_unit = bool(words) and words[-1][-1:].isdigit() and word.rstrip(".,;:)") in _UNITS
        is_in_brackets = bool(words) and words[-1].startswith("[") and words[-1].endswith(",")
        if is_unit or (is_in_brackets and word.rstrip(",]").isdigit()):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def wrapped(text: str, width: int) -> list[str]:
    """Return a text as lines of at most that width, but words that are longer; there is one line at least.

    >>> wrapped("a cache of 1.25 GiB and more", 12)
    ['a cache of', '1.25 GiB and', 'more']
    """
    if len(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in words_of(text):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line]


def _text_lines(text: Text, width: int) -> Iterator[str]:
    for line in text.plain.split("\n"):
        if len(line) <= width or not text.wraps:
            yield line
            continue
        body = line.lstrip()
        indent = line[: len(line) - len(body)]
        first, *rest = wrapped(body, width - len(indent) - _HANGING)
        yield indent + first
        yield from (f"{indent}{'':{_HANGING}}{each}" for each in rest)


def _styled(text: str, style: str, *, styled: bool) -> str:
    codes = ";".join(_CODES[word] for word in style.split() if word in _CODES)
    return f"\x1b[{codes}m{text}\x1b[0m" if styled and codes and text.strip() else text


def _grid_lines(grid: Grid, width: int, *, styled: bool) -> Iterator[str]:
    shown, left_out = _narrowed(grid, width)
    if _needed(shown, prose=0 if grid.header else _REMARK_WIDTH) > width and len(grid.columns) > 1:
        records = _record_lines if grid.header else _folded_lines
        yield from records(grid, width, styled=styled)
        return
    header = [[column.name for column in shown.columns]] if shown.header else []
    widths = _widths(shown, width)
    for index, row in enumerate([*header, *shown.rows]):
        cells = [wrapped(cell, size) for cell, size in zip(row, widths, strict=True)]
        for line in range(max(map(len, cells), default=0)):
            printed = []
            for column, size, lines in zip(shown.columns, widths, cells, strict=True):
                text = lines[line] if line < len(lines) else ""
                text = text.rjust(size) if column.justify == "right" else text.ljust(size)
                style = "bold" if shown.header and index == 0 else column.style
                printed.append(_styled(text, style, styled=styled))
            yield (" " * _GAP).join(printed)
    if left_out:
        note = f"(not shown: {', '.join(left_out)}; a wider terminal or --output csv has every column)"
        yield from (_styled(line, "dim", styled=styled) for line in wrapped(note, width))


def _narrowed(grid: Grid, width: int) -> tuple[Grid, list[str]]:
    """Return a grid without the columns that it has no room for, and their names."""
    left_out: list[str] = []
    while _needed(grid, prose=_PROSE_WIDTH) > width:
        rank = max((column.rank for column in grid.columns), default=0)
        if not rank:
            break
        last = max(index for index, column in enumerate(grid.columns) if column.rank == rank)
        left_out.insert(0, grid.columns[last].name)
        columns = [column for index, column in enumerate(grid.columns) if index != last]
        rows = [[cell for index, cell in enumerate(row) if index != last] for row in grid.rows]
        grid = replace(grid, columns=columns, rows=rows)
    return grid, left_out


def _cells(grid: Grid, index: int) -> Iterator[str]:
    if grid.header:
        yield grid.columns[index].name
    yield from (row[index] for row in grid.rows)


def _natural(grid: Grid, index: int) -> int:
    return max(map(len, _cells(grid, index)), default=0)


def _least(grid: Grid, index: int) -> int:
    """Return the width below which a column cannot go: its longest word, or all of it where it does not wrap."""
    column = grid.columns[index]
    if not column.wraps or column.justify == "right":
        names = max(map(len, words_of(column.name))) if grid.header and column.wraps else 0
        return max([names, *(len(row[index]) for row in grid.rows)])
    return max((len(word) for cell in _cells(grid, index) for word in words_of(cell)), default=0)


def _needed(grid: Grid, *, prose: int = 0) -> int:
    """Return the least width of a grid, its prose no narrower than ``prose``."""
    columns = range(len(grid.columns))
    minimal = [max(_least(grid, index), min(prose, _natural(grid, index))) for index in columns]
    return sum(minimal) + _GAP * (len(minimal) - 1)


def _widths(grid: Grid, room: int) -> list[int]:
    """Return the width of each column: what its cells need; where that is too much, the widest give way first."""
    columns = range(len(grid.columns))
    widths, minimal = [_natural(grid, index) for index in columns], [_least(grid, index) for index in columns]
    excess = sum(widths) + _GAP * (len(widths) - 1) - room
    while excess > 0:
        free = [index for index in columns if widths[index] > minimal[index]]
        if not free:
            break
        widest = max(free, key=lambda index: widths[index])
        below = max([minimal[widest], *(widths[index] for index in free if widths[index] < widths[widest])])
        step = min(excess, max(1, widths[widest] - below))
        widths[widest] -= step
        excess -= step
    return widths


def _folded_lines(grid: Grid, width: int, *, styled: bool) -> Iterator[str]:
    """Return a grid without a header, each cell on lines of its own beside its row's name, or below a long one."""
    indent = max((len(row[0]) for row in grid.rows), default=0) + _GAP
    is_beside = width - indent >= _BESIDE_WIDTH
    for name, *cells in grid.rows:
        texts = [cell for cell in cells if cell]
        joined = (" " * _GAP).join(texts)
        room = width - (indent if is_beside else 2 * _HANGING)
        lines = [joined] if len(joined) <= width - indent else [each for text in texts for each in wrapped(text, room)]
        if is_beside or len(joined) <= width - indent:
            first, *lines = lines or [""]
            yield _styled(f"{name:<{indent}}", grid.columns[0].style, styled=styled) + first
        else:
            yield _styled(name, grid.columns[0].style, styled=styled)
        yield from (" " * (width - room) + line for line in lines)


def _record_lines(grid: Grid, width: int, *, styled: bool) -> Iterator[str]:
    """Return rows as records, as many side by side as there is room for: a line for each column, its name first."""
    indent = max((len(column.name) for column in grid.columns), default=0) + _GAP
    start = 0
    while start < len(grid.rows):
        taken, room = 0, width - indent
        while start + taken < len(grid.rows) and room > 0:
            room -= max(map(len, grid.rows[start + taken])) + _GAP
            taken += room + _GAP >= 0
        records = grid.rows[start : start + max(1, taken)]
        if start:
            yield ""
        start += len(records)
        sizes = [min(width - indent, max(map(len, record))) for record in records]
        for index, column in enumerate(grid.columns):
            cells = [wrapped(record[index], size) for record, size in zip(records, sizes, strict=True)]
            for line in range(max(map(len, cells)) if any(record[index] for record in records) else 0):
                texts = [lines[line] if line < len(lines) else "" for lines in cells]
                named = _styled(f"{'' if line else column.name:<{indent}}", "dim", styled=styled)
                yield named + "  ".join(f"{text:<{size}}" for text, size in zip(texts, sizes, strict=True))
