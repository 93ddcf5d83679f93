"""A question over a grid: the answer of ``kvcalc sweep``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SweepReport"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepReport(Report):
    """The rows of a report for every point of a grid.

    Args:
        report: the report whose rows these are.
        points: points of the grid.
        rows: one for each point, in the order of the grid: what was varied, then the report's fields, nested ones with
            dotted names; a point that cannot be computed has ``error`` in their place. Where the Pareto front was asked
            for, its points alone, the fastest for one sequence first.
        slo: the limits that ``best`` keeps, as given; empty where there are none.
        best: of the points within them, the one with the most tokens/s of an accelerator.
        saved: the file the rows were written to instead; empty where they are here.
        notes: what a user should know.
    """

    schema: str = "kvcalc.sweep/1"
    report: str
    points: int
    rows: tuple[Mapping[str, Any], ...] = ()
    slo: str = ""
    best: Mapping[str, Any] | None = None
    saved: str = ""
    notes: tuple[str, ...] = ()
