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
    from collections.abc import Callable, Mapping

__all__ = ["REPORTS", "Figure", "derived", "derived_of", "figure", "figure_at", "figures_of"]

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
    "layers": "layers.LayersReport",
    "levers": "levers.LeversReport",
    "simulate": "simulate.SimulateReport",
    "gpu": "compare.GpuFigures",
}
_ROWS = ("rows", "points")


class Figure(NamedTuple):
    """Label, column and better end of a field.

    Args:
        label: what it is called.
        better: ``lower``, ``higher`` or empty where neither end is.
        column: its name above a column.
        digits: decimals in a table; as its unit is usually printed where left out.
        rank: when its column is left out of a table that is too wide: the highest first, 0 never.
    """

    label: str
    better: str = ""
    column: str = ""
    digits: int | None = None
    rank: int = 0


def figure(
    label: str, better: str = "", *, column: str = "", digits: int | None = None, rank: int = 0
) -> dict[str, Figure]:
    """Return the metadata that makes a dataclass's field a figure; arguments as those of `Figure`."""
    return {_KEY: Figure(label=label, better=better, column=column or label, digits=digits, rank=rank)}


class _Derived(property):
    """A figure that follows from others of its row."""

    figure: Figure


def derived(label: str, better: str = "", *, column: str = "", digits: int | None = None) -> Callable[[Any], Any]:
    """Return a decorator that makes a method of a row a figure, in tables and JSON as its fields are.

    Arguments as those of `Figure`.
    """

    def decorate(method: Callable[[Any], Any]) -> Any:
        made = _Derived(method)
        made.figure = Figure(label=label, better=better, column=column or label, digits=digits)
        return made

    return decorate


@lru_cache(maxsize=128)
def derived_of(kind: Any) -> Mapping[str, Figure]:
    """Return the figures of a row that follow from its fields, by name."""
    return {name: each.figure for name, each in vars(kind).items() if isinstance(each, _Derived)}


@lru_cache(maxsize=128)
def figures_of(kind: Any) -> Mapping[str, Figure]:
    """Return the figures that a report, or a part of one, declares, by the names of their fields."""
    declared = {each.name: each.metadata[_KEY] for each in fields(kind) if _KEY in each.metadata}
    return {**declared, **derived_of(kind)}


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
        if step not in _names(kind):
            kind = next((_part(kind, rows) for rows in _ROWS if rows in _names(kind)), None)
            if kind is None or step not in _names(kind):
                return None
        declared = figures_of(kind).get(step)
        kind = _part(kind, step)
    return declared


def _names(kind: Any) -> set[str]:
    return {each.name for each in fields(kind)} | set(derived_of(kind))


def _part(kind: type[Any], name: str) -> Any:
    """Return the class of a part of a report, or of its rows; none where the field is no such part."""
    annotation = next((each.type for each in fields(kind) if each.name == name), "")
    module = vars(sys.modules[kind.__module__])
    named = (module.get(word) for word in re.findall(r"\w+", str(annotation)))
    return next((each for each in named if isinstance(each, type) and is_dataclass(each)), None)
