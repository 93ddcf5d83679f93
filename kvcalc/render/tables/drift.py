"""What ``kvcalc demo drift`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.layout import Text
from kvcalc.render.tables.pieces import grid, heading
from kvcalc.render.terminal import line_chart

if TYPE_CHECKING:
    from kvcalc.core.reports.lessons import DriftReport
    from kvcalc.render.layout import Part

__all__ = ["parts", "picture", "steps"]


def parts(report: DriftReport) -> list[Part]:
    """Return the errors at a few steps."""
    places = sorted({1, 10, len(report.steps) // 2, len(report.steps)} & set(range(1, len(report.steps) + 1)))
    rows = []
    for place in places:
        step = report.steps[place - 1]
        errors = (step.teacher_forced_error, step.free_running_error,
                  step.teacher_forced_error_consistent, step.free_running_error_consistent)  # fmt: skip
        rows.append([str(place), *(f"{error:.3f}" for error in errors)])
    columns = ["step", "teacher-forced", "free-running", "consistent, forced", "consistent, free"]
    title = "Drift: distance from a cycle of radius 1, for a generator that feeds on its own states"
    nearer = report.reduction >= 1
    times = f"{report.reduction:.1f} times nearer" if nearer else f"{1 / report.reduction:.1f} times farther off"
    over = f"Means over {report.trainings} trainings" if report.trainings > 1 else "One training"
    told = (
        f"Trained on single steps its errors add up. Let run on its own for {report.horizon_steps} steps in training"
        f" (consistency loss, weight {report.consistency:g}),\nit is {times} after"
        f" {len(report.steps)} steps: {report.final_error_consistent:.3f} instead of {report.final_error:.3f}."
        f" {over}; noise {report.noise:g}."
    )
    if not nearer:
        told += "\nThe loss does not help in every training: more --trainings show what it does on average."
    return [heading(title), grid(columns, rows, left=0), Text(), Text(told)]


def steps(report: DriftReport) -> list[list[str]]:
    """Return a line for each step."""
    return [
        [
            f"step {step.place}: teacher-forced {step.teacher_forced_error:.3f}",
            f"  free-running {step.free_running_error:.3f}, consistent {step.free_running_error_consistent:.3f}",
        ]
        for step in report.steps
    ]


def picture(report: DriftReport, *, plain: bool) -> str:
    """Return the errors over steps."""
    lines = {
        "teacher-forced": [(step.place, step.teacher_forced_error) for step in report.steps],
        "free-running": [(step.place, step.free_running_error) for step in report.steps],
        "free-running, consistency loss": [(step.place, step.free_running_error_consistent) for step in report.steps],
    }
    return line_chart(lines, x="steps", y="distance", plain=plain)
