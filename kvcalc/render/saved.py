"""Rows that are saved to a file part by part, so that an interrupted run can go on where it stopped.

Each part is written whole into a folder beside the file (``FILE.parts``), with a note of what the run is. When all
parts are there they become the file, in order, and the folder goes.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.render.files import write_whole
from kvcalc.render.rows import block_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SavedRows", "parquet", "saved_kind"]

_KINDS = ("csv", "jsonl", "parquet")
_NOTE = "run.json"


def saved_kind(path: str | Path) -> str:
    """Return the format that a file's ending names: ``csv``, ``jsonl`` or ``parquet``.

    Raises:
        InputError: another ending, or Parquet without pyarrow.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in _KINDS:
        raise InputError(
            f"{path}: rows are saved as {', '.join(f'.{name}' for name in _KINDS)}, not {kind or 'this'!r}"
        )
    if kind == "parquet":
        parquet()
    return kind


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


class SavedRows:
    """The parts of a run and the file they become.

    Args:
        path: the file; its ending says the format.
        run: what is run, as plain data: parts of another run are not mixed with it.
        resume: whether to go on with the parts that are there.

    Raises:
        InputError: parts of another run, or of this one without ``resume``; a format that is not known.
        OSError: a folder that cannot be written to.
    """

    def __init__(self, path: str | Path, *, run: Mapping[str, Any], resume: bool) -> None:
        self.path = Path(path)
        self._kind = saved_kind(path)
        self._folder = self.path.with_name(f"{self.path.name}.parts")
        note = json.dumps(run, sort_keys=True, indent=1)
        if self._folder.exists():
            self._check(note, resume=resume)
        else:
            self._folder.mkdir()
            write_whole(self._folder / _NOTE, note.encode())

    def _check(self, note: str, *, resume: bool) -> None:
        if not resume:
            hint = f"go on with --resume, or remove {self._folder}"
            raise InputError(f"{self._folder} holds the parts of a run that was stopped", hint=hint)
        found = self._folder / _NOTE
        if found.exists() and found.read_text(encoding="utf-8") != note:
            hint = f"give the same options, or remove {self._folder}"
            raise InputError(f"{self._folder} holds the parts of a run with other options", hint=hint)
        write_whole(found, note.encode())

    def there(self) -> frozenset[int]:
        """Return the numbers of the parts that are there."""
        return frozenset(int(found.stem) for found in self._folder.glob(f"*.{self._kind}") if found.stem.isdigit())

    def save(self, number: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write a part, whole or not at all."""
        is_table = self._kind == "parquet"
        content = _table(columns) if is_table else block_text(columns, self._kind, header=True).encode()
        write_whole(self._part(number), content)

    def _part(self, number: int) -> Path:
        return self._folder / f"{number:09d}.{self._kind}"

    def finish(self, parts: int) -> None:
        """Make the parts the file: what a part has no column for is empty in it.

        Raises:
            OSError: a file that cannot be written.
        """
        whole = self._folder / f"whole.{self._kind}.tmp"
        found = [self._part(number) for number in range(parts)]
        join = {"csv": _join_csv, "jsonl": _join_lines, "parquet": _join_tables}[self._kind]
        join(whole, found)
        whole.replace(self.path)
        shutil.rmtree(self._folder)


def _join_csv(whole: Path, parts: Sequence[Path]) -> None:
    headers = []
    for part in parts:
        with part.open(encoding="utf-8", newline="") as file:
            headers.append(next(csv.reader(file)))
    names = list(dict.fromkeys(name for header in headers for name in header))
    with whole.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for part, header in zip(parts, headers, strict=True):
            with part.open(encoding="utf-8", newline="") as rows:
                if header == names:
                    rows.readline()
                    shutil.copyfileobj(rows, file)
                else:
                    writer.writerows(csv.DictReader(rows))


def _join_lines(whole: Path, parts: Sequence[Path]) -> None:
    with whole.open("wb") as file:
        for part in parts:
            with part.open("rb") as lines:
                shutil.copyfileobj(lines, file)


def _join_tables(whole: Path, parts: Sequence[Path]) -> None:
    """Join tables whose columns may be of other types where a part has no value, or whole numbers only."""
    import pyarrow as pa

    tables = parquet()
    schema = pa.unify_schemas([tables.read_schema(part) for part in parts], promote_options="permissive")
    with tables.ParquetWriter(whole, schema) as writer:
        for part in parts:
            table = tables.read_table(part)
            for name in schema.names:
                if name not in table.column_names:
                    table = table.append_column(name, pa.nulls(len(table)))
            writer.write_table(table.select(schema.names).cast(schema))


def _table(columns: Mapping[str, Sequence[Any]]) -> bytes:
    import pyarrow as pa

    text = io.BytesIO()
    parquet().write_table(pa.table({name: _one_type(values) for name, values in columns.items()}), text)
    return text.getvalue()


def _one_type(values: Sequence[Any]) -> Sequence[Any]:
    """Return numbers of a column that are partly whole as floats, as a table of typed columns wants them."""
    if any(type(value) is float for value in values):
        return [float(value) if type(value) is int else value for value in values]
    return values
