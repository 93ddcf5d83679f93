"""A file of measurements by its content: which tool wrote it, and its records."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError
from kvcalc.evidence.benchmarks.documents import FORMS
from kvcalc.evidence.benchmarks.llama_bench import FIELDS, table_rows, test_records
from kvcalc.evidence.benchmarks.plain import is_plain, plain_records
from kvcalc.evidence.benchmarks.prometheus import is_metrics, metrics_records
from kvcalc.evidence.benchmarks.values import at
from kvcalc.files import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.evidence.record import Record

__all__ = ["Benchmark", "benchmark_of", "is_benchmark", "read_benchmark"]

_MAX_BYTES = 256 * 2**20
_MAX_POINTS = 20_000
_KNOWN = (
    "vllm bench serve, latency or throughput; SGLang's bench_serving; AIPerf; GuideLLM; llama-bench; InferenceMAX; "
    "metrics of vLLM or SGLang; CSV with the columns " + "batch, prompt, output, tpot_ms"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A file of measurements.

    Args:
        name: the file.
        form: the tool that wrote it.
        records: its measurements.
    """

    name: str
    form: str
    records: tuple[Record, ...]


def read_benchmark(path: Path) -> Benchmark:
    """Return the measurements of a file.

    Raises:
        ProfileError: a file that cannot be read, is of no known form, or holds no measurement.
    """
    text = read_text(path, max_bytes=_MAX_BYTES, what="a file of measurements")
    return benchmark_of(text, path.name)


def benchmark_of(text: str, name: str) -> Benchmark:
    """Return the measurements of a file's text; errors as `read_benchmark`."""
    if not text.strip():
        raise ProfileError("the file is empty", where=name)
    try:
        form, records = _records(text, name)
        points = tuple(records)
    except ProfileError as error:
        raise ProfileError(error.what, where=error.where or name, hint=error.hint) from None
    except (csv.Error, RecursionError, OverflowError) as error:
        raise ProfileError(f"cannot be read: {error}", where=name) from None
    if not points:
        raise ProfileError(f"a file of {form} without a measured time", where=name)
    if len(points) > _MAX_POINTS:
        raise ProfileError(f"{len(points):,} measurements are more than the {_MAX_POINTS:,} that are read", where=name)
    return Benchmark(name=name, form=form, records=points)


def is_benchmark(text: str) -> bool:
    """Whether a text is one of the forms that are read; whatever is wrong in it shows when it is read."""
    start = text.lstrip()[:1]
    if start in ("{", "["):
        try:
            return any(_form_of(each) for each in _documents(text))
        except ProfileError:
            return False
    return is_metrics(text) or is_plain(text) or table_rows(text) is not None


def _records(text: str, name: str) -> tuple[str, Iterable[Record]]:
    if text.lstrip()[:1] in ("{", "["):
        return _json_records(_documents(text), name)
    if is_metrics(text):
        return "a server's metrics", metrics_records(text, name)
    rows = table_rows(text)
    if rows is not None:
        return "llama-bench", (record for row in rows for record in test_records(row, name))
    if is_plain(text):
        return "CSV", plain_records(text, name)
    raise ProfileError("not a file of measurements that is known", hint=_KNOWN)


def _json_records(documents: list[Any], name: str) -> tuple[str, list[Record]]:
    records: list[Record] = []
    forms: dict[str, None] = {}
    for number, document in enumerate(documents, 1):
        form = _form_of(document)
        if form is None:
            raise ProfileError(f"entry {number} is of no known form" if len(documents) > 1 else "of no known form",
                               hint=_KNOWN)  # fmt: skip
        label = f"{name} {number}" if len(documents) > 1 else name
        read = (
            test_records
            if form == "llama-bench"
            else next(each.read for each in FORMS if each.name == form and _has(each.fields, document))
        )
        forms[form] = None
        records += read(document, label)
    return ", ".join(forms), records


def _form_of(document: Any) -> str | None:
    if _has(FIELDS, document):
        return "llama-bench"
    return next((form.name for form in FORMS if _has(form.fields, document)), None)


def _has(fields: Iterable[str], document: Any) -> bool:
    return all(at(document, field) is not None for field in fields)


def _documents(text: str) -> list[Any]:
    """Return the documents of JSON or JSON lines, those of a list apart.

    Raises:
        ProfileError: text that is neither, or is cut.
    """
    try:
        whole = _loaded(text)
    except json.JSONDecodeError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) == 1 or not lines[0].rstrip().endswith("}"):
            raise ProfileError(f"no JSON: {error.msg}, line {error.lineno}", hint="is the file cut?") from None
        whole = [_line(line, number) for number, line in enumerate(lines, 1)]
    return whole if isinstance(whole, list) else [whole]


def _line(line: str, number: int) -> Any:
    try:
        return _loaded(line)
    except json.JSONDecodeError as error:
        raise ProfileError(f"line {number} is no JSON: {error.msg}", hint="is the file cut?") from None


def _loaded(text: str) -> Any:
    return json.loads(text)
