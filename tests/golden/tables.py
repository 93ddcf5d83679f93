"""Answers over a whole kind of input at once, a row each: what each key of a config changes, what each refusal is advised."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc import api
from kvcalc.core.errors import KvcalcError
from kvcalc.core.workload import Formats
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import active_parameters, parameters
from kvcalc.engines.logs.reader import read_log
from kvcalc.evidence.suites import SUITES
from kvcalc.importers.hugging_face import import_config
from tests.golden import grids
from tests.golden.gguf_keys import HEADERS, imported
from tests.golden.refusals import LOGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kvcalc.core.model import ModelProfile

__all__ = ["TABLES", "Table", "pinned", "rows_that_differ", "write_table"]

_CONFORMANCE = Path(__file__).parents[1] / "conformance"
_CONFIGS = json.loads((_CONFORMANCE / "transformers_types.json").read_text(encoding="utf-8"))
_TOKENS = 150
# Sizes that every type reads alike.
_PLAIN = {"model_type", "dtype", "vocab_size", "hidden_size", "num_hidden_layers"}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that are pinned in one file.

    Args:
        inputs: what each row answers.
        answer: returns the JSON value of an input.
    """

    inputs: Mapping[str, Any]
    answer: Callable[[Any], Any]


def _config_keys(case: dict[str, Any]) -> dict[str, Any]:
    """Return what each key of a config changes when it is left out, turned over or doubled.

    The configs' answers as they stand are held against transformers' classes. A change is that of the parameters, of the
    active ones, and of the cache's bytes at 150 tokens; or the reason why the config is refused.
    """
    return _changes(case["config"], lambda config: import_config(config, name="m")[0])


def _gguf_keys(header: dict[str, Any]) -> dict[str, Any]:
    """Return the same of the keys of a GGUF file."""
    return _changes(header, imported)


def _changes(config: dict[str, Any], read: Callable[[dict[str, Any]], ModelProfile]) -> dict[str, Any]:
    base = _counts(config, read)
    changes: dict[str, Any] = {"as it is": base}
    for key, changed in _variants(config):
        counts = _counts(changed, read)
        if isinstance(counts, str) or isinstance(base, str):
            changes[key] = counts
        elif counts != base:
            changes[key] = [now - was for now, was in zip(counts, base, strict=True)]
    return changes


def _variants(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", config | {key: changed}) for inner, changed in _variants(value))
        if key in _PLAIN or isinstance(value, dict):
            continue
        yield f"without {key}", {name: other for name, other in config.items() if name != key}
        if isinstance(value, bool):
            yield f"not {key}", config | {key: not value}
        elif isinstance(value, int):
            yield f"2 {key}", config | {key: 2 * value or 1}


def _counts(config: dict[str, Any], read: Callable[[dict[str, Any]], ModelProfile]) -> list[int] | str:
    try:
        model = read(config)
        kept = cache_bytes(model, _TOKENS, Formats())
    except KvcalcError as error:
        return error.what
    return [sum(parameters(model).values()), active_parameters(model), kept.growing + kept.state + kept.cross]


def _advice(case: tuple[str, str | None]) -> dict[str, Any]:
    """Return what a log is told: why the engine refused, what took the memory, and flags that would start it."""
    log, gpu = case
    report = api.reconcile(log, gpu=gpu)
    assert report.refusal is not None
    return {
        "reason": report.refusal.reason,
        "memory": {part.part: part.taken_bytes for part in report.memory},
        "start": report.start_with,
        "advice": list(report.advice),
        "notes": list(report.notes),
    }


def _log(case: tuple[str, str | None]) -> Any:
    """Return what is read of each start-up in a log: numbers with their lines, options and events."""
    return [
        {
            "engine": [start_up.engine, start_up.line, start_up.version, start_up.model],
            "numbers": {
                name: [[each.value, each.least, each.most, each.line] for each in numbers]
                for name, numbers in start_up.printed.items()
            },
            "options": start_up.options,
            "events": sorted(start_up.events),
        }
        for start_up in read_log(case[0])
    ]


TABLES = {
    "config-keys": Table(_CONFIGS, _config_keys),
    "gguf-keys": Table(HEADERS, _gguf_keys),
    "refusals": Table(LOGS, _advice),
    "logs": Table(LOGS, _log),
    "operators": Table(grids.OPERATORS, grids.operators),
    "fits": Table(grids.FITS, grids.fit),
    "levers": Table({name: name for name in grids.LEVERS}, grids.lever),
    "speculations": Table(grids.SPECULATIONS, grids.speculation),
    "evidence": Table({suite: suite for suite in SUITES}, grids.evidence),
    "experts": Table(grids.KERNELS, grids.experts),
    "formats": Table(grids.FORMATS, grids.format_of),
}


def pinned(name: str) -> dict[str, Any]:
    """Return the answers of a table as its file pins them."""
    rows: dict[str, Any] = json.loads(_file(name).read_text(encoding="utf-8"))
    return rows


def rows_that_differ(name: str) -> list[str]:
    """Return the rows of a table that are answered otherwise than its file says, or stand in one of both alone."""
    table, rows = TABLES[name], pinned(name)
    both = table.inputs.keys() & rows
    return [*(table.inputs.keys() ^ rows), *(row for row in both if table.answer(table.inputs[row]) != rows[row])]


def write_table(name: str) -> None:
    """Pin the answers of a table, a line for each row."""
    table = TABLES[name]
    lines = [f"{json.dumps(row)}: {json.dumps(table.answer(case))}" for row, case in table.inputs.items()]
    _file(name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _file(name: str) -> Path:
    return Path(__file__).with_name(f"table-{name}.json")
