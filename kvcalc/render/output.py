"""Text for every report, as table, JSON, JSON lines, CSV or Markdown, and for profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.reports.common import ExplainedStep

__all__ = ["OUTPUTS", "check_output", "lint_text", "profile_json", "render"]

OUTPUTS = ("table", "json", "jsonl", "csv", "md")
# Of a value in the list of a config's keys.
_MAX_CHARACTERS = 60


def check_output(output: str) -> str:
    """Return the format if it is one of `OUTPUTS`.

    Raises:
        InputError: it is not.
    """
    if output not in OUTPUTS:
        raise InputError(f"--output {output!r} is not a format", hint=f"formats: {', '.join(OUTPUTS)}")
    return output


def render(
    report: Any,
    output: str = "table",
    *,
    explained: Sequence[ExplainedStep] = (),
    source: Mapping[str, Any] | None = None,
) -> str:
    """Return a report as text that ends with a newline.

    Args:
        report: any of the reports.
        output: one of `OUTPUTS`.
        explained: formulas to print below the table, or to put into the JSON as ``explain``.
        source: where the report's profiles came from, to put into the JSON.
    """
    if output == "table":
        from kvcalc.render.tables import table_text

        return table_text(report, explained)
    from kvcalc.render.records import records, report_data

    if output == "json":
        return _json(report_data(report, explained, source), indent=2)
    rows = records(report)
    if output == "jsonl":
        return "".join(map(_json, rows))
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[row.get(name) for name in names] for row in rows]
    if output == "csv":
        from kvcalc.render.rows import csv_text

        return csv_text(names, cells)
    escaped = [["" if value is None else str(value).replace("|", "\\|") for value in row] for row in cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in (names, ["---"] * len(names), *escaped))


def _json(data: Any, *, indent: int | None = None) -> str:
    import json

    return json.dumps(data, indent=indent) + "\n"


def profile_json(profile: Any) -> str:
    """Return a profile as a JSON object, its layers one by one; the tensors of its file are left out."""
    from kvcalc.render.records import plain

    fields = {name: value for name, value in plain(profile).items() if name != "file_tensors"}
    return _json({"schema": "kvcalc.profile/1", **fields}, indent=2)


def lint_text(uses: Sequence[Any], *, json: bool) -> str:
    """Return a config's keys with value, use and reason; in the table, those that decide nothing are only counted."""
    if json:
        keys = [{"key": use.key, "use": use.use, "value": use.value, "why": use.why} for use in uses]
        return _json({"schema": "kvcalc.lint/1", "keys": keys}, indent=2)
    shown = [use for use in uses if use.use != "ignored" or "relevant" in use.why]
    width = max((len(use.key) for use in shown), default=0)
    lines = [
        f"{use.use:<10} {use.key:<{width}}  {_short(use.value)}{f'   ({use.why})' if use.why else ''}" for use in shown
    ]
    lines.append(f"{len(uses) - len(shown)} further keys decide neither memory nor compute")
    return "\n".join(lines) + "\n"


def _short(value: Any) -> str:
    text = _json(value).rstrip("\n")
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 3]}..."
