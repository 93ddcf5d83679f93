"""Bounds on speed: the answers of ``kvcalc decode`` and ``kvcalc prefill``."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from kvcalc.core.figures import derived, figure
from kvcalc.core.records import dataclass
from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.common import RunFormats

__all__ = [
    "DecodeReport",
    "DecodeRow",
    "EstimatedWith",
    "PartCost",
    "PrefillReport",
    "PrefillRow",
    "StepSpread",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCost:
    """One part of a step: attention's matrices, cached attention, experts, head and so on."""

    part: str
    flop: float
    moved_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpread:
    """The ideal time if the tokens of a step touched the fewest or the most experts."""

    best_s: float = field(metadata=figure("fewest experts", "lower"))
    worst_s: float = field(metadata=figure("most experts", "lower"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedWith:
    """The calibration that a report's estimates are made with.

    Args:
        name: its name.
        engine: the engine it was measured with.
        measured_on: the accelerators it was measured on.
        date: when it was fitted or measured.
    """

    name: str
    engine: str
    measured_on: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRow:
    """One decode step over a batch.

    FLOP and bytes are those of the whole step, over all sequences and GPUs. Times are bounds, and so are dollars and
    joules: the least at the speed of the bound, at the price of a GPU-hour and the power drawn, where those are known.
    The estimate is none where none was asked for or no calibration applies; its interval holds four of five
    measurements. ``columns`` are the figures of the table, from left to right.
    """

    batch: int
    context: int
    flop: float
    weight_bytes: float = field(metadata=figure("weights read", "lower"))
    kv_read_bytes: float = field(metadata=figure("cache read", "lower"))
    kv_write_bytes: float = field(metadata=figure("cache written", "lower"))
    intensity_flop_per_byte: float = field(metadata=figure("FLOP/B", rank=3))
    ideal_s: float = field(metadata=figure("decode step (lower bound)", "lower", column="ideal"))
    serial_s: float = field(metadata=figure("decode step, serial", "lower", column="serial", rank=2))
    tokens_per_s: float = field(metadata=figure("tokens/s (upper bound)", "higher", column="tokens/s"))
    tokens_per_s_per_sequence: float = field(metadata=figure("tokens/s per sequence", "higher", column="per seq."))
    tokens_per_s_per_gib: float = field(metadata=figure("tokens/s per GiB used", "higher", column="tok/s/GiB", rank=4))
    limiter: str = field(metadata=figure("decode limited by", column="limiter"))
    shares: Mapping[str, float]
    fits: bool = field(metadata=figure("fits", "higher"))
    memory_needed_bytes: int = field(metadata=figure("memory per GPU", "lower", column="memory", rank=1))
    parts: tuple[PartCost, ...]
    usd_per_million_tokens: float | None = field(
        default=None, metadata=figure("cost per 1M tokens (lower bound)", "lower", column="$/Mtok")
    )
    joules_per_token: float | None = field(default=None, metadata=figure("energy per token, J (lower bound)", "lower"))
    experts: StepSpread | None = None
    estimate_s: float | None = field(default=None, metadata=figure("step, estimate", "lower", column="estimate"))
    estimate_low_s: float | None = field(default=None, metadata=figure("step, estimate, low", "lower"))
    estimate_high_s: float | None = field(default=None, metadata=figure("step, estimate, high", "lower"))
    estimate_tokens_per_s: float | None = field(
        default=None, metadata=figure("tokens/s, estimate", "higher", column="tokens/s")
    )

    columns: ClassVar = ("batch", "context", "tokens_per_s", "tokens_per_s_per_sequence", "ideal_s", "serial_s",
                         "intensity_flop_per_byte", "memory_needed_bytes", "tokens_per_s_per_gib",
                         "usd_per_million_tokens", "limiter")  # fmt: skip

    @derived("of the bound's speed", "higher", column="of the bound")
    def bound_share(self) -> float | None:
        """The estimated speed as a share of the bound's; none without an estimate."""
        return None if self.estimate_s is None else self.ideal_s / self.estimate_s


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DecodeReport(Report):
    """The bound on decoding speed, for each batch and context.

    What fits is decided by the start of ``engine``; ``fit_reason`` is why the first row that does not fit does not.
    """

    schema: str = "kvcalc.decode/1"
    model: str
    gpu: str
    gpus: int
    memory_bytes: int
    formats: RunFormats
    rows: tuple[DecodeRow, ...]
    price_per_hour_usd: float | None = None
    power_w: float | None = None
    notes: tuple[str, ...] = ()
    calibration: EstimatedWith | None = None
    engine: str = ""
    fit_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """One prefill of a batch of prompts. ``ideal_s`` bounds the time to first token."""

    batch: int
    prompt: int
    flop: float = field(metadata=figure("FLOP", rank=5))
    weight_bytes: float = field(metadata=figure("weights read", "lower"))
    kv_write_bytes: float = field(metadata=figure("cache written", "lower"))
    intensity_flop_per_byte: float = field(metadata=figure("FLOP/B", rank=3))
    ideal_s: float = field(metadata=figure("TTFT (lower bound)", "lower", column="TTFT ideal"))
    serial_s: float = field(metadata=figure("TTFT, serial", "lower", column="serial", rank=2))
    tokens_per_s: float = field(metadata=figure("prompt tokens/s (upper bound)", "higher", column="tokens/s"))
    limiter: str = field(metadata=figure("prefill limited by", column="limiter"))
    shares: Mapping[str, float]
    fits: bool = field(metadata=figure("fits", "higher"))
    memory_needed_bytes: int = field(metadata=figure("memory per GPU", "lower", column="memory", rank=1))
    parts: tuple[PartCost, ...]
    usd_per_million_tokens: float | None = field(
        default=None, metadata=figure("cost per 1M prompt tokens (lower bound)", "lower", column="$/Mtok")
    )
    joules_per_token: float | None = field(default=None, metadata=figure("J a prompt token at least", "lower"))
    estimate_s: float | None = field(default=None, metadata=figure("first token, estimate", "lower", column="estimate"))
    estimate_low_s: float | None = field(default=None, metadata=figure("first token, estimate, low", "lower"))
    estimate_high_s: float | None = field(default=None, metadata=figure("first token, estimate, high", "lower"))

    columns: ClassVar = ("batch", "prompt", "ideal_s", "serial_s", "tokens_per_s", "flop", "intensity_flop_per_byte",
                         "memory_needed_bytes", "usd_per_million_tokens", "limiter")  # fmt: skip

    @derived("of the bound's speed", "higher", column="of the bound")
    def bound_share(self) -> float | None:
        """The estimated speed as a share of the bound's; none without an estimate."""
        return None if self.estimate_s is None else self.ideal_s / self.estimate_s


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PrefillReport(Report):
    """The bound on prefill, for each batch and prompt; ``engine`` and ``fit_reason`` as in `DecodeReport`."""

    schema: str = "kvcalc.prefill/1"
    model: str
    gpu: str
    gpus: int
    memory_bytes: int
    formats: RunFormats
    rows: tuple[PrefillRow, ...]
    price_per_hour_usd: float | None = None
    power_w: float | None = None
    notes: tuple[str, ...] = ()
    calibration: EstimatedWith | None = None
    engine: str = ""
    fit_reason: str = ""
