"""A table that is written row by row, whole or not at all: CSV, or Parquet."""

from __future__ import annotations

import csv
import io
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.render.files import whole_file
from kvcalc.render.saved import parquet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Row = Sequence[Any]

__all__ = ["row_file"]

_ROWS_AT_ONCE = 65_536


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
    def __init__(self, file: IO[bytes], columns: Mapping[str, type]) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        self._writer = csv.writer(self._text, lineterminator="\n")
        self._writer.writerow(columns)

    def write(self, rows: Sequence[Row]) -> None:
        self._writer.writerows(rows)

    def close(self) -> None:
        self._text.detach()

    def give_up(self) -> None:
        """Leave what is not written."""


class _Parquet:
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
