"""Reports as a page shows them: the data of ``--json``, the chart as a specification, and what draws it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.reports.common import ExplainedStep

__all__ = ["chart", "chart_runtime", "report_data", "report_sentence", "with_origins"]


def report_data(report: Any, *, explained: Sequence[ExplainedStep] = ()) -> dict[str, Any]:
    """Return a report as ``--json`` prints it: mappings, lists and numbers.

    With ``source``, where the profiles came from that were loaded since `noting_origins`.

    Args:
        report: any of the reports.
        explained: formulas, put in as ``explain``.
    """
    from kvcalc.render.records import report_data as data

    report, source, _ = with_origins(report)
    return data(report, explained, source)


def report_sentence(report: Any) -> str:
    """Answer in one sentence, as a report's table begins; empty for reports that have none."""
    from kvcalc.render.reports import shown_by

    sentence = shown_by(report, "sentence")
    return "" if sentence is None else str(sentence())


def with_origins(report: Any) -> tuple[Any, dict[str, Any] | None, tuple[str, ...]]:
    """Return a report that names the profiles that stand in for kvcalc's own, the origins of all, and those notes.

    The report is unchanged, and the origins are none, where nobody notes them.
    """
    from kvcalc.profiles.origins import noted_origins, origin_notes, origins_data

    origins = noted_origins()
    if origins is None:
        return report, None, ()
    notes = origin_notes(origins)
    if notes and hasattr(report, "notes"):
        report = replace(report, notes=(*notes, *report.notes))
    return report, origins_data(origins), notes


def chart(report: Any, *, view: str = "") -> dict[str, Any]:
    """Return a report's chart as a Vega-Lite specification.

    Args:
        report: a report that has a chart.
        view: another than the first of its charts: ``memory`` of ``decode``, ``intensity`` of ``roofline``.

    Raises:
        InputError: a report that has no such chart.
    """
    from kvcalc.render.charts import chart_spec

    return chart_spec(report, view=view)


def chart_runtime() -> str:
    """Return the JavaScript that draws Vega-Lite specifications, as a module that needs no network."""
    from kvcalc.render.charts import runtime

    return runtime()
