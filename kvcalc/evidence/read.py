"""Records from files: YAML lists of printed speeds, and CSV tables recognised by their columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, ProfileError
from kvcalc.core.units import GIB, seconds_of
from kvcalc.evidence.record import Record
from kvcalc.evidence.runs import REQUESTS, run_records
from kvcalc.evidence.tables import TABLES
from kvcalc.files import BoundedLines, open_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.evidence.tables import TableReader

__all__ = ["read_records", "shipped_records"]

_TTFT = re.compile(r"silicon_ttft_ms=([0-9.]+)")
_COUNT = re.compile(r"\s*([1-9]\d{0,4}) ?x ?(?=[a-zA-Z])")
_NOT_TOLD = ("", "-", "auto", "default", "none", "unknown", "?", "n/a")
_DEPTH = re.compile(r"depth (\d+)\b")
# Beyond them a table is broken or hostile.
_MAX_ROWS = 300_000
_LONGEST_ROW = 65_536


def read_records(path: str | Path) -> tuple[Record, ...]:
    """Return the records of a file.

    A ``.csv`` is one of three tables, recognised by its columns: times of matrix products, times of decode attention,
    or served latencies, as ai-dynamo/aiconfigurator publishes them. Any other file is YAML, see
    `kvcalc.profiles.measurements`.

    Raises:
        ProfileError: a file that cannot be read or is not of such a form.
        InputError: no file.
    """
    if not str(path).strip():
        raise InputError("the name of the file is empty", hint="give a file of records")
    path = Path(path)
    if path.is_dir() or path.name.endswith(REQUESTS):
        return tuple(run_records(path))
    return tuple(_csv_records(path)) if path.suffix.lower() == ".csv" else tuple(_yaml_records(path))


def shipped_records() -> tuple[Record, ...]:
    """Return the records that kvcalc ships, in the order of their files."""
    folder = Path(__file__).parent / "records"
    return tuple(record for path in sorted(folder.glob("*.yaml")) for record in read_records(path))


def _yaml_records(path: Path) -> Iterator[Record]:
    from kvcalc.profiles.measurements import SHAPE, read_measurements

    for number, row in enumerate(read_measurements(path), start=1):
        note = row["note"] or ""
        printed_depth = _DEPTH.search(note) if row["phase"] == "prefill" and "at depth" not in note else None
        size = row["model_size_gib"]
        yield Record(
            id=row["id"] or f"{path.stem} {number}",
            phase=row["phase"].strip().lower(),
            value=row["value"],
            unit=row["unit"],
            hardware=row["hardware"],
            model=row["model"],
            engine=row["engine"],
            engine_version=row["engine_version"] or "",
            weights=_printed(row["weight_format"]),
            kv=_printed(row["kv_dtype"]),
            devices=row["n_devices"] or row["tensor_parallel"] or _counted(row["hardware"]),
            tensor=row["tensor_parallel"],
            batch=row["batch"],
            prompt_tokens=row["input_len"],
            output_tokens=row["output_len"],
            depth_tokens=row["depth"] or (int(printed_depth[1]) if printed_depth else 0),
            ttft_s=row["ttft_s"] or _noted_ttft(note),
            file_bytes=None if size is None else size * GIB,
            note=note,
            source=row["source_url"],
            first_hand=row["provenance"].lower().startswith("first-hand"),
            shape={name: row[name] for name in SHAPE if row[name] is not None},
        )


def _printed(name: str | None) -> str | None:
    """Return a format, or none where what stands there says that it was left to the engine or is not known."""
    return None if name is None or name.strip().lower() in _NOT_TOLD else name


def _counted(hardware: str) -> int:
    """Count the accelerators of a name such as ``8x H100``."""
    match = _COUNT.match(hardware)
    return int(match[1]) if match else 1


def _noted_ttft(note: str) -> float | None:
    match = _TTFT.search(note)
    return None if match is None else seconds_of(float(match[1]), "ms")


def _csv_records(path: Path) -> Iterator[Record]:
    import csv

    with open_text(path) as text:
        lines = BoundedLines(text, max_characters=_LONGEST_ROW, where=str(path))
        reader = csv.DictReader(lines)
        try:
            columns = set(reader.fieldnames or ())
            read = next((read for needed, read in TABLES if needed <= columns), None)
            if read is None:
                known = "; ".join(", ".join(sorted(needed)) for needed, _ in TABLES)
                raise ProfileError("the columns match no known table", where=str(path), hint=f"known: {known}")
            for number, row in enumerate(reader, 1):
                lines.next_record()
                if number > _MAX_ROWS:
                    raise ProfileError(f"more than {_MAX_ROWS:,} rows", where=f"{path}:{reader.line_num}")
                yield from _row_records(row, read, path, reader.line_num)
        except csv.Error as error:
            raise ProfileError(f"cannot be read: {error}", where=f"{path}:{reader.line_num}") from error


def _row_records(row: dict[str, Any], read: TableReader, path: Path, line: int) -> tuple[Record, ...]:
    try:
        return tuple(read(row, line))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        what = f"the column {error} is missing" if isinstance(error, KeyError) else f"cannot be read: {error}"
        raise ProfileError(f"the row: {what}"[:200], where=f"{path}:{line}") from None
