"""Models below the ceilings of an accelerator: the answer of ``kvcalc roofline``."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kvcalc.core.figures import figure
from kvcalc.core.records import dataclass
from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PlateauRow", "RooflinePoint", "RooflineReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """The place of a pass on the roofline.

    Args:
        model: the model.
        phase: ``decode`` or ``prefill``.
        batch: sequences.
        context: tokens attended (decode) or prompt tokens (prefill).
        intensity_flop_per_byte: FLOP over compulsory bytes.
        attainable_flop_per_s: FLOP over the ideal time, on all GPUs together.
        limiter: what the ideal time consists of.
        fits: whether weights and cache fit in memory.
    """

    model: str = field(metadata=figure("model"))
    phase: str = field(metadata=figure("phase"))
    batch: int = field(metadata=figure("batch"))
    context: int = field(metadata=figure("context"))
    intensity_flop_per_byte: float = field(metadata=figure("FLOP/B"))
    attainable_flop_per_s: float = field(metadata=figure("attainable", "higher"))
    limiter: str = field(metadata=figure("limiter"))
    fits: bool = field(metadata=figure("fits", "higher"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlateauRow:
    """The point at which the batch stops helping, for one model and context.

    Args:
        model: the model.
        context: tokens attended.
        plateau_flop_per_byte: the intensity that decode tends to as the batch grows; none where nothing but the cache
            is ever left to read (it then grows with the batch without end).
        half_batch: the smallest batch that reaches half of it.
        compute_bound_batch: the smallest batch at which compute is the limit; none where the cache is it for ever.
    """

    model: str
    context: int
    plateau_flop_per_byte: float = field(metadata=figure("plateau"))
    half_batch: int = field(metadata=figure("half at batch"))
    compute_bound_batch: int | None = field(metadata=figure("compute-bound from batch"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RooflineReport(Report):
    """An accelerator's ceilings, and where models sit below them."""

    schema: str = "kvcalc.roofline/1"
    gpu: str
    gpus: int
    memory_bandwidth_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float]
    ridge_flop_per_byte: Mapping[str, float]
    points: tuple[RooflinePoint, ...] = ()
    plateaus: tuple[PlateauRow, ...] = ()
    notes: tuple[str, ...] = ()
