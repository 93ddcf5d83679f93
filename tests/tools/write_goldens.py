"""Write what the commands of ``tests/golden/cases.yaml`` print: ``python tests/tools/write_goldens.py [--check] [CASE …] [help]``.

With ``--check`` nothing is written: exit code 1 where a command prints something else.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import sys
from difflib import unified_diff
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvcalc.cli.app import load_command
from kvcalc.cli.main import COMMANDS, main
from kvcalc.core.errors import InputError
from kvcalc.core.units import print_bytes_as
from kvcalc.render.charts import chart_spec
from kvcalc.render.output import render
from tests.golden import tables
from tests.golden.reports import REPORTS

GOLDEN = Path(__file__).parents[1] / "golden"
CASES: dict[str, str] = yaml.safe_load((GOLDEN / "cases.yaml").read_text(encoding="utf-8"))
WIDTHS = (80, 120)
TERMINAL = {"TERM": "xterm", "LC_ALL": "C.UTF-8"}
HELP = GOLDEN / "help"
_VIEWS = ("", "memory", "intensity")
_FIXED = "fixed report"
# Exit codes: 1 says that a check failed.
_FINE_OR_FAILED = (0, 1)
# Sums of floats differ in their last digits from machine to machine, and from Python to Python.
_DIGITS = 8
_CLOSE = 1e-6
# Differences of sums that should be equal are rounding alone below this.
_NOTHING = 1e-12
# Longer lists are pinned by their ends.
_MAX_ENTRIES = 8


def outputs(case: str) -> dict[str, str]:
    """Return what a case prints: the text of a file under ``tests/golden`` by the file's name."""
    command = CASES[case]
    if "--output " in command:
        return {f"{case}.txt": printed(case, WIDTHS[-1])}
    texts = {f"{case}.{width}.txt": printed(case, width) for width in WIDTHS}
    if texts[f"{case}.{WIDTHS[0]}.txt"] == texts[f"{case}.{WIDTHS[1]}.txt"]:
        texts = {f"{case}.txt": texts[f"{case}.{WIDTHS[0]}.txt"]}
    if command == _FIXED or _has_json(command):
        text, reports = _reported(case)
        texts[f"{case}.json"] = _json_text(_shortened(json.loads(text))) + "\n"
        charts = _charts(reports[-1]) if reports else {}
        if charts:
            texts[f"{case}.chart.json"] = _json_text(_shortened(charts)) + "\n"
    return texts


def help_pages() -> dict[str, str]:
    """Return the help of the whole, of each command and of each of their own, at the narrower width, by file."""
    pages = {"kvcalc": ["--help"]}
    for name in COMMANDS:
        inner = getattr(load_command(name), "commands", {})
        pages |= {name: [name, "--help"], **{f"{name}-{each}": [name, each, "--help"] for each in inner}}
    return {f"{name}.txt": _output_of(words, WIDTHS[0]) for name, words in pages.items()}


def _output_of(words: list[str], width: int) -> str:
    out = io.StringIO()
    environment = mock.patch.dict(os.environ, {"COLUMNS": str(width), **TERMINAL})
    with environment, contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(words)
    return out.getvalue()


def write_help() -> None:
    """Write the help of all commands, and nothing beside it."""
    pages = help_pages()
    for path in HELP.iterdir() if HELP.exists() else ():
        path.unlink()
    HELP.mkdir(exist_ok=True)
    for name, text in pages.items():
        (HELP / name).write_text(text, encoding="utf-8")


def _charts(report: Any) -> dict[str, Any]:
    """Return the charts of a report, by view; none where it has none."""
    charts = {}
    for view in _VIEWS:
        with contextlib.suppress(InputError):
            charts[view or "chart"] = json.loads(json.dumps(chart_spec(report, view=view)))
    return charts


def differences(case: str) -> str:
    """Return how what a case prints differs from its files, as a diff; empty where it does not."""
    printed, files = outputs(case), {path.name: path.read_text(encoding="utf-8") for path in files_of(case)}
    changed: list[str] = []
    for name in sorted(printed | files):
        text, pinned = printed.get(name, ""), files.get(name, "")
        if not _alike(name, text, pinned):
            labels = f"{name} (pinned)", f"{name} (now)"
            changed += unified_diff(pinned.splitlines(), text.splitlines(), *labels, lineterm="")
    return "\n".join(changed)


def files_of(case: str) -> list[Path]:
    """Return the files that pin a case."""
    return [path for path in GOLDEN.iterdir() if path.suffix in {".txt", ".json"} and path.name.split(".")[0] == case]


