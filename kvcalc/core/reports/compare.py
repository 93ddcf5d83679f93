"""Side by side: the answer of ``kvcalc compare``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcalc.core.figures import figure
from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CompareReport", "CompareRow", "CompareValue", "ComparedSide", "GpuFigures"]

# What a side can have of a quantity; none where it is not known or does not apply.
CompareValue = float | str | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """One of what is compared.

    Args:
        label: what tells it from the others.
        model: its model; empty where accelerators alone are compared.
        gpu: its accelerator; empty where models alone are compared.
        gpus: how many.
        batch: sequences.
        context: tokens attended, and tokens of the prompt.
        misfit: why the engine does not hold it; empty where it does, or where that is not known.
    """

    label: str
    model: str
    gpu: str
    gpus: int
    batch: int
    context: int
    misfit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """An accelerator's own figures, where accelerators alone are compared; peaks and ridge points by format."""

    memory_bytes: int = field(metadata=figure("memory", "higher"))
    memory_bandwidth_bytes_per_s: float = field(metadata=figure("bandwidth", "higher"))
    board_power_w: float | None = field(metadata=figure("board power, W", "lower"))
    price_per_hour_usd: float | None = field(metadata=figure("price of an hour", "lower"))
    peak_flop_per_s: Mapping[str, float] = field(metadata=figure("peak", "higher"))
    ridge_flop_per_byte: Mapping[str, float] = field(metadata=figure("ridge, FLOP/B"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRow:
    """One quantity of all sides.

    Args:
        quantity: the report and the field it is from, for example ``decode.tokens_per_s``.
        label: what it is called.
        better: ``lower``, ``higher`` or empty where neither is.
        values: what each side has.
        differences: to the first side, where both are numbers.
        ratios: to the first side, where both are numbers.
        best: places of the best, counted from 0; a speed of what does not fit is never the best.
    """

    quantity: str
    label: str
    better: str
    values: tuple[CompareValue, ...]
    differences: tuple[float | None, ...]
    ratios: tuple[float | None, ...]
    best: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompareReport(Report):
    """Models, accelerators, formats or whole deployments side by side."""

    schema: str = "kvcalc.compare/1"
    sides: tuple[ComparedSide, ...]
    rows: tuple[CompareRow, ...]
    notes: tuple[str, ...] = ()
