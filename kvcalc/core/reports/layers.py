"""Costs of each kind of layer in a pass: the answer of ``kvcalc layers``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcalc.core.figures import figure
from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.common import RunFormats

__all__ = ["LayerPart", "LayerRow", "LayerRun", "LayersReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPart:
    """The operators of one part of a kind of layer, over all its layers.

    Args:
        part: what they belong to: ``attention`` (projections), ``cache`` (scores, or the update of a state), ``mlp`` …
        flop: floating-point operations.
        weight_bytes: weights read.
        kv_read_bytes: cache and states read.
        moved_bytes: all bytes that must cross the memory, written entries included.
        intensity_flop_per_byte: FLOP over these bytes; none where nothing is moved.
        attainable_flop_per_s: FLOP over the least time; none where nothing is multiplied.
        ideal_s: least time on its own: the longer of compute and memory.
        limiter: the longer of both.
    """

    part: str = field(metadata=figure("part"))
    flop: float = field(metadata=figure("FLOP", "lower"))
    weight_bytes: float = field(metadata=figure("weights read", "lower"))
    kv_read_bytes: float = field(metadata=figure("cache read", "lower"))
    moved_bytes: float = field(metadata=figure("moved", "lower"))
    intensity_flop_per_byte: float | None = field(metadata=figure("FLOP/B"))
    attainable_flop_per_s: float | None = field(metadata=figure("attainable", "higher"))
    ideal_s: float = field(metadata=figure("alone", "lower"))
    limiter: str = field(metadata=figure("limiter"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One kind of layer, or what stands outside of all layers; of one GPU, over all layers of the kind.

    Args:
        kind: its name in the profile; ``embedding and head`` for what stands outside.
        what: what mixes the tokens and what follows it, in words.
        layers: layers of the kind.
        kv_bytes: cache and states that they hold for the batch at the context.
        flop: floating-point operations of the pass.
        weight_bytes: weights read.
        kv_read_bytes: cache and states read.
        moved_bytes: all bytes that must cross the memory.
        intensity_flop_per_byte: FLOP over these bytes.
        attainable_flop_per_s: FLOP over the least time of the kind on its own.
        ideal_s: that time.
        limiter: what it consists of.
        parts: the same by part.
    """

    kind: str = field(metadata=figure("kind"))
    what: str = field(metadata=figure("made of", rank=2))
    layers: int = field(metadata=figure("layers"))
    kv_bytes: int = field(metadata=figure("cache held", "lower", rank=1))
    flop: float = field(metadata=figure("FLOP", "lower"))
    weight_bytes: float = field(metadata=figure("weights read", "lower"))
    kv_read_bytes: float = field(metadata=figure("cache read", "lower"))
    moved_bytes: float = field(metadata=figure("moved", "lower"))
    intensity_flop_per_byte: float | None = field(metadata=figure("FLOP/B"))
    attainable_flop_per_s: float | None = field(metadata=figure("attainable", "higher"))
    ideal_s: float = field(metadata=figure("alone", "lower"))
    limiter: str = field(metadata=figure("limiter"))
    parts: tuple[LayerPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """Layers of one kind that follow each other.

    Args:
        kind: as in the rows.
        first: index of the first, from 0.
        layers: how many.
    """

    kind: str
    first: int
    layers: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LayersReport(Report):
    """A pass by kinds of layers, each with its bytes, FLOP and place on the roofline, and the order they stand in.

    Args:
        phase: ``decode`` or ``prefill``.
        batch: sequences.
        context: tokens attended (decode) or prompt tokens (prefill).
        gpus: accelerators; figures are those of one of them, the fullest of its replicas, over all pipeline stages.
        ridge_flop_per_byte: the ridge point of each format.
        rows: the kinds in order of first appearance; what stands outside of layers last.
        order: the layers from first to last.
    """

    schema: str = "kvcalc.layers/1"
    model: str
    gpu: str
    gpus: int
    formats: RunFormats
    phase: str
    batch: int
    context: int
    memory_bandwidth_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float]
    ridge_flop_per_byte: Mapping[str, float]
    rows: tuple[LayerRow, ...]
    order: tuple[LayerRun, ...]
    notes: tuple[str, ...] = ()
