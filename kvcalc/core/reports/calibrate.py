"""A calibration from one's own measurements: the answer of ``kvcalc calibrate``; and where their time went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.calibration import Calibration

__all__ = [
    "CalibrateReport",
    "CalibratedPoint",
    "CalibratedTerm",
    "MeasuredDeployment",
    "MeasuredPoint",
    "MeasuredReport",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredDeployment:
    """The deployment that a file of measurements is taken to be of.

    Args:
        model: the catalogue's model.
        gpu: the accelerator.
        engine: the engine.
        engine_version: its version, where the file says it.
        tensor_parallel: ranks that split each layer.
        pipeline_parallel: stages.
        expert_parallel: ranks that share out the experts.
        data_parallel: copies of attention.
        weights: format of the weights.
        kv_dtype: format of the cache.
    """

    model: str
    gpu: str
    engine: str
    engine_version: str
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    data_parallel: int
    weights: str
    kv_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedTerm:
    """A term of the estimate that was fitted.

    Args:
        term: its name.
        meaning: what takes its time.
        factor: its time as a multiple of that of the calibration before.
        identified_share: share of what was unknown of it that the points tell, from 0 to 1.
    """

    term: str
    meaning: str
    factor: float
    identified_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedPoint:
    """One measured time.

    Args:
        id: file and row.
        quantity: what was timed: ``ttft``, ``tpot``, ``decode``, ``prefill`` or ``end_to_end``.
        batch: requests at once.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens of the answer.
        measured_s: the measured time.
        bound_s: the least that it can be.
        before_s: the estimate before the fit.
        after_s: the estimate after it.
        left_out_s: the estimate of a fit that has not seen this row; none where it is the only one.
    """

    id: str
    quantity: str
    batch: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    measured_s: float
    bound_s: float
    before_s: float
    after_s: float
    left_out_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CalibrateReport(Report):
    """A calibration fitted to measurements of one deployment.

    Args:
        name: its name.
        start: the calibration that the fit began with.
        deployment: what the measurements are taken to be of.
        files: the files, each with the tool that wrote it.
        points: the measured times.
        terms: what was fitted.
        before: median error of the estimates before the fit.
        after: median error after it, on the points that it was fitted to.
        left_out_error: median error of each row by a fit without it; none with a single row.
        low_factor: measured time as a multiple of the estimate that one of ten stays below.
        high_factor: multiple that one of ten exceeds.
        assumed: what the files do not say, and how it was taken.
        notes: what else to know.
        calibration: the calibration.
    """

    schema: str = "kvcalc.calibrate/1"
    name: str
    start: str
    deployment: MeasuredDeployment
    files: Mapping[str, str]
    points: tuple[CalibratedPoint, ...]
    terms: tuple[CalibratedTerm, ...]
    before: float
    after: float
    left_out_error: float | None
    low_factor: float
    high_factor: float
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    calibration: Calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One measured time against bound and estimate.

    Args:
        id: file and row.
        quantity: what was timed.
        batch: requests at once.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens of the answer.
        measured_s: the measured time.
        bound_s: the least that it can be.
        estimate_s: the estimate.
        low_s: lower end of its interval.
        high_s: upper end.
        mbu_share: compulsory bytes over the measured time, as a share of the memory's bandwidth.
        mfu_share: FLOP over the measured time, as a share of the peak.
        limiter: what limits the bound.
        terms_s: the estimate by the term that its time is of.
        reason: what the difference between measured and estimate says.
        advice: what would move the measured time.
    """

    id: str
    quantity: str
    batch: int | None
    prompt_tokens: int | None
    output_tokens: int | None
    measured_s: float
    bound_s: float
    estimate_s: float
    low_s: float
    high_s: float
    mbu_share: float
    mfu_share: float
    limiter: str
    terms_s: Mapping[str, float]
    reason: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MeasuredReport(Report):
    """Measurements of a benchmark or a server against bound and estimate.

    Args:
        deployment: what they are taken to be of.
        files: the files, each with the tool that wrote it.
        calibration: the calibration of the estimates.
        rows: the measured times.
        engine_mbu_share: share of the bandwidth that the engine's own counters say, where it counts.
        engine_mfu_share: share of the peak that they say.
        assumed: what the files do not say, and how it was taken.
        notes: what else to know.
    """

    schema: str = "kvcalc.reconcile_measured/1"
    deployment: MeasuredDeployment
    files: Mapping[str, str]
    calibration: str
    rows: tuple[MeasuredPoint, ...]
    engine_mbu_share: float | None = None
    engine_mfu_share: float | None = None
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
