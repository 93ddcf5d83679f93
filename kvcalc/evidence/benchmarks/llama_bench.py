"""llama-bench's output in each of its forms: Markdown, CSV, JSON, JSON lines and SQL.

Fields are those of ``tools/llama-bench``: a test is ``n_prompt`` or ``n_gen`` tokens after ``n_depth``, its rate
``avg_ts``; the table of Markdown prints them as ``pp512 @ d1024``.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError
from kvcalc.evidence.benchmarks.values import Run, at, count, positive, word
from kvcalc.evidence.names import weights_in_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.evidence.record import Record

__all__ = ["FIELDS", "table_rows", "test_records"]

FIELDS = ("avg_ts", "n_prompt", "n_gen")
_TEST = re.compile(r"(?P<kind>pp|tg)(?P<tokens>\d+)(?:\+tg(?P<after>\d+))?(?: ?@ ?d(?P<depth>\d+))?")
_INSERT = re.compile(r"INSERT INTO \w+ \((?P<names>[^)]*)\) VALUES \((?P<values>.*)\);", re.IGNORECASE)
_TYPE = re.compile(r"(?P<type>(?:IQ|Q|TQ)\d\w*|MXFP4\w*|BF16|F16|F32)\b.*$")
_EXTENSION = re.compile(r"(?:-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE)


def test_records(data: Any, name: str) -> Iterator[Record]:
    """Yield the records of a test: reading a prompt, or generating tokens.

    Raises:
        ProfileError: a test whose rate is no number.
    """
    prompt, output, depth = (count(data, field) for field in ("n_prompt", "n_gen", "n_depth"))
    rate = positive(data, "avg_ts")
    if rate is None:
        return
    file = _EXTENSION.sub("", re.split(r"[\\/]", word(data, "model_filename"))[-1])
    run = Run(
        name=f"{name} {'pp' if prompt else 'tg'}{prompt or output}{f' @ d{depth}' if depth else ''}",
        model=file or word(data, "model_type"),
        hardware=word(data, "gpu_info"),
        engine=f"llama.cpp {word(data, 'backends')}".strip(),
        version=str(at(data, "build_number") or ""),
        weights=weights_in_name(file) or _type_of(word(data, "model_type")),
        kv=word(data, "type_k"),
        batch=1,
        prompt=prompt,
        output=output,
        note="-fa 0" if str(at(data, "flash_attn")) == "0" else "",
    )
    phase = "end_to_end" if prompt and output else "prefill" if prompt else "decode"
    yield from run.records({phase: rate}, unit="tok/s (prompt and output)" if prompt and output else "tok/s",
                           depth=depth or 0)  # fmt: skip


def _type_of(model_type: str) -> str:
    """Return the type of weights that ends a description: ``llama 8B Q4_K - Medium`` is of ``q4_k_m``.

    >>> _type_of("llama 8B Q4_K - Medium"), _type_of("qwen3 0.6B F16")
    ('q4_k_m', 'f16')
    """
    match = _TYPE.search(model_type)
    if match is None:
        return ""
    size = re.search(r"- (Small|Medium|Large)", match[0])
    return match["type"].lower() + (f"_{size[1][0].lower()}" if size else "")


def table_rows(text: str) -> list[dict[str, Any]] | None:
    """Return the tests of a text in Markdown, CSV or SQL; none where it is in none of these forms.

    Raises:
        ProfileError: a table of llama-bench that is cut or broken.
    """
    lines = text.splitlines()
    if any(line.startswith("INSERT INTO llama_bench") for line in lines):
        return _sql_rows(text)
    first = next((line for line in lines if line.strip()), "")
    if all(field in first for field in FIELDS):
        return [dict(row) for row in csv.DictReader(lines)]
    heads = [number for number, line in enumerate(lines) if "|" in line and "test" in line and "t/s" in line]
    return _markdown_rows(lines, heads[0]) if heads else None


def _sql_rows(text: str) -> list[dict[str, Any]]:
    rows = []
    for line in text.splitlines():
        match = _INSERT.fullmatch(line.strip())
        if match is None:
            continue
        names = [name.strip() for name in match["names"].split(",")]
        values = next(csv.reader([match["values"]], quotechar="'", skipinitialspace=True))
        if len(names) != len(values):
            raise ProfileError(f"a test has {len(values)} values for {len(names)} columns")
        rows.append(dict(zip(names, values, strict=True)))
    return rows


def _markdown_rows(lines: list[str], head: int) -> list[dict[str, Any]]:
    names, rows = _cells(lines[head]), list[dict[str, Any]]()
    for line in lines[head + 2 :]:
        cells = _cells(line)
        if len(cells) != len(names):
            continue
        row = dict(zip(names, cells, strict=True))
        test = _TEST.fullmatch(row.get("test", ""))
        rate = row.get("t/s", "").partition("±")[0].strip()
        if test is None:
            continue
        is_prompt = test["kind"] == "pp"
        rows.append(
            {
                "model_type": row.get("model", ""),
                "backends": row.get("backend", ""),
                "type_k": row.get("type_k", ""),
                "flash_attn": row.get("fa", ""),
                "n_prompt": test["tokens"] if is_prompt else "0",
                "n_gen": test["after"] or "0" if is_prompt else test["tokens"],
                "n_depth": test["depth"] or "0",
                "avg_ts": rate,
            }
        )
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
