"""``kvcalc validate``."""

from __future__ import annotations

from typing import Annotated

from typer import Exit, Option

from kvcalc.cli.options import Json, Output, takes_charts

Suites = Annotated[
    list[str] | None, Option("--suite", help="A suite by name; may be repeated. All of them if left out.")
]
Records = Annotated[
    str | None, Option("--records", metavar="FILE", help="Records in place of the shipped: YAML, or a known CSV table.")
]


@takes_charts
def command(
    suite: Suites = None,
    records: Records = None,
    json: Json = False,
    output: Output = "table",
    *,
    chart_files: dict[str, str | None],
) -> None:
    """Predictions held against published measurements: none may beat its bound.

    Example: kvcalc validate --suite decode
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, draw, emit

    shown = command_output(output, json=json)
    report = api.validate(suites=suite or (), records=records)
    draw(report, chart_files)
    emit(report, shown)
    if not report.holds:
        raise Exit(1)
