"""The answers: what each question returns. Field names carry their units; they are the fields of ``--json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DecodeReport",
    "DecodeRow",
    "ExplainedStep",
    "GridCell",
    "KvSize",
    "PartCost",
    "PerGpu",
    "PlateauRow",
    "PrefillReport",
    "PrefillRow",
    "Reserved",
    "RooflinePoint",
    "RooflineReport",
    "RunFormats",
    "SizeReport",
    "StepSpread",
    "WeightSize",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedStep:
    """One formula with its numbers put in.

    Args:
        quantity: what is computed.
        formula: the formula in words and symbols.
        expression: the same with numbers, as arithmetic that can be evaluated.
        value: the result.
        unit: its unit.
        sources: where the numbers come from.
    """

    quantity: str
    formula: str
    expression: str
    value: float
    unit: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFormats:
    """Names of the formats a report was computed with."""

    weights: str
    kv: str
    activations: str


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

    bytes_per_token: int
    bytes_per_sequence: int
    state_bytes_per_sequence: int
    cross_bytes_per_sequence: int
    total_bytes: int
    affine: tuple[Mapping[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSize:
    """The weights.

    Args:
        parameters: of the text model, a tied table counted once.
        active_parameters: those a token is multiplied with.
        total_bytes: in the formats asked for.
        parts: parameters by part.
    """

    parameters: int
    active_parameters: int
    total_bytes: int
    parts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PerGpu:
    """Bytes on the fullest rank."""

    gpus: int
    kv_bytes: int
    weight_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """What a named engine allocates for the batch.

    Args:
        engine: the engine and the versions its model describes.
        kv_bytes: for keys and values.
        state_bytes: for recurrent states.
        total_bytes: both.
    """

    engine: str
    kv_bytes: int
    state_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """Total cache bytes at one context and batch."""

    context: int
    batch: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeReport:
    """How many bytes a model's cache and weights take."""

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
    grid: tuple[GridCell, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCost:
    """One part of a step: attention's matrices, cached attention, experts, head …"""

    part: str
    flop: float
    moved_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpread:
    """The ideal time if the tokens of a step touched the fewest or the most experts."""

    best_s: float
    worst_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRow:
    """One decode step over a batch.

    FLOP and bytes are those of the whole step, over all sequences and GPUs. Times are bounds.
    """

    batch: int
    context: int
    flop: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    intensity_flop_per_byte: float
    ideal_s: float
    serial_s: float
    tokens_per_s: float
    tokens_per_s_per_sequence: float
    tokens_per_s_per_gib: float
    limiter: str
    shares: Mapping[str, float]
    fits: bool
    memory_needed_bytes: int
    parts: tuple[PartCost, ...]
    experts: StepSpread | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport:
    """The bound on decoding speed, for each batch and context."""

    schema: str = "kvcalc.decode/1"
    model: str
    gpu: str
    gpus: int
    memory_bytes: int
    formats: RunFormats
    rows: tuple[DecodeRow, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """One prefill of a batch of prompts. ``ideal_s`` bounds the time to first token."""

    batch: int
    prompt: int
    flop: float
    weight_bytes: float
    kv_write_bytes: float
    intensity_flop_per_byte: float
    ideal_s: float
    serial_s: float
    tokens_per_s: float
    limiter: str
    shares: Mapping[str, float]
    fits: bool
    memory_needed_bytes: int
    parts: tuple[PartCost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillReport:
    """The bound on prefill, for each batch and prompt."""

    schema: str = "kvcalc.prefill/1"
    model: str
    gpu: str
    gpus: int
    memory_bytes: int
    formats: RunFormats
    rows: tuple[PrefillRow, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """Where a pass sits on the roofline.

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

    model: str
    phase: str
    batch: int
    context: int
    intensity_flop_per_byte: float
    attainable_flop_per_s: float
    limiter: str
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlateauRow:
    """Where the batch stops helping, for one model and context.

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
    plateau_flop_per_byte: float
    half_batch: int
    compute_bound_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineReport:
    """An accelerator's ceilings, and where models sit below them."""

    schema: str = "kvcalc.roofline/1"
    gpu: str
    gpus: int
    memory_bandwidth_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float]
    ridge_flop_per_byte: Mapping[str, float]
    points: tuple[RooflinePoint, ...] = ()
    plateaus: tuple[PlateauRow, ...] = ()
    notes: tuple[str, ...] = field(default=())
