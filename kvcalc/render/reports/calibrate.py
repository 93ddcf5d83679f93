"""The tables of ``kvcalc calibrate``, and of ``kvcalc reconcile`` on measurements."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from kvcalc.core.units import counted, number_text, seconds_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import facts, grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.calibrate import (
        CalibratedPoint,
        CalibrateReport,
        MeasuredDeployment,
        MeasuredPoint,
        MeasuredReport,
    )
    from kvcalc.render.layout import Part

__all__ = ["deployment_text", "measured_parts", "measured_sentence", "parts", "sentence", "share_text"]

_MOST_ROWS = 40
# Below this, a share is told with a digit more.
_SMALL = 0.1
# Terms of less than this share of the time are not named.
_SHOWN = 0.05


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


def measured_sentence(report: MeasuredReport) -> str:
    """Return the median multiples of bound and estimate; first of all, whether a bound is beaten."""
    bound = median(each.measured_s / each.bound_s for each in report.rows)
    estimate = median(each.measured_s / each.estimate_s for each in report.rows)
    times = "time takes" if len(report.rows) == 1 else "times take"
    beaten = sum(each.measured_s < each.bound_s for each in report.rows)
    many = len(report.rows)
    beyond = f"{beaten} of {many} measured times cannot be of this deployment as it is taken: below the bound. "
    return (
        f"{beyond if beaten else ''}"
        f"The measured {times} {bound:.2f} times the bound and {estimate:.2f} times the estimate"
        f"{'' if many == 1 else ' in the median'}."
    )


def measured_parts(report: MeasuredReport) -> list[Part]:
    """Return the measured times with bound, estimate and rates reached, and where the estimated time goes."""
    file = next(iter(report.files)) if len(report.files) == 1 else ""
    shown = report.rows[:_MOST_ROWS]
    rows = [_measured_cells(each, file) for each in shown]
    columns = ["row", "time", "batch", "prompt", "measured", "bound", "estimate", "80% interval", "MBU", "MFU"]
    table = grid(columns, rows, left=2, ranks={"prompt": 2, "bound": 1})
    goes = grid(["row", "time", "where the estimate goes"], [_goes_cells(each, file) for each in shown], left=3)
    reasons = dict.fromkeys(f"{each.quantity}: {each.reason}" for each in shown)
    advice = dict.fromkeys(
        f"{each.quantity} goes most into {TERMS_TEXT[next(iter(each.terms_s))]}: {each.advice}" for each in shown
    )
    counters = []
    if report.engine_mbu_share is not None and report.engine_mfu_share is not None:
        reached = f"MBU {share_text(report.engine_mbu_share)}, MFU {share_text(report.engine_mfu_share)}"
        counters.append(("engine's counters", f"{reached} while it was asked"))
    return [
        heading("Measured against bound and estimate"),
        facts([("taken for", deployment_text(report.deployment)), ("estimates by", report.calibration),
               ("files", ", ".join(f"{name} ({form})" for name, form in report.files.items())), *counters]),
        Text(),
        table,
        Text(),
        goes,
        Text(),
        *(Text(f"- {each}") for each in (*reasons, *advice)),
        *note_lines((*(f"assumed: {each}" for each in report.assumed), *report.notes)),
    ]  # fmt: skip


# The terms of an estimate in a few words.
TERMS_TEXT = {
    "matrix": "matrices",
    "experts": "experts",
    "attention": "attention",
    "launches": "calls and layers",
    "step": "the pass itself",
    "tokens": "sampling",
    "collectives": "collectives",
    "links": "links",
    "prompts": "prompts of others",
    "request": "the request itself",
    "steps_before": "steps of others before it",
    "queue": "prompts before it",
}


def _measured_cells(each: MeasuredPoint, file: str) -> list[str]:
    name = each.id.removeprefix(file).strip() or each.id
    sizes = ("" if size is None else number_text(size) for size in (each.batch, each.prompt_tokens))
    times = (seconds_text(size) for size in (each.measured_s, each.bound_s, each.estimate_s))
    interval = f"{seconds_text(each.low_s)} to {seconds_text(each.high_s)}"
    return [name, each.quantity, *sizes, *times, interval, share_text(each.mbu_share), share_text(each.mfu_share)]


def _goes_cells(each: MeasuredPoint, file: str) -> list[str]:
    name = each.id.removeprefix(file).strip() or each.id
    whole = sum(each.terms_s.values())
    largest = [(term, seconds / whole) for term, seconds in each.terms_s.items() if seconds >= _SHOWN * whole]
    return [name, each.quantity, ", ".join(f"{TERMS_TEXT[term]} {share:.0%}" for term, share in largest)]
