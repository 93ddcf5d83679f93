"""Tables for a terminal: one module for each report, and what they share here.

A module offers ``parts(report)``: what is printed, from top to bottom.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from kvcalc.core.units import number_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from kvcalc.core.reports.common import ExplainedStep

__all__ = ["table_text"]

_MODULES = {
    "kvcalc.bench": "bench",
    "kvcalc.crosscheck": "crosscheck",
    "kvcalc.size": "size",
    "kvcalc.decode": "speed",
    "kvcalc.prefill": "speed",
    "kvcalc.roofline": "roofline",
    "kvcalc.fit": "fit",
    "kvcalc.reconcile": "reconcile",
    "kvcalc.validate": "validate",
}
_WIDTH = 110


def table_text(report: Any, explained: Sequence[ExplainedStep] = ()) -> str:
    """Return a report as the text of tables, coloured where standard output is a terminal that takes colour."""
    module = import_module(f"{__name__}.{_MODULES[report.schema.partition('/')[0]]}")
    is_terminal = sys.stdout.isatty()
    columns = os.environ.get("COLUMNS", "")
    width = (
        shutil.get_terminal_size((_WIDTH, 24)).columns if is_terminal else int(columns) if columns.isdigit() else _WIDTH
    )
    text = io.StringIO()
    console = Console(file=text, width=max(60, width), force_terminal=is_terminal, highlight=False, emoji=False)
    for part in (*module.parts(report), *_explained(explained)):
        console.print(part, soft_wrap=isinstance(part, Text))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _explained(steps: Sequence[ExplainedStep]) -> list[RenderableType]:
    if not steps:
        return []
    shown: list[RenderableType] = [Text(), Text("How each number comes about", style="bold")]
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