def printed(case: str, width: int, reports: list[Any] | None = None) -> str:
    """Return what a case prints: its table or, with a list to put the report into, its JSON."""
    out, messages = io.StringIO(), io.StringIO()

    def noted(report: Any, *given: Any, **named: Any) -> str:
        if reports is not None:
            reports.append(report)
        return render(report, *given, **named)

    with (
        contextlib.chdir(GOLDEN / "inputs"),
        mock.patch.dict(os.environ, {"COLUMNS": str(width), **TERMINAL}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(messages),
        mock.patch("kvcalc.render.output.render", noted),
    ):
        try:
            if CASES[case] == _FIXED:
                sys.stdout.write(noted(REPORTS[case](), "table" if reports is None else "json"))
            else:
                main([*shlex.split(CASES[case])[1:], *([] if reports is None else ["--json"])])
        except SystemExit as ended:
            if ended.code not in _FINE_OR_FAILED:
                raise RuntimeError(f"{CASES[case]}: {messages.getvalue()}") from None
        finally:
            print_bytes_as("iec")
    return out.getvalue()


def is_laid_out(command: str) -> bool:
    """Return whether a case prints the tables of a report."""
    return command == _FIXED or ("--output " not in command and _has_json(command) and not _lists_names(command))


def _lists_names(command: str) -> bool:
    return shlex.split(command)[1] in {"models", "gpus"} and "quants" not in command


@cache
def _reported(case: str) -> tuple[str, list[Any]]:
    """Return the JSON that a case prints, and the reports that it prints; a case is asked for them once."""
    reports: list[Any] = []
    return printed(case, WIDTHS[-1], reports), reports


def report_of(case: str) -> Any:
    """Return the report that a case prints."""
    return _reported(case)[1][-1]


def _has_json(command: str) -> bool:
    name, *rest = shlex.split(command)[1:]
    asked = load_command(name)
    asked = getattr(asked, "commands", {}).get(rest[0] if rest else "", asked)
    return any("--json" in parameter.opts for parameter in asked.params)


def _json_text(value: Any, indent: str = "") -> str:
    """Return JSON with what fits into a line on one."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + len(line) <= WIDTHS[-1]:
        return line
    deeper = f"{indent} "
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        entries = [f"{json.dumps(name)}: {_json_text(entry, deeper)}" for name, entry in value.items()]
    else:
        entries = [_json_text(entry, deeper) for entry in value]
    return f"{opening}\n{deeper}" + f",\n{deeper}".join(entries) + f"\n{indent}{closing}"


def _shortened(value: Any) -> Any:
    match value:
        case dict():
            return {name: _shortened(entry) for name, entry in value.items()}
        case list() if len(value) > _MAX_ENTRIES:
            return [*map(_shortened, value[:2]), f"{len(value) - 4} more", *map(_shortened, value[-2:])]
        case list():
            return [_shortened(entry) for entry in value]
        case float():
            return float(f"{value:.{_DIGITS}g}")
    return value


def _alike(name: str, text: str, pinned: str) -> bool:
    if name.endswith(".json") and text and pinned:
        return _same(json.loads(text), json.loads(pinned))
    return text == pinned


def _same(value: Any, other: Any) -> bool:
    """Return whether two JSON values are the same but for the last digits of numbers that are not whole."""
    match value, other:
        case dict(), dict():
            return list(value) == list(other) and all(_same(value[name], other[name]) for name in value)
        case list(), list():
            return len(value) == len(other) and all(map(_same, value, other))
        case float(), int() | float():
            return isclose(value, other, rel_tol=_CLOSE, abs_tol=_NOTHING)
        case int(), float():
            return isclose(value, other, rel_tol=_CLOSE, abs_tol=_NOTHING)
    return type(value) is type(other) and bool(value == other)


def _write(case: str) -> None:
    if not differences(case):
        return
    for path in files_of(case):
        path.unlink()
    for name, text in outputs(case).items():
        (GOLDEN / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--check", action="store_true")
    reader.add_argument("cases", nargs="*", metavar="CASE")
    given = reader.parse_args()
    changed: list[str] = []
    names = given.cases or [*CASES, "help"]
    for each in names:
        if each == "help":
            continue
        if given.check:
            changed.append(differences(each))
        else:
            _write(each)
    for each in tables.TABLES if not given.cases else ():
        if given.check:
            changed += [f"{each}: {row}" for row in tables.rows_that_differ(each)]
        else:
            tables.write_table(each)
    if "help" in names:
        pages = help_pages()
        if given.check:
            changed += [f"help/{name}" for name in pages if (HELP / name).read_text(encoding="utf-8") != pages[name]]
        else:
            write_help()
    sys.exit("\n".join(filter(None, changed)) or None)
