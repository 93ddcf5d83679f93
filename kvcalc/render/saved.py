"""Rows that are saved to a file part by part, so that an interrupted run can go on where it stopped.

Each part is written whole into a folder beside the file (``FILE.parts``), with a note of what the run is. A part's name
says its number, its rows, how many of them have no answer, and a digest of all that and its content: one that is not
what its name says, or is another run's, does not count. When all parts are there they become the file, in order, and
the folder goes.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.files import check_writable, whole_file, write_whole
from kvcalc.render.rows import block_text, parquet, write_csv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["SavedRows"]

_KINDS = ("csv", "jsonl", "parquet")
_NOTE, _LOCK = "run.json", "lock"
_PART = re.compile(r"(\d{9,})-(\d+)-(\d+)-[0-9a-f]{64}\.(?:csv|jsonl|parquet)")
_STARTS_AS_PART = re.compile(r"\d{9}")


def _kind_of(path: str | Path) -> str:
    """Return the format that a file's ending names: ``csv``, ``jsonl`` or ``parquet``.

    Raises:
        InputError: another ending, or Parquet without pyarrow.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in _KINDS:
        asked = f", not {kind!r}" if kind else ""
        raise InputError(f"{path}: rows are saved as {', '.join(f'.{name}' for name in _KINDS)}{asked}")
    if kind == "parquet":
        parquet()
    return kind


class SavedRows:
    """The parts of a run and the file they become; left without `finish`, the parts stay, unless there are none.

    Args:
        path: the file; its ending says the format.
        run: what decides the rows, by what it is called: parts of another run are not mixed with this one's.
        resume: whether to go on with the parts that are there.

    Raises:
        InputError: parts of another run, of this one without ``resume``, or of one that is under way; a format that is
            not known, or a file that cannot be written.
        OSError: a folder that cannot be written to.
    """

    def __init__(self, path: str | Path, *, run: Mapping[str, Any], resume: bool) -> None:
        self.path = Path(path)
        check_writable([path])
        self._kind = _kind_of(path)
        self._folder = self.path.with_name(f"{self.path.name}.parts")
        self._note = json.dumps(run, sort_keys=True, indent=1, default=str).encode()
        self._parts: dict[int, Path] = {}
        self._is_finished = False
        self.rejected = 0
        self._folder.mkdir(exist_ok=True)
        self._lock = self._locked()
        try:
            self._check(resume=resume)
            write_whole(self._folder / _NOTE, self._note)
            self._look()
        except BaseException:
            if not (self._folder / _NOTE).exists():
                self._remove()
            self._lock.close()
            raise

    def _locked(self) -> IO[bytes]:
        """Return an open file that no other run can lock while this one has it."""
        busy = InputError(f"another run is saving its rows to {self.path}", hint="wait for it, or save elsewhere")
        try:
            lock = (self._folder / _LOCK).open("ab")
        except FileNotFoundError:
            raise busy from None  # it has just ended, and its folder with it
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise busy from None
        except (ImportError, OSError):
            pass  # a system, or a file system, without locks
        if not os.fstat(lock.fileno()).st_nlink:
            lock.close()
            raise busy
        return lock

    def _check(self, *, resume: bool) -> None:
        """Refuse the parts of another run."""
        note = self._folder / _NOTE
        if not note.exists():
            return
        if not resume:
            hint = f"go on with --resume, or remove {self._folder}"
            raise InputError(f"{self._folder} holds the parts of a run that was stopped", hint=hint)
        try:
            before = json.loads(note.read_bytes())
        except ValueError:
            before = None
        now = json.loads(self._note)
        if before == now:
            return
        known = before if isinstance(before, dict) else {"options": None}
        changed = sorted(name for name in known.keys() | now.keys() if known.get(name) != now.get(name))
        if "options" in changed:
            hint = f"give the same options, or remove {self._folder}"
            raise InputError(f"{self._folder} holds the parts of a run with other options", hint=hint)
        hint = f"put it back, or remove {self._folder} and compute everything again"
        raise InputError(f"{self._folder}: {' and '.join(changed)} changed since these rows were computed", hint=hint)

    def _look(self) -> None:
        """Find the parts that are what they say; remove what is not."""
        for path in sorted(self._folder.iterdir()):
            if not _is_part(path):
                continue
            if self._is_whole(path, path.read_bytes()):
                self._parts[int(path.name.partition("-")[0])] = path
            else:
                self.rejected += 1
                path.unlink()

    def _is_whole(self, path: Path, content: bytes) -> bool:
        """Return whether a file is a part of this run, with the content that it was written with."""
        named = _PART.fullmatch(path.name)
        return named is not None and path == self._part(*map(int, named.groups()), content=content)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_finished or not any(map(_is_part, self._folder.iterdir())):
            self._remove()
        self._lock.close()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of the parts that are there."""
        return frozenset(self._parts)

    @property
    def failed(self) -> int:
        """Count the rows of all parts that have no answer."""
        return sum(int(path.name.split("-")[2]) for path in self._parts.values())

    def save(self, number: int, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write a part, whole or not at all; its column ``error`` is none where a row has an answer."""
        is_table = self._kind == "parquet"
        content = _table(columns) if is_table else block_text(columns, self._kind, header=True).encode()
        errors = columns["error"]
        failed = sum(error is not None for error in errors)
        path = self._part(number, len(errors), failed, content=content)
        write_whole(path, content)
        self._parts[number] = path

    def _part(self, *counts: int, content: bytes) -> Path:
        """Return the path of a part of this run with this number, so many rows, failed ones, and this content."""
        name = "{:09d}-{}-{}".format(*counts)
        digest = hashlib.sha256(b"\0".join((self._note, name.encode(), content))).hexdigest()
        return self._folder / f"{name}-{digest}.{self._kind}"

    def finish(self, parts: int) -> None:
        """Make the parts the file: what a part has no column for is empty in it.

        Raises:
            KvcalcError: a part that is no longer as it was written.
            OSError: a file that cannot be written.
        """
        join = {"csv": _join_csv, "jsonl": _join_lines, "parquet": _join_tables}[self._kind]
        with whole_file(self.path) as file:
            join(file, [self._parts[number] for number in range(parts)], self._content)
        self._is_finished = True

    def _content(self, path: Path) -> bytes:
        content = path.read_bytes()
        if not self._is_whole(path, content):
            raise KvcalcError(f"{path} is not as it was written", hint="--resume computes it again")
        return content


