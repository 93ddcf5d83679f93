"""The table of ``kvcalc check``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.layout import Text
from kvcalc.render.tables.pieces import facts, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.check import CheckReport
    from kvcalc.render.layout import Part

__all__ = ["parts"]


def parts(report: CheckReport) -> list[Part]:
    """Return each assertion: its verdict, and what was expected and found."""
    shown: list[Part] = []
    for check in report.checks:
        verdict = check.verdict or ("passed" if check.passed else "failed")
        shown.append(Text(verdict, style="bold" if check.passed else "bold red"))
        shown.append(facts([("check", check.name), ("expected", check.expected), ("actual", check.actual)]))
        if check.assumptions:
            shown += [Text(), heading("Which assumption would have to be wrong, any one of them")]
            shown += [Text(f"- {each.text}: {each.bound_share:.0%} of the bound") for each in check.assumptions]
        elif not check.passed and check.measured_s is not None:
            shown.append(Text("no single change of formats, drafts, sequences, accelerator or GPUs makes it possible"))
    return [*shown, *note_lines(report.notes)]
