"""A model on one machine: where its layers stand, how fast at most, and what llama.cpp's own ``--fit`` would do."""

from __future__ import annotations

from kvcalc.core.records import dataclass

__all__ = ["EngineFit", "LocalSpeed", "MovedTensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedTensors:
    """Tensors that stand elsewhere than their layer: a pattern of their names, and a device or ``CPU``."""

    pattern: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSpeed:
    """The speed of one sequence on a machine, and of all that decode together.

    Args:
        context: tokens attended by the decoded token.
        decode_ideal_s: least time of a decode step: devices and host one after another, each at its own rates.
        tokens_per_s: decoded tokens a second at most.
        estimate_s: the step by measured efficiencies; none where no calibration applies.
        estimate_low_s: one measurement of ten is faster.
        estimate_high_s: one measurement of ten is slower.
        estimated_tokens_per_s: decoded tokens a second by that estimate.
        micro_batch: tokens of a prompt that are computed at once.
        prefill_tokens_per_s: tokens of a prompt a second at most, in its first micro-batch; none where the host
            computes, whose FLOP/s are not known.
        overlapping_micro_batches: micro-batches that pass through the devices at the same time: more than one where
            devices overlap (pipeline parallelism); the bound is then that of the slowest.
        prefill_estimated_tokens_per_s: the same by measured efficiencies; none where matrices of the host take part.
        prefill_estimate_low_tokens_per_s: one measurement of ten is slower.
        prefill_estimate_high_tokens_per_s: one measurement of ten is faster.
        sequences: sequences that decode together.
        all_tokens_per_s: tokens a second of all of them at most, each at that context: they share a step's weights.
        host_bytes_per_s: bandwidth that the host's memory was taken to have.
        calibrations: names of the calibrations of the estimate, devices first.
    """

    context: int
    decode_ideal_s: float
    tokens_per_s: float
    micro_batch: int
    prefill_tokens_per_s: float | None
    host_bytes_per_s: float
    estimate_s: float | None = None
    estimate_low_s: float | None = None
    estimate_high_s: float | None = None
    estimated_tokens_per_s: float | None = None
    calibrations: tuple[str, ...] = ()
    overlapping_micro_batches: int = 1
    prefill_estimated_tokens_per_s: float | None = None
    prefill_estimate_low_tokens_per_s: float | None = None
    prefill_estimate_high_tokens_per_s: float | None = None
    sequences: int = 1
    all_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFit:
    """The placement that llama.cpp's own ``--fit`` chooses for these devices.

    Args:
        context: tokens of all sequences together.
        gpu_layers: layers on devices, the output counted as one.
        tensor_split: layers of each device; empty where there is one, or where it needs no change.
        overrides: tensors moved elsewhere.
        flags: the same as options.
        tokens_per_s: decoded tokens a second at most with it.
    """

    context: int
    gpu_layers: int
    tensor_split: tuple[float, ...]
    overrides: tuple[MovedTensors, ...]
    flags: str
    tokens_per_s: float | None = None
