"""A plain CSV of measurements: a row for each run, with the columns that are known of it."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError
from kvcalc.core.units import seconds_of
from kvcalc.evidence.benchmarks.values import Run, count, positive, word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.evidence.record import Record

__all__ = ["is_plain", "plain_records"]

_TIMES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "end_to_end": "latency_ms"}
_RATES = {"decode": "decode_tokens_per_s", "prefill": "prefill_tokens_per_s"}
_MAX_ROWS = 20_000


def is_plain(text: str) -> bool:
    """Whether a text begins with the columns of such a table: the number of requests at once, and a time or a rate."""
    first = text.lstrip().partition("\n")[0].strip().lower()
    columns = {name.strip() for name in first.split(",")}
    return "batch" in columns and not columns.isdisjoint((*_TIMES.values(), *_RATES.values()))


def plain_records(text: str, name: str) -> Iterator[Record]:
    """Yield the records of each row; columns that are not known are passed over.

    Raises:
        ProfileError: a value that is no number, or more rows than a table of measurements has.
    """
    lines = text.lstrip().splitlines()
    names = [each.strip().lower() for each in next(csv.reader(lines[:1]))]
    for number, row in enumerate(csv.DictReader(lines[1:], fieldnames=names), 2):
        if number > _MAX_ROWS:
            raise ProfileError(f"more than {_MAX_ROWS:,} rows")
        try:
            yield from _row(row, f"{name} row {number}")
        except ProfileError as error:
            raise ProfileError(f"row {number}: {error.what}") from None


def _row(row: dict[str, str], name: str) -> Iterator[Record]:
    run = Run(
        name=name,
        model=word(row, "model"),
        hardware=word(row, "gpu"),
        engine=word(row, "engine"),
        version=word(row, "engine_version"),
        weights=word(row, "weights"),
        kv=word(row, "kv_dtype"),
        tensor=count(row, "tensor_parallel"),
        devices=count(row, "gpus"),
        batch=count(row, "batch"),
        prompt=count(row, "prompt"),
        output=count(row, "output"),
    )
    times = {phase: positive(row, column) for phase, column in _TIMES.items()}
    yield from run.records({phase: value and seconds_of(value, "ms") for phase, value in times.items()})
    yield from run.records({phase: positive(row, column) for phase, column in _RATES.items()}, unit="tok/s")
