"""Shares of an accelerator's peak rates that engines reach: few physical parameters, with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from kvcalc.core.errors import InputError
from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from kvcalc.core.cost_types import OpCost

_MAX_SECONDS = 3600
_MAX_PADDING = 4096
# Steps that a new request may wait for, and calls of a first token's time.
_MAX_STEPS = 1000
# Compute and memory overlap wholly: the larger counts alone.
MIN_SUM_SHARE = 0.5

__all__ = ["MIN_SUM_SHARE", "Calibration", "Interval", "Measured", "Phase", "Reach", "joins", "kind_of", "pass_name"]

Phase = Literal["decode", "prefill"]

_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Shares of the peak rates that one kind of operator reaches when it runs on its own.

    Args:
        bandwidth_share: share of the memory's peak bandwidth, where the operator is limited by it.
        flop_share: share of the peak FLOP/s of its arithmetic format, where it is limited by that.
        call_s: time of one call that moves and computes next to nothing.
        sum_share: share of the sum of both times that it takes at least: 0.5 where they overlap wholly (the larger then
            counts alone), 1 where one waits for the other.
        padding_rows: rows that each matrix is multiplied by beside those of its tokens: kernels work in tiles, and of
            many experts each has its own.
        activation_share: share of the peak bandwidth at which activations pass in and out, those that an operator reads
            several times counted once; that of ``bandwidth_share`` where left out.
    """

    __pydantic_config__ = _STRICT
    bandwidth_share: float
    flop_share: float
    call_s: float = 0.0
    sum_share: float = MIN_SUM_SHARE
    padding_rows: float = 0.0
    activation_share: float | None = None

    def __post_init__(self) -> None:
        _check_shares(self, "bandwidth_share", "flop_share", "sum_share")
        if self.activation_share is not None:
            _check_shares(self, "activation_share")
        if not 0 <= self.padding_rows <= _MAX_PADDING:
            raise InputError(f"padding_rows must be from 0 to {_MAX_PADDING:,}, not {self.padding_rows}")
        if self.sum_share < MIN_SUM_SHARE:
            raise InputError(f"sum_share must be from {MIN_SUM_SHARE} to 1, not {self.sum_share}")
        _check_times(self, "call_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Measured time as a multiple of the estimate: four of five measurements lie between these.

    Args:
        low: multiple that one of ten stays below.
        high: multiple that one of ten exceeds.
        records: measurements that say so, where they were counted.
    """

    __pydantic_config__ = _STRICT
    low: float
    high: float
    records: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < float("inf"):
            raise InputError(f"the interval from {self.low} to {self.high} is none", hint="low and high are multiples")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The place and date of a calibration's measurements, and how they were judged.

    Args:
        device: accelerators the measurements were made on.
        date: day of the fit or the measurement, ISO 8601.
        versions: engines, drivers and libraries, as the sources print them.
        trained_on: sources whose records the parameters were fitted to.
        held_out: sources that were kept out of the fit and that the errors are of.
        records: records that the parameters were fitted to.
        operators: kinds of attention and of experts that the measured models have.
        notes: what a user should know.
    """

    __pydantic_config__ = _STRICT
    device: str
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    trained_on: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    records: int = 0
    operators: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Rates that an engine reaches on a family of accelerators.

    Args:
        name: what it is called.
        engine: the engine it was measured with.
        applies_to: accelerators, or their generations (`HardwareProfile.architecture`), it applies to.
        reach: by kind of operator (`kind_of`), ``matrix`` at least; ``matrix:fp8`` is for one arithmetic format.
        memory_interval: spread of measurements of passes that are limited by memory or links.
        compute_interval: spread of measurements of passes that are limited by FLOP/s.
        step_s: time of a pass besides its layers: scheduling, sampling, the host.
        layer_s: time of a layer besides its operators' bytes and FLOP: launches, norms, positions.
        collective_s: time of a collective besides its bytes.
        link_share: share of the link's rate that collectives reach.
        direct_share: share that sums of small vectors reach, which each rank sends whole to all others; where left out,
            all sums are made in two steps or more.
        staged_s: time that a sum in two steps takes besides ``collective_s`` and its bytes.
        sample_s: time of each token that a pass samples besides its operators: sampling, scheduling, the host.
        joins_inputs: whether matrices that take the same input run as one call.
        prompt_share: of the time that prompts of other requests take, the share that a decoding sequence waits for.
        request_s: time of a request's first token besides its passes: tokenising, scheduling, sending.
        request_steps: decode steps of others that pass before a request's prompt is read.
        queue_share: of the time that the prompts of all others take, the share that a request waits for.
        intervals: spread of measurements by what was timed and what the layers are (``decode, mixture``): it comes
            before those by limiter.
        measured: where and when, and on what.
    """

    __pydantic_config__ = _STRICT
    name: str
    engine: str
    applies_to: tuple[str, ...]
    reach: Mapping[str, Reach]
    memory_interval: Interval
    compute_interval: Interval
    step_s: float = 0.0
    layer_s: float = 0.0
    collective_s: float = 0.0
    link_share: float = 1.0
    direct_share: float | None = None
    staged_s: float = 0.0
    sample_s: float = 0.0
    joins_inputs: bool = False
    prompt_share: float = 1.0
    request_s: float = 0.0
    request_steps: float = 0.0
    queue_share: float = 0.0
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    measured: Measured

    def __post_init__(self) -> None:
        _check_shares(self, "link_share")
        if self.direct_share is not None:
            _check_shares(self, "direct_share")
        _check_times(self, "step_s", "layer_s", "collective_s", "staged_s", "sample_s", "request_s")
        for name, highest in (("prompt_share", 1.0), ("queue_share", 1.0), ("request_steps", _MAX_STEPS)):
            if not 0 <= getattr(self, name) <= highest:
                raise InputError(f"{name} must be from 0 to {highest:,}, not {getattr(self, name)}")
        if "matrix" not in self.reach:
            raise InputError(
                f"the calibration {self.name} has no efficiency of matrix multiplications", hint="reach.matrix"
            )

    def reach_of(self, kind: str, unit: str) -> Reach:
        """Return the shares of a kind of operator in an arithmetic format: else in any, else those of matrices."""
        kinds = (kind, "attention", "matrix") if kind in ("latent", "state") else (kind, "matrix")
        names = (name for each in kinds for name in (f"{each}:{unit}", each))
        return next(self.reach[name] for name in names if name in self.reach)

    def spread(self, kind: str, *, is_compute: bool) -> Interval:
        """Return the interval of a kind of times, else that of passes with the same limiter."""
        by_limiter = self.compute_interval if is_compute else self.memory_interval
        return self.intervals.get(kind, by_limiter)

    def of_phase(self, phase: Phase, *, is_mixture: bool) -> Interval:
        """Return the interval of decode steps or of prompts, of dense models or mixtures of experts."""
        return self.spread(pass_name(phase, is_mixture=is_mixture), is_compute=phase == "prefill")

    def has_too_few(self, kind: str) -> bool:
        """Whether it was fitted to measurements, but to too few of a kind for an interval of its own."""
        return self.memory_interval.records is not None and kind not in self.intervals

    def calls_of(self, op: OpCost) -> int:
        """Count the calls of an operator: none where it runs in that of another with the same input."""
        return 0 if self.joins_inputs and joins(op.name) else op.calls


def pass_name(phase: Phase, *, is_mixture: bool) -> str:
    """Return the kind of a pass that intervals are kept by.

    >>> pass_name("decode", is_mixture=True), pass_name("prefill", is_mixture=False)
    ('decode, mixture', 'prefill, dense')
    """
    return f"{phase}, {'mixture' if is_mixture else 'dense'}"


def _check_shares(holder: object, *names: str) -> None:
    for name in names:
        share = getattr(holder, name)
        if not 0 < share <= 1:
            raise InputError(f"{name} must be above 0 and at most 1, not {share}", hint="it is a share of a peak rate")


def _check_times(holder: object, *names: str) -> None:
    for name in names:
        seconds = getattr(holder, name)
        if not 0 <= seconds <= _MAX_SECONDS:
            raise InputError(f"{name} must be from 0 to {_MAX_SECONDS} s, not {seconds}")


# Kinds of attention with kernels of their own, by the operator's name.
_KINDS = {"latent": "latent", "state": "state"}
# Matrices that engines run in one call with the one before, which takes the same input.
_JOINED = ("attention.key", "attention.value", "attention.latent", "mlp.up", "mlp.shared_gate")


def kind_of(op: OpCost) -> str:
    """Return the kind of an operator: ``attention``, ``latent``, ``state``, ``experts`` or ``matrix``.

    >>> from kvcalc.core.cost_types import OpCost
    >>> [kind_of(OpCost(name="op", part=part)) for part in ("cache", "experts", "mlp", "head")]
    ['attention', 'experts', 'matrix', 'matrix']
    >>> kind_of(OpCost(name="moe.latent", part="cache"))
    'latent'
    """
    if op.part == "cache":
        return _KINDS.get(op.name.rpartition(".")[2], "attention")
    return "experts" if op.part == "experts" else "matrix"


def joins(name: str) -> bool:
    """Whether an operator of that name runs in one call with the one before it, where an engine joins them.

    >>> joins("moe.attention.key"), joins("attention.query")
    (True, False)
    """
    return name.endswith(_JOINED)
