"""The table of ``kvcalc simulate --steps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables.pieces import grid, heading, note_lines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvcalc.core.reports.steps import StepsReport
    from kvcalc.render.layout import Part

__all__ = ["parts"]

_MOST_ROWS = 40


def parts(report: StepsReport) -> list[Part]:
    """Return the totals, and a row for each step in which something but decoding happened."""
    eventful = [step for step in report.steps if _eventful(step)]
    rows = [
        [
            number_text(step["step"]),
            number_text(sum(step["scheduled"].values())),
            number_text(step["running"]),
            number_text(step["waiting"]),
            number_text(step["free_blocks_end"]),
            " ".join(_events(step)),
        ]
        for step in eventful[:_MOST_ROWS]
    ]
    left = len(eventful) - len(rows)
    more = [Text(f"and {number_text(left)} more; --output csv or --json lists every step")] if left else []
    totals = ", ".join(f"{name.replace('_', ' ')} {number_text(value)}" for name, value in report.totals.items())
    columns = ["step", "tokens", "running", "waiting", "free blocks", "events"]
    return [
        heading(f"Steps of {report.name}" if report.name else "Steps"),
        Text(totals),
        grid(columns, rows, left=5),
        *more,
        *note_lines(report.notes),
    ]


def _eventful(step: Mapping[str, Any]) -> bool:
    return any(step[name] for name in ("new", "resumed", "preempted", "finished"))


def _events(step: Mapping[str, Any]) -> list[str]:
    signs = {"new": "+", "resumed": "^", "preempted": "!", "finished": "-"}
    return [sign + name for kind, sign in signs.items() for name in step[kind]]
