"""Bytes of cache and weights: the answer of ``kvcalc size``."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kvcalc.core.figures import figure
from kvcalc.core.records import dataclass
from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.common import RunFormats

__all__ = ["GridCell", "KvSize", "PerGpu", "Reserved", "SizeReport", "WeightSize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSize:
    """The cache, in logical bytes.

    Args:
        bytes_per_token: what the next token after the context adds to a sequence.
        bytes_per_sequence: growing part at the context plus states.
        state_bytes_per_sequence: states, whatever the context.
        cross_bytes_per_sequence: keys and values of an encoder's output, apart from the above.
        total_bytes: ``bytes_per_sequence`` times the batch.
        affine: straight lines in the context: from_tokens, base_bytes, bytes_per_token.
    """

    bytes_per_token: int = field(metadata=figure("KV per token", "lower"))
    bytes_per_sequence: int = field(metadata=figure("KV per sequence", "lower"))
    state_bytes_per_sequence: int = field(metadata=figure("state per sequence", "lower"))
    cross_bytes_per_sequence: int = field(metadata=figure("cross-attention KV per sequence", "lower"))
    total_bytes: int = field(metadata=figure("KV in total", "lower"))
    affine: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSize:
    """The weights.

    Args:
        parameters: of the whole model as it is loaded, towers included, a tied table counted once.
        active_parameters: those of the text model that a token is multiplied with.
        total_bytes: in the formats asked for.
        parts: parameters by part, towers apart.
    """

    parameters: int = field(metadata=figure("parameters"))
    active_parameters: int = field(metadata=figure("active parameters"))
    total_bytes: int = field(metadata=figure("weights", "lower"))
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PerGpu:
    """Bytes on the fullest rank.

    Args:
        gpus: ranks in all.
        kv_bytes: of the cache.
        weight_bytes: of the checkpoint's weights.
        loaded_weight_bytes: of the weights as the engine loads them, padding included; none without an engine.
    """

    gpus: int
    kv_bytes: int = field(metadata=figure("KV per GPU", "lower"))
    weight_bytes: int = field(metadata=figure("weights per GPU", "lower"))
    loaded_weight_bytes: int | None = field(default=None, metadata=figure("weights as loaded", "lower"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """Bytes that a named engine allocates for the batch.

    Args:
        engine: the engine and the versions its model describes.
        kv_bytes: for keys and values.
        state_bytes: for recurrent states.
        total_bytes: both, and keys and values of an encoder's output.
    """

    engine: str
    kv_bytes: int = field(metadata=figure("reserved for the cache", "lower"))
    state_bytes: int = field(metadata=figure("reserved for states", "lower"))
    total_bytes: int = field(metadata=figure("reserved", "lower"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """Total cache bytes at one context and batch."""

    context: int
    batch: int
    total_bytes: int = field(metadata=figure("KV cache in total", "lower"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SizeReport(Report):
    """Bytes of a model's cache and weights.

    ``assumed`` names the engine's defaults that move what it reserves by more than 2 %, in one line.
    """

    schema: str = "kvcalc.size/1"
    model: str
    architecture: str
    context: int
    batch: int
    formats: RunFormats
    kv: KvSize
    weights: WeightSize
    per_gpu: PerGpu
    reserved: Reserved | None = None
    assumed: str = ""
    grid: tuple[GridCell, ...] = ()
    notes: tuple[str, ...] = ()
