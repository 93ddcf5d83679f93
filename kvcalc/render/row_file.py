"""A table that is written row by row, whole or not at all: CSV, or Parquet."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kvcalc.core.errors import InputError
from kvcalc.render.files import beside
from kvcalc.render.saved import parquet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__ = ["RowFile"]

_ROWS_AT_ONCE = 65_536


class RowFile:
    """A file of rows with the same columns, which stands in its place when it is closed without an error.

    Args:
        path: a ``.csv`` or ``.parquet`` file.
        columns: their names and types.

    Raises:
        InputError: another ending, or Parquet without pyarrow.
        OSError: a folder that cannot be written to.
    """

    def __init__(self, path: str | Path, columns: Mapping[str, type]) -> None:
        self._path = Path(path)
        self._columns = dict(columns)
        self._rows: list[Sequence[Any]] = []
        kind = self._path.suffix.lower()
        if kind not in (".csv", ".parquet"):
            raise InputError(f"{path}: rows are written as .csv or .parquet, not {kind or 'this'!r}")
        self._part = beside(self._path)
        self._table = _Parquet(self._part, self._columns) if kind == ".parquet" else _Csv(self._part, self._columns)

    def add(self, row: Sequence[Any]) -> None:
        """Take in a row, its values in the order of the columns."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._write()

    def _write(self) -> None:
        self._table.write(self._rows)
        self._rows = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._write()
        self._table.close()
        if kind is None:
            self._part.replace(self._path)
        else:
            self._part.unlink(missing_ok=True)


class _Csv:
    def __init__(self, path: Path, columns: Mapping[str, type]) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(columns)

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        self._writer.writerows(rows)

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: Path, columns: Mapping[str, type]) -> None:
        tables = parquet()
        import pyarrow as pa

        types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
        self._schema = pa.schema([(name, types[kind]) for name, kind in columns.items()])
        self._writer = tables.ParquetWriter(path, self._schema)
        self._make = pa.table

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        columns = list(zip(*rows, strict=True)) or [()] * len(self._schema)
        self._writer.write_table(self._make(dict(zip(self._schema.names, columns, strict=True)), schema=self._schema))

    def close(self) -> None:
        self._writer.close()
