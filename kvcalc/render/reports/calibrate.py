"""The tables of ``kvcalc calibrate``, and of ``kvcalc reconcile`` on measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import counted, number_text, seconds_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import facts, grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.calibrate import CalibratedPoint, CalibrateReport, MeasuredDeployment
    from kvcalc.render.layout import Part

__all__ = ["deployment_text", "parts", "sentence", "share_text"]

_MOST_ROWS = 40
_SMALL = 0.1


def share_text(share: float) -> str:
    """Return a share as percent with one digit below ten."""
    return f"{share:.1%}" if abs(share) < _SMALL else f"{share:.0%}"


def deployment_text(one: MeasuredDeployment) -> str:
    """Return a deployment in a line."""
    sizes = (("TP", one.tensor_parallel), ("PP", one.pipeline_parallel), ("EP", one.expert_parallel),
             ("DP", one.data_parallel))  # fmt: skip
    spread = " ".join(f"{name}{size}" for name, size in sizes if size > 1) or "1 GPU"
    engine = f"{one.engine or 'engine not told'} {one.engine_version}".strip()
    return f"{one.model} on {one.gpu}, {engine}, {spread}, weights {one.weights}, cache {one.kv_dtype}"


def sentence(report: CalibrateReport) -> str:
    """Return the median error before and after, and of what a fit has not seen."""
    rows = counted(len({each.id for each in report.points}), "row")
    unseen = "" if report.left_out_error is None else f"; {share_text(report.left_out_error)} on rows left out"
    errors = f"from {share_text(report.before)} to {share_text(report.after)}"
    return f"Fitted to {rows}, the median error falls {errors}{unseen}."


def parts(report: CalibrateReport) -> list[Part]:
    """Return the deployment, the terms and the points."""
    columns = ["term", "what takes the time", "factor", "told"]
    terms = [[each.term, each.meaning, f"{number_text(each.factor)} x", share_text(each.identified_share)]
             for each in report.terms]  # fmt: skip
    shown, file = report.points[:_MOST_ROWS], next(iter(report.files)) if len(report.files) == 1 else ""
    points = grid(["row", "time", "batch", "prompt", "output", "measured", "bound", "before", "after", "left out"],
                  [_cells(each, file) for each in shown], left=2,
                  ranks={"bound": 3, "output": 2, "prompt": 1})  # fmt: skip
    rest = [Text(f"… and {len(report.points) - len(shown):,} more")] if len(report.points) > len(shown) else []
    interval = f"{report.low_factor:.2f} to {report.high_factor:.2f} times the estimate holds four of five"
    assumed = [f"assumed: {each}" for each in report.assumed]
    return [
        heading(f"Calibration {report.name}"),
        facts([("taken for", deployment_text(report.deployment)), ("begins with", report.start),
               ("files", ", ".join(f"{name} ({form})" for name, form in report.files.items())),
               ("interval", interval)]),
        Text(),
        grid(columns, terms, left=2),
        Text(),
        points,
        *rest,
        *note_lines((*assumed, *report.notes)),
    ]  # fmt: skip


def _cells(each: CalibratedPoint, file: str) -> list[str]:
    def against(seconds: float | None) -> str:
        return "" if seconds is None else f"{seconds / each.measured_s - 1:+.0%}"

    sizes = (each.batch, each.prompt_tokens, each.output_tokens)
    name = each.id.removeprefix(file).strip() or each.id
    return [name, each.quantity, *("" if size is None else number_text(size) for size in sizes),
            seconds_text(each.measured_s), seconds_text(each.bound_s), against(each.before_s), against(each.after_s),
            against(each.left_out_s)]  # fmt: skip
