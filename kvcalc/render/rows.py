"""Rows that come in blocks of columns, as text that is printed or written while the next block is computed."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Columns = Mapping[str, Sequence[Any]]

__all__ = ["block_text", "streamed"]


def block_text(columns: Columns, kind: str, *, header: bool) -> str:
    """Return a block as ``csv``, with its header or not, or as ``jsonl``."""
    rows = zip(*columns.values(), strict=True)
    if kind == "jsonl":
        return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def streamed(blocks: Iterable[Columns], kind: str) -> Iterator[str]:
    """Yield the text of blocks as they come; CSV waits for the first block that has all columns.

    Args:
        blocks: a block whose points cannot be computed has fewer columns than the others.
        kind: ``csv`` or ``jsonl``.
    """
    if kind == "jsonl":
        yield from (block_text(block, kind, header=False) for block in blocks)
        return
    early: list[Columns] = []
    names: tuple[str, ...] | None = None
    for block in blocks:
        if names is None:
            early.append(block)
            if all(block["error"]):
                continue
            names = tuple(block)
            yield _filled(early, names)
        else:
            yield block_text(_with(block, names), kind, header=False)
    if names is None and early:
        yield _filled(early, tuple(dict.fromkeys(name for block in early for name in block)))


def _filled(blocks: list[Columns], names: tuple[str, ...]) -> str:
    return "".join(block_text(_with(block, names), "csv", header=number == 0) for number, block in enumerate(blocks))


def _with(block: Columns, names: tuple[str, ...]) -> Columns:
    """Return a block with these columns, empty where it has none."""
    if tuple(block) == names:
        return block
    empty = [None] * len(next(iter(block.values())))
    return {name: block.get(name, empty) for name in names}
