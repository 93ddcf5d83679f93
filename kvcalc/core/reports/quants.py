"""A model's file by every recipe of llama.cpp: the answer of ``kvcalc models quants``."""

from __future__ import annotations

from dataclasses import dataclass

from kvcalc.core.reports.common import Report

__all__ = ["QuantRow", "QuantsReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantRow:
    """One recipe.

    Args:
        recipe: its name.
        total_bytes: bytes of the file's tensors.
        bits_per_weight: bits of an element in the mean.
        mixture: matrices of each type, the most bytes first.
        needs_imatrix: whether the tool makes it only with an importance matrix.
        fits: whether weights, and the cache at the context, are within the memory; none where no memory is given.
        max_context: the most tokens of one sequence whose cache is within it beside the weights; 0 where it holds none.
    """

    recipe: str
    total_bytes: int
    bits_per_weight: float
    mixture: str
    needs_imatrix: bool
    fits: bool | None = None
    max_context: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QuantsReport(Report):
    """A model's file by every recipe, the largest first."""

    schema: str = "kvcalc.quants/1"
    model: str
    context: int
    memory_bytes: int | None
    rows: tuple[QuantRow, ...]
    notes: tuple[str, ...] = ()
