"""Files of measurements: rows as they are printed, or groups of rows that share what stands above them.

A file is a list of rows (mappings), or ``groups``: each has what its rows share, the names of their ``columns`` and the
``rows`` as lists. Keys that are not known here are left out, so that a file may say more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kvcalc.core.errors import ProfileError
from kvcalc.profiles.reader import read_yaml_file

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.profiles.reader import Document

__all__ = ["SHAPE", "read_measurements"]

# Sizes of a kernel's operands: of a matrix product, and of attention.
SHAPE = ("m", "n", "k", "heads", "kv_heads", "head_dim", "window", "past", "new")

_MAX_ROWS = 100_000
_MAX_TOKENS = 10**9
_HINT = "a record has at least phase, value, unit and hardware, and a model unless it is a kernel's"


def _count_or_none(value: Any) -> Any:
    """Take words in place of a count (``max load``) for a count that was not printed."""
    return None if isinstance(value, str) and not value.strip().isdigit() else value


Count = Annotated[Annotated[int, Field(ge=0, le=_MAX_TOKENS)] | None, BeforeValidator(_count_or_none)]
Text = Annotated[str, Field(coerce_numbers_to_str=True, max_length=4000)]
Positive = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]


class MeasurementRow(BaseModel):
    """One measurement, in the words of the file."""

    model_config = ConfigDict(extra="ignore")
    id: Text | None = None
    phase: Text
    value: Positive
    unit: Text
    hardware: Text
    model: Text = ""
    engine: Text = ""
    engine_version: Text | None = None
    weight_format: Text | None = None
    kv_dtype: Text | None = None
    n_devices: Count = None
    tensor_parallel: Count = None
    batch: Count = None
    input_len: Count = None
    output_len: Count = None
    depth: Count = None
    ttft_s: Positive | None = None
    m: Count = None
    n: Count = None
    k: Count = None
    heads: Count = None
    kv_heads: Count = None
    head_dim: Count = None
    window: Count = None
    past: Count = None
    new: Count = None
    model_size_gib: Positive | None = None
    note: Text | None = None
    source_url: Text = ""
    provenance: Text = ""


def read_measurements(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of measurements, each with all its keys.

    Raises:
        ProfileError: a file that cannot be read, or a row that is not a measurement; the place is ``file:line``.
    """
    document = read_yaml_file(path, list_key="records")
    rows = [
        _validated(document, row, where)
        for where, entry in _entries(document)
        for row in (_expanded(document, entry, where) if "rows" in entry else (entry,))
    ]
    if len(rows) > _MAX_ROWS:
        raise ProfileError(f"more than {_MAX_ROWS:,} records", where=document.where)
    return rows


def _entries(document: Document) -> list[tuple[str, dict[str, Any]]]:
    """Return groups and single rows, each with its place in the document."""
    entries: list[tuple[str, dict[str, Any]]] = []
    for key in ("groups", "records"):
        listed = document.data.get(key, [])
        for index, entry in enumerate(listed if isinstance(listed, list) else ()):
            if not isinstance(entry, dict):
                raise ProfileError("a record must be a mapping", where=document.place(f"{key}.{index}"), hint=_HINT)
            entries.append((f"{key}.{index}", entry))
    if not entries:
        raise ProfileError("the file holds no records", where=document.where, hint="a list of measurements")
    return entries


def _expanded(document: Document, group: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """Return the rows of a group, each with what the group shares."""
    shared = {key: value for key, value in group.items() if key not in ("columns", "rows")}
    columns = group.get("columns")
    if not isinstance(columns, list) or not isinstance(group["rows"], list):
        raise ProfileError("a group needs `columns` and `rows`, both lists", where=document.place(path))
    if not all(isinstance(column, str) for column in columns):
        raise ProfileError("`columns` are names", where=document.place(f"{path}.columns"))
    for index, row in enumerate(group["rows"]):
        if not isinstance(row, list) or len(row) != len(columns):
            where = document.place(f"{path}.rows.{index}")
            raise ProfileError(f"a row must be a list of {len(columns)} values: {', '.join(columns)}", where=where)
    return [{**shared, **dict(zip(columns, row, strict=True))} for row in group["rows"]]


def _validated(document: Document, row: dict[str, Any], path: str) -> dict[str, Any]:
    try:
        return MeasurementRow.model_validate(row).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"][:1])
        missing = first["type"] == "missing"
        what = f"the key {field!r} is missing" if missing else f"{field}: {first['msg'].lower()}"
        name = row.get("id", "a record")
        where = document.place(f"{path}.{field}")
        raise ProfileError(f"{name}: {what}"[:300], where=where, hint=_HINT) from None
