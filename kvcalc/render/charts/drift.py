"""The chart of ``kvcalc demo drift``: error over steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.charts.pieces import Axis, chart, line_layer

if TYPE_CHECKING:
    from kvcalc.core.reports.lessons import DriftReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]


def spec(report: DriftReport) -> Spec:
    """Return teacher-forced and free-running errors, without and with the consistency loss."""
    rows = [
        {"step": step.place, "error": error, "generator": name}
        for step in report.steps
        for name, error in (
            ("teacher-forced", step.teacher_forced_error),
            ("free-running", step.free_running_error),
            ("teacher-forced, consistency loss", step.teacher_forced_error_consistent),
            ("free-running, consistency loss", step.free_running_error_consistent),
        )
    ]
    lines = line_layer(
        rows,
        x=Axis(field="step", title="steps since the last true state", whole=True),
        y=Axis(field="error", title="distance from the truth (the cycle has radius 1)", format="~g"),
        series="generator",
        title="generator",
        points=False,
    )
    told = [
        f"means over {report.trainings} trainings; consistency loss over {report.horizon_steps} steps",
        "source: kvcalc, a generator of one hidden layer on a noisy cycle",
    ]
    return chart([lines], title="Drift of a generator that feeds on its own states", subtitle=told)
