"""The tables of ``kvcalc check``: assertions, and whether a measured speed is possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import counted
from kvcalc.render.layout import Text
from kvcalc.render.tables import expected_text, facts, grid, heading, note_lines, plain_text

if TYPE_CHECKING:
    from kvcalc.core.reports.check import CheckReport
    from kvcalc.core.reports.checks import ChecksReport
    from kvcalc.render.layout import Part

__all__ = ["measured_parts", "measured_sentence", "parts", "sentence"]


def sentence(report: ChecksReport) -> str:
    """Count the assertions that hold and the figures that got worse."""
    passed = len(report.checks) - report.failures
    worse = f", and {counted(report.regressions, 'figure')} got worse" if report.regressions else ""
    return f"{passed} of {counted(len(report.checks), 'check')} hold{'s' * (len(report.checks) == 1)}{worse}."


def parts(report: ChecksReport) -> list[Part]:
    """Return each assertion with its outcome, and what changed."""
    rows = [
        ["ok" if check.passed else "FAILED", check.name, plain_text(check.actual), expected_text(check.expected)]
        for check in report.checks
    ]
    shown: list[Part] = [grid(["", "check", "is", "expected"], rows, left=2)]
    if report.changes:
        changed = [
            [
                "WORSE" if change.worse else "",
                change.name,
                plain_text(change.before),
                plain_text(change.after),
                _ratio(change.ratio),
            ]
            for change in report.changes
        ]
        shown += [Text(), heading("Changes"), grid(["", "check", "was", "is", "times"], changed, left=2)]
    failed = report.failures or any(change.worse for change in report.changes)
    shown += [Text()] * bool(failed)
    shown += [Text(f"{check.where}: {check.message}", style="red") for check in report.checks if not check.passed]
    shown += [Text(f"{change.where}: {change.message}", style="red") for change in report.changes if change.worse]
    return [*shown, *note_lines(report.notes)]


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:,.3g}"


def measured_sentence(report: CheckReport) -> str:
    """Return the verdict on each measured speed."""
    verdicts = [check.verdict or ("passed" if check.passed else "failed") for check in report.checks]
    return "; ".join(f"{check.actual}: {verdict}" for check, verdict in zip(report.checks, verdicts, strict=True)) + "."


def measured_parts(report: CheckReport) -> list[Part]:
    """Return each assertion: what was expected and found."""
    shown: list[Part] = []
    for check in report.checks:
        shown.append(facts([("check", check.name), ("expected", check.expected), ("actual", check.actual)]))
        if check.assumptions:
            shown += [Text(), heading("Any one of these wrong assumptions would explain it")]
            shown += [Text(f"- {each.text}: {each.bound_share:.0%} of the bound") for each in check.assumptions]
        elif not check.passed and check.measured_s is not None:
            shown.append(Text("no single change of format, draft, batch, accelerator or GPU count makes it possible"))
    return [*shown, *note_lines(report.notes)]
