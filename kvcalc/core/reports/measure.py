"""Rates of a machine, and predictions held against a real decode loop: ``bench`` and ``crosscheck``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile

__all__ = [
    "BatchCrossing",
    "BenchReport",
    "BenchRow",
    "ContextGrowth",
    "CrosscheckReport",
    "CrosscheckRow",
    "LoopCheck",
    "MeasuredLoop",
    "MeasuredSpeculation",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One micro-benchmark: what it moves and computes, and how long it takes.

    Args:
        kind: ``read``, ``write``, ``copy``, ``matrix``, ``attention``, ``call``, ``layer`` or ``step``.
        name: shape, in words.
        format: number format.
        batch: sequences, where it has any.
        context: tokens attended, for attention.
        working_set_bytes: what is passed through before anything is touched again.
        moved_bytes: bytes of one call.
        flop: of one call.
        predicted_kv_bytes: cache that the call reads, by the formula.
        allocated_kv_bytes: bytes of the tensors it reads.
        bound_s: the least time at the ceilings measured here.
        estimate_s: time by the calibration fitted to these rows.
        measured_s: of one call, the repetition that a tenth stay below.
        median_s: the middle repetition.
        samples_s: all of them, in order.
        ratio: measured over bound.
        bytes_per_s: bytes over measured time.
        flop_per_s: FLOP over measured time.
    """

    kind: str
    name: str
    format: str
    batch: int | None = None
    context: int | None = None
    working_set_bytes: int = 0
    moved_bytes: float = 0
    flop: float = 0
    predicted_kv_bytes: int | None = None
    allocated_kv_bytes: int | None = None
    bound_s: float | None = None
    estimate_s: float | None = None
    measured_s: float
    median_s: float
    samples_s: tuple[float, ...] = ()
    ratio: float | None = None
    bytes_per_s: float | None = None
    flop_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BenchReport(Report):
    """Rates that this machine reaches.

    Args:
        device: ``cpu`` or ``cuda``.
        title: the product's name.
        threads: threads that worked, on a CPU.
        versions: torch, driver, system.
        date: day of the measurement.
        hardware: the ceilings that were reached, as an accelerator profile.
        gpu: the ceilings that bounds and calibration stand on: a profile's name.
        calibration: what operators reach of them.
        rows: the micro-benchmarks.
        weight_read_bytes_per_s: rate at which weights are read once; on a CPU that of a host that holds layers.
        interrupted: whether it was stopped before it was done.
    """

    schema: str = "kvcalc.bench/1"
    device: str
    title: str
    threads: int
    versions: Mapping[str, str]
    date: str
    hardware: HardwareProfile
    gpu: str
    calibration: Calibration | None
    rows: tuple[BenchRow, ...]
    weight_read_bytes_per_s: float | None = None
    interrupted: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCheck:
    """Something that must hold, and whether it does."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CrosscheckRow:
    """One decode step of one model: predicted and real.

    Args:
        model: its name.
        layers: layers that were built; fewer than the model's where it was cut to fit.
        format: of weights, cache and activations.
        batch: sequences.
        context: tokens attended, the new one included.
        predicted_kv_bytes: cache and states by the formula.
        allocated_kv_bytes: bytes of the tensors that the loop keeps them in.
        allocator_kv_bytes: what torch's allocator was asked for them, where it tells.
        predicted_weight_bytes: weights by the formula.
        allocated_weight_bytes: bytes of the weight tensors.
        allocator_weight_bytes: what torch's allocator was asked for them, where it tells.
        run_bytes: memory that was asked for beforehand: weights, cache, and what lies beside them.
        peak_bytes: the most that was allocated for this step, where the allocator tells.
        bound_s: the least time, everything overlapped.
        serial_s: operator after operator.
        estimate_s: by the calibration.
        measured_s: the repetition that a tenth stay below.
        least_s: the fastest repetition, which the bound is held against.
        median_s: the middle one.
        samples_s: all of them, in order.
        back_to_back_s: of one among many in a row, where a GPU ran them.
        in_graph: whether it was replayed from a graph.
        replay_error: how far a replay's logits are from the step's own, as a share of the largest; none without one.
        variant_error: how far its logits are from those of the plain kernels, as such a share; none of the plain ones.
        kernels: the variant of the loop's kernels.
        ratio: measured over bound.
        serial_ratio: measured over serial.
        estimate_error: estimate over measured, less one.
        touched_experts: experts used in all mixtures of the step, counted.
        cache_resident: whether the step moves so little that the last-level cache may hold it.
        cause: why the bound is beaten, where it is.
    """

    model: str
    layers: int
    format: str
    batch: int
    context: int
    predicted_kv_bytes: int
    allocated_kv_bytes: int
    allocator_kv_bytes: int | None
    predicted_weight_bytes: int
    allocated_weight_bytes: int
    bound_s: float
    serial_s: float
    estimate_s: float | None
    estimate_low_s: float | None
    estimate_high_s: float | None
    measured_s: float
    least_s: float
    median_s: float
    samples_s: tuple[float, ...]
    ratio: float
    serial_ratio: float
    estimate_error: float | None
    touched_experts: int | None
    cache_resident: bool
    cause: str
    kernels: str = "plain"
    in_graph: bool = False
    replay_error: float | None = None
    variant_error: float | None = None
    back_to_back_s: float | None = None
    allocator_weight_bytes: int | None = None
    run_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCrossing:
    """The batch from which on a step is limited by compute, at one context.

    Args:
        model: its name.
        format: of weights, cache and activations.
        context: tokens attended, the new one included.
        bound_batch: the least whose compute time reaches its memory time; none where memory limits every batch.
        estimate_batch: the knee of the estimates over the batch; none without one, or where the context is not short.
        measured_batch: the same of the measured times; none too where they scatter so much that it is not known.
        largest_batch: the largest that was measured.
        largest_batch_limiter: what limits the bound there: ``compute``, ``memory`` or ``interconnect``.
        short_context: whether reading the cache takes at most a tenth of the compute time, by the bound.
    """

    model: str
    format: str
    context: int
    bound_batch: int | None
    estimate_batch: float | None
    measured_batch: float | None
    largest_batch: int
    largest_batch_limiter: str
    short_context: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextGrowth:
    """Time and bytes that a token more of context adds to a step, at one batch."""

    model: str
    format: str
    batch: int
    from_context: int
    to_context: int
    bound_s_per_token: float
    estimate_s_per_token: float | None
    measured_s_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoop:
    """Greedy decoding of many tokens in a row: each fed back, each one further on.

    Args:
        model: its name.
        format: of weights, cache and activations.
        kernels: the variant of the loop's kernels.
        batch: sequences.
        context: tokens that the first step attends to, the new one included.
        tokens: decoded by each sequence.
        in_graph: whether every token was a replay of one graph.
        identical: whether its tokens are those of the same kernels started one by one.
        bound_s: the least time of all its steps.
        measured_s: of the fastest repetition.
        tokens_per_s: over all sequences.
        ratio: measured over bound.
    """

    model: str
    format: str
    kernels: str
    batch: int
    context: int
    tokens: int
    in_graph: bool
    identical: bool
    bound_s: float
    measured_s: float
    tokens_per_s: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeculation:
    """Greedy speculative decoding: measured, and predicted at the acceptance and step times that were measured.

    Args:
        target: the model.
        draft: the draft model.
        format: of both.
        gamma_tokens: proposals for each pass of the target.
        acceptance: share of the proposals looked at that the target would have chosen.
        tokens_per_pass: of the target.
        expected_tokens_per_pass: at that acceptance.
        draft_s: a pass of the draft.
        verify_s: a pass of the target over all proposals.
        plain_s: a decode step of the target.
        measured_speedup: tokens a second with drafts over tokens a second without.
        predicted_speedup: by the formula, from the numbers above.
        identical: whether both sequences are the same, in fp32.
        in_graph: whether every pass was replayed from a graph.
    """

    target: str
    draft: str
    format: str
    gamma_tokens: int
    acceptance: float
    tokens_per_pass: float
    expected_tokens_per_pass: float
    draft_s: float
    verify_s: float
    plain_s: float
    measured_speedup: float
    predicted_speedup: float
    identical: bool
    in_graph: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CrosscheckReport(Report):
    """Predictions against a real decode loop.

    Args:
        engine: the engine that ran; empty for the loop of this package.
        device: ``cpu`` or ``cuda``.
        title: the product's name.
        threads: threads that worked, on a CPU.
        versions: torch, driver, system.
        date: day of the measurement.
        gpu: the ceilings that bounds stand on: a profile's name.
        ceilings: the same as a profile.
        calibration: what the estimates stand on.
        rows: the steps.
        checks: what must hold.
        crossings: where compute takes over from memory.
        growth: what context adds.
        speculation: where it was measured.
        loops: tokens decoded in a row, where that was asked for.
        median_abs_error: of the estimates, by format.
        p90_abs_error: nine of ten estimates are closer, by format.
        passed: whether every check does.
        interrupted: whether it was stopped before it was done.
    """

    schema: str = "kvcalc.crosscheck/1"
    engine: str = ""
    device: str
    title: str
    threads: int
    versions: Mapping[str, str]
    date: str
    gpu: str
    ceilings: HardwareProfile
    calibration: Calibration | None
    rows: tuple[CrosscheckRow, ...]
    checks: tuple[LoopCheck, ...]
    crossings: tuple[BatchCrossing, ...] = ()
    growth: tuple[ContextGrowth, ...] = ()
    speculation: MeasuredSpeculation | None = None
    loops: tuple[MeasuredLoop, ...] = ()
    median_abs_error: Mapping[str, float]
    p90_abs_error: Mapping[str, float]
    passed: bool
    interrupted: bool = False
    notes: tuple[str, ...] = ()
