"""Rows as text and files: in blocks of columns as they are computed, or one by one; CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import io
import json
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.files import whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TextIO

    Columns = Mapping[str, Sequence[Any]]
    Row = Sequence[Any]

__all__ = ["block_text", "csv_text", "parquet", "row_file", "streamed", "write_csv"]

_ROWS_AT_ONCE = 65_536


def write_csv(text: TextIO, rows: Iterable[Row]) -> None:
    """Write rows as CSV; nothing for what is absent."""
    csv.writer(text, lineterminator="\n").writerows(rows)


def csv_text(names: Row, rows: Iterable[Row], *, header: bool = True) -> str:
    """Return rows as CSV, below the names of their columns or not."""
    text = io.StringIO()
    if header:
        write_csv(text, [names])
    write_csv(text, rows)
    return text.getvalue()


def block_text(columns: Columns, kind: str, *, header: bool) -> str:
    """Return a block as ``csv``, with its header or not, or as ``jsonl``."""
    rows = zip(*columns.values(), strict=True)
    if kind == "jsonl":
        return "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
    return csv_text(tuple(columns), rows, header=header)


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
            yield block_text(_with_columns(block, names), kind, header=False)
    if names is None and early:
        yield _filled(early, tuple(dict.fromkeys(name for block in early for name in block)))


def _filled(blocks: list[Columns], names: tuple[str, ...]) -> str:
    return "".join(
        block_text(_with_columns(block, names), "csv", header=number == 0) for number, block in enumerate(blocks)
    )


def _with_columns(block: Columns, names: tuple[str, ...]) -> Columns:
    """Return a block with these columns, empty where it has none."""
    if tuple(block) == names:
        return block
    empty = [None] * len(next(iter(block.values())))
    return {name: block.get(name, empty) for name in names}


@contextmanager
def row_file(path: str | Path, columns: Mapping[str, type]) -> Iterator[Callable[[Row], None]]:
    """Give a function that adds a row to a file, which stands in its place when the block ends without an error.

    Args:
        path: a ``.csv`` or ``.parquet`` file.
        columns: their names and types; each row has its values in this order.

    Raises:
        InputError: another ending, or Parquet without pyarrow.
        OSError: a file that cannot be written.
    """
    kind = Path(path).suffix.lower()
    if kind not in (".csv", ".parquet"):
        asked = f", not {kind!r}" if kind else ""
        raise InputError(f"{path}: rows are written as .csv or .parquet{asked}")
    if kind == ".parquet":
        parquet()
    with whole_file(path) as file:
        table = _Parquet(file, columns) if kind == ".parquet" else _Csv(file, columns)
        rows: list[Row] = []

        def add(row: Row) -> None:
            rows.append(row)
            if len(rows) >= _ROWS_AT_ONCE:
                table.write(rows)
                rows.clear()

        try:
            yield add
            table.write(rows)
            table.close()
        except BaseException:
            table.give_up()
            raise


class _Csv:
    """Rows as CSV."""

    def __init__(self, file: IO[bytes], columns: Mapping[str, type]) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        write_csv(self._text, [tuple(columns)])

    def write(self, rows: Sequence[Row]) -> None:
        write_csv(self._text, rows)

    def close(self) -> None:
        self._text.detach()

    def give_up(self) -> None:
        """Leave what is not written."""


class _Parquet:
    """Rows as a Parquet table of typed columns."""

    def __init__(self, file: IO[bytes], columns: Mapping[str, type]) -> None:
        tables = parquet()
        import pyarrow as pa

        types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
        self._schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
        self._writer = tables.ParquetWriter(file, self._schema)
        self._make = pa.table

    def write(self, rows: Sequence[Row]) -> None:
        columns = list(zip(*rows, strict=True)) or [()] * len(self._schema)
        self._writer.write_table(self._make(dict(zip(self._schema.names, columns, strict=True)), schema=self._schema))

    def close(self) -> None:
        self._writer.close()

    def give_up(self) -> None:
        """Leave what is not written: at its end the writer would close the table in a file that is gone."""
        self._writer.is_open = False


def parquet() -> Any:
    """Return pyarrow's Parquet module.

    Raises:
        InputError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError("Parquet needs pyarrow", hint="pip install 'kvcalc[parquet]'") from None
    return pyarrow.parquet
