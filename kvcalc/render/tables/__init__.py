"""Tables for a terminal: one module for each report, and what they share here.

A module offers ``parts(report)``: what is printed, from top to bottom. A report with a method ``parts`` needs none.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvcalc.core.units import number_text, seconds_text
from kvcalc.render.layout import Text, laid_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.reports.common import ExplainedStep
    from kvcalc.render.layout import Part

__all__ = ["printed", "table_parts", "table_text"]

_MODULES = {
    "kvcalc.simulate": "simulate",
    "kvcalc.steps": "steps",
    "kvcalc.sweep": "sweep",
    "kvcalc.bench": "bench",
    "kvcalc.crosscheck": "crosscheck",
    "kvcalc.size": "size",
    "kvcalc.decode": "speed",
    "kvcalc.prefill": "speed",
    "kvcalc.roofline": "roofline",
    "kvcalc.fit": "fit",
    "kvcalc.reconcile": "reconcile",
    "kvcalc.compare": "compare",
    "kvcalc.check": "checks",
    "kvcalc.solve": "solve",
    "kvcalc.speculate": "speculative",
    "kvcalc.traffic": "traffic",
    "kvcalc.levers": "levers",
    "kvcalc.validate": "validate",
    "kvcalc.quants": "quants",
    "kvcalc.check_measured": "check",
}
_WIDTH = 110


def table_text(report: Any, explained: Sequence[ExplainedStep] = ()) -> str:
    """Return a report as the text of tables, coloured where standard output is a terminal that takes colour."""
    return printed([*table_parts(report), *_explained(explained)])


def table_parts(report: Any) -> list[Part]:
    """Return a report as the parts of its table, from top to bottom."""
    if hasattr(report, "parts"):
        parts: list[Part] = report.parts()
    else:
        parts = import_module(f"{__name__}.{_MODULES[report.schema.partition('/')[0]]}").parts(report)
    return parts


def printed(parts: Sequence[Part], *, plain: bool = False) -> str:
    """Lay parts out as text that ends with a newline; ``plain`` never has colour."""
    is_terminal = sys.stdout.isatty()
    columns = os.environ.get("COLUMNS", "")
    width = (
        shutil.get_terminal_size((_WIDTH, 24)).columns if is_terminal else int(columns) if columns.isdigit() else _WIDTH
    )
    coloured = is_terminal and not plain and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return laid_out(parts, width=max(60, width), styled=coloured)


def _explained(steps: Sequence[ExplainedStep]) -> list[Part]:
    if not steps:
        return []
    shown: list[Part] = [Text(), Text("How each number comes about", style="bold")]
    told: tuple[str, ...] = ()
    for step in steps:
        shown.append(Text(f"{step.quantity} = {step.formula}"))
        shown.append(Text(f"    = {step.expression}"))
        value = seconds_text(step.value) if step.unit == "s" else f"{number_text(step.value)} {step.unit}"
        shown.append(Text(f"    = {value}"))
        # a source is printed where it changes, not under each of twenty steps
        shown += [Text(f"    source: {source}", style="dim") for source in step.sources if step.sources != told]
        told = step.sources or told
    return shown
