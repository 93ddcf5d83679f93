"""One way out for every report: table, JSON, JSON lines, CSV or Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.reports.common import ExplainedStep

__all__ = ["OUTPUTS", "check_output", "render"]

OUTPUTS = ("table", "json", "jsonl", "csv", "md")


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
        import json

        return json.dumps(report_data(report, explained, source), indent=2) + "\n"
    rows = records(report)
    if output == "jsonl":
        import json

        return "".join(json.dumps(row) + "\n" for row in rows)
    return _csv(rows) if output == "csv" else _markdown(rows)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv(rows: list[dict[str, Any]]) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")


def _markdown(rows: list[dict[str, Any]]) -> str:
    columns = _columns(rows)
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(name)) for name in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