def _is_part(path: Path) -> bool:
    """Return whether a file's name is that of a part, whole or not."""
    return _STARTS_AS_PART.match(path.name) is not None


def _join_csv(file: IO[bytes], parts: Sequence[Path], content: Callable[[Path], bytes]) -> None:
    headers = []
    for part in parts:
        with part.open(encoding="utf-8", newline="") as text:
            headers.append(next(csv.reader(text), []))
    names = list(dict.fromkeys(name for header in headers for name in header))
    whole = io.TextIOWrapper(file, encoding="utf-8", newline="")
    write_csv(whole, [names])
    for part, header in zip(parts, headers, strict=True):
        rows = io.StringIO(content(part).decode(), newline="")
        if header == names:
            rows.readline()
            shutil.copyfileobj(rows, whole)
        else:
            write_csv(whole, ([row.get(name) for name in names] for row in csv.DictReader(rows)))
    whole.detach()


def _join_lines(file: IO[bytes], parts: Sequence[Path], content: Callable[[Path], bytes]) -> None:
    for part in parts:
        file.write(content(part))


def _join_tables(file: IO[bytes], parts: Sequence[Path], content: Callable[[Path], bytes]) -> None:
    """Join tables whose columns may be of other types where a part has no value, or whole numbers only."""
    import pyarrow as pa

    tables = parquet()
    schema = pa.unify_schemas(
        [tables.read_schema(pa.BufferReader(content(part))) for part in parts], promote_options="permissive"
    )
    writer = tables.ParquetWriter(file, schema)
    try:
        for part in parts:
            table = tables.read_table(pa.BufferReader(content(part)))
            for name in schema.names:
                if name not in table.column_names:
                    table = table.append_column(name, pa.nulls(len(table)))
            writer.write_table(table.select(schema.names).cast(schema))
        writer.close()
    finally:
        writer.is_open = False  # what could not be written is not tried again


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
