"""Figures of reports declared once, beside their fields: label, column, and which end is better.

Tables, comparisons, checks against an earlier run and pages take them from here. A figure's unit is the end of its
field's name.
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REPORTS", "Figure", "figure", "figure_at", "figures_of"]

_KEY = "figure"
# The class of each report whose figures can be asserted or compared; a bare name of a field is its row's.
REPORTS = {
    "size": "size.SizeReport",
    "decode": "speed.DecodeReport",
    "prefill": "speed.PrefillReport",
    "roofline": "roofline.RooflineReport",
    "fit": "fit.FitReport",
    "solve": "solve.SolveReport",
    "speculate": "speculative.SpeculativeReport",
    "traffic": "traffic.TrafficReport",
    "levers": "levers.LeversReport",
    "simulate": "simulate.SimulateReport",
    "gpu": "compare.GpuFigures",
}
_ROWS = ("rows", "points")


class Figure(NamedTuple):
    """What a reader should know of a field.

    Args:
        label: what it is called.
        better: ``lower``, ``higher`` or empty where neither end is.
        column: its name above a column.
        digits: decimals in a table; as its unit is usually printed where left out.
    """

    label: str
    better: str = ""
    column: str = ""
    digits: int | None = None


def figure(label: str, better: str = "", *, column: str = "", digits: int | None = None) -> dict[str, Figure]:
    """Return the metadata that makes a dataclass's field a figure; arguments as those of `Figure`."""
    return {_KEY: Figure(label=label, better=better, column=column or label, digits=digits)}


@lru_cache(maxsize=128)
def figures_of(kind: type[Any]) -> Mapping[str, Figure]:
    """Return the figures that a report, or a part of one, declares, by the names of their fields."""
    return {each.name: each.metadata[_KEY] for each in fields(kind) if _KEY in each.metadata}


@lru_cache(maxsize=512)
def figure_at(path: str) -> Figure | None:
    """Return the figure of a dotted name, none where it is none.

    Args:
        path: report, parts and field: ``size.kv.bytes_per_token``; ``decode.tokens_per_s`` is that of each row.

    >>> figure_at("decode.tokens_per_s").better, figure_at("size.kv.bytes_per_token").better
    ('higher', 'lower')
    >>> figure_at("simulate.summary.ttft_s.p95").better, figure_at("decode.batch")
    ('lower', None)
    """
    report, *steps = path.split(".")
    if report not in REPORTS:
        return None
    module, _, name = REPORTS[report].partition(".")
    kind: Any = getattr(import_module(f"kvcalc.core.reports.{module}"), name)
    declared: Figure | None = None
    for step in steps:
        if step.isdigit():
            continue
        if kind is None:
            break  # a statistic, or a format, of the figure before it
        names = {each.name for each in fields(kind)}
        if step not in names:
            kind = next((_part(kind, rows) for rows in _ROWS if rows in names), None)
            if kind is None or step not in {each.name for each in fields(kind)}:
                return None
        declared = figures_of(kind).get(step)
        kind = _part(kind, step)
    return declared


def _part(kind: type[Any], name: str) -> Any:
    """Return the class of a part of a report, or of its rows; none where the field is no such part."""
    annotation = next(each.type for each in fields(kind) if each.name == name)
    module = vars(sys.modules[kind.__module__])
    named = (module.get(word) for word in re.findall(r"\w+", str(annotation)))
    return next((each for each in named if isinstance(each, type) and is_dataclass(each)), None)
