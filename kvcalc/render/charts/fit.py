"""The chart of ``kvcalc fit``: what takes the memory of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.render.charts.pieces import Axis, bar_layer, chart, limit_layer
from kvcalc.render.words import formats_text, gpus_text

if TYPE_CHECKING:
    from kvcalc.core.reports.fit import FitReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]

_HEIGHT = 60


def spec(report: FitReport) -> Spec:
    """Return one bar of the budget's terms beside each other, with the memory as a line.

    Raises:
        InputError: a report without a budget.
    """
    budget = report.budget
    if budget is None:
        raise InputError("without a budget there is nothing to draw", hint="give --gpu instead of --kv-memory")
    parts = {
        "weights": budget.weight_bytes,
        "activations": budget.activation_bytes,
        "overhead": budget.overhead_bytes,
        "cache": report.reserved_kv_bytes,
        "left for the cache": max(0, budget.kv_bytes_available - report.reserved_kv_bytes),
    }
    rows: list[dict[str, Any]] = [{"part": part, "bytes": value, "gpu": report.gpu} for part, value in parts.items()]
    x = Axis(field="bytes", title="memory of the fullest GPU, bytes")
    told = [
        f"{report.engine}; {formats_text(report.formats)}; batch {report.batch:,}, context {report.context:,}",
        f"line: the GPU's memory, of which the engine may use {budget.utilization:.0%}",
        f"source: kvcalc fit, profiles {report.model} and {report.gpu}",
    ]
    bars = bar_layer(rows, x=x, series="part", title="what takes it")
    verdict = "fits" if report.fits else "does not fit"
    return chart([bars, limit_layer(budget.memory_bytes, along=x, across=False)], height=_HEIGHT, subtitle=told,
                 title=f"{report.model} on {gpus_text(report)}: {verdict}")  # fmt: skip
