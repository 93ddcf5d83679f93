"""The tables of ``kvcalc check``: assertions, and whether a measured speed is possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.layout import Text
from kvcalc.render.tables import expected_text, facts, grid, heading, note_lines, plain_text

if TYPE_CHECKING:
    from kvcalc.core.reports.check import CheckReport
    from kvcalc.core.reports.checks import ChecksReport
    from kvcalc.render.layout import Part

__all__ = ["measured_parts", "parts"]


def parts(report: ChecksReport) -> list[Part]:
    """Return each assertion with its outcome, what changed, and the verdict last."""
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
        shown += [Text(), heading("Changed since then"), grid(["", "check", "was", "is", "times"], changed, left=2)]
    shown.append(Text())
    shown += [Text(f"{check.where}: {check.message}", style="red") for check in report.checks if not check.passed]
    shown += [Text(f"{change.where}: {change.message}", style="red") for change in report.changes if change.worse]
    return [*shown, _verdict(report), *note_lines(report.notes)]


def _verdict(report: ChecksReport) -> Text:
    count = f"{len(report.checks) - report.failures} of {len(report.checks)} hold"
    worse = f", {report.regressions} got worse" if report.regressions else ""
    return Text(count + worse, style="bold green" if report.passed else "bold red")


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:,.3g}"


def measured_parts(report: CheckReport) -> list[Part]:
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
