"""Prediction against measurement: the answer of ``kvcalc validate``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Book",
    "BookFigures",
    "Figures",
    "Outcome",
    "RowAnswer",
    "SourceFigures",
    "Status",
    "ValidateReport",
    "ValidateSummary",
]

# How a record stands to the prediction. Only the first three were held against one.
Status = Literal["holds", "explained", "violates", "no profile", "excluded"]
# Whether a fit used a measurement, or it is among those that kvcalc ships, or neither.
Book = Literal["fitted", "shipped", "unseen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One record, held against the prediction.

    Args:
        id: the record's name.
        suite: its suite.
        source: where it was printed, shortened.
        first_hand: whether that is where it was measured.
        quantity: what was measured: ``decode``, ``prefill``, ``ttft`` …, or the name of a printed number.
        unit: of the numbers below: ``s``, ``B``, ``tokens`` …
        status: how it stands to the prediction.
        reason: the cause of a violation, why it was not held against a prediction, or why its step takes far longer
            than the bound.
        model: the catalogue's model, or the name as printed where there is none.
        hardware: the catalogue's accelerator, likewise.
        engine: the engine.
        gpus: accelerators.
        batch: sequences at once, where there are any.
        measured: the measurement.
        bound: the least it can be; of an exact prediction, none.
        estimate: the prediction, where there is one.
        estimate_least: lower end of its interval.
        estimate_most: upper end.
        calibration: where the estimate's parameters come from.
        fitted: whether they were fitted to this measurement or its group, so that the error tells nothing.
        book: ``fitted``, ``shipped`` (kvcalc has it among its records, no fit used it), or ``unseen``.
        scored: whether the estimate is held against the measurement.
        unscored_reason: why the estimate is not held against a measurement that the bound is held against.
        row: what the row is called in its file, where it holds several measurements.
        share: the measured speed as a share of the bound: the bound's time over the measured; above 1 it beats it.
        error: the estimate's signed relative error: above 0 where it is larger than the measurement.
    """

    id: str
    suite: str
    source: str
    first_hand: bool
    quantity: str
    unit: str
    status: Status
    reason: str = ""
    model: str = ""
    hardware: str = ""
    engine: str = ""
    gpus: int = 1
    batch: int | None = None
    measured: float | None = None
    bound: float | None = None
    estimate: float | None = None
    estimate_least: float | None = None
    estimate_most: float | None = None
    calibration: str = ""
    fitted: bool = False
    book: Book = "unseen"
    scored: bool = True
    unscored_reason: str = ""
    row: str = ""
    share: float | None = field(init=False, default=None)
    error: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "share", self._share())
        object.__setattr__(self, "error", self._error())

    def _share(self) -> float | None:
        return self.bound / self.measured if self.bound is not None and self.measured else None

    def _error(self) -> float | None:
        if self.estimate is None or self.measured is None:
            return None
        if self.estimate == self.measured:
            return 0.0
        return self.estimate / self.measured - 1 if self.measured else float("inf")

    @property
    def covered(self) -> bool | None:
        """Whether the measurement lies in the estimate's interval."""
        if self.measured is None or self.estimate_least is None or self.estimate_most is None:
            return None
        return self.estimate_least <= self.measured <= self.estimate_most


@dataclass(frozen=True, slots=True, kw_only=True)
class BookFigures:
    """Errors of the estimates of one book: what a fit used, what is shipped, what is new.

    Args:
        records: records with an estimate.
        median_abs_error: median size of the error.
        p90_abs_error: its 90th percentile.
        interval_coverage: share of the records inside their interval.
    """

    records: int
    median_abs_error: float | None = None
    p90_abs_error: float | None = None
    interval_coverage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswer:
    """The prediction for one row of a file.

    Args:
        id: the row's name.
        suite: its suite.
        predicted_tpot_s: time of a token after the first.
        low_tpot_s: lower end of its interval.
        high_tpot_s: upper end.
        measured_tpot_s: as measured.
        predicted_ttft_s: time to the first token, or of a prompt.
        low_ttft_s: lower end of its interval.
        high_ttft_s: upper end.
        measured_ttft_s: as measured.
        fitted: whether a fit used one of the measurements or their group.
        book: ``fitted``, ``shipped`` or ``unseen``.
        calibration: where the parameters come from.
        reason: what should be known: why it is not scored, or that the calibration is borrowed.
    """

    id: str
    suite: str
    predicted_tpot_s: float | None = None
    low_tpot_s: float | None = None
    high_tpot_s: float | None = None
    measured_tpot_s: float | None = None
    predicted_ttft_s: float | None = None
    low_ttft_s: float | None = None
    high_ttft_s: float | None = None
    measured_ttft_s: float | None = None
    fitted: bool = False
    book: Book = "unseen"
    calibration: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Errors and violations of a group of records; shares are fractions of one, and none where nothing was scored.

    Args:
        records: records in all.
        held: those held against a bound or an exact prediction.
        scored: those with an exact prediction, or an estimate whose parameters were not fitted to their campaign; the
            errors are of these.
        fitted: those with an estimate whose parameters were.
        without_profile: those whose model, accelerator or format is in no profile.
        without_calibration: those held against the bound alone.
        excluded: those that cannot be used, each for a reason.
        explained: those that beat the bound for a cause that was computed.
        bound_violations: those that beat it without.
        median_share: median of measured speed over bound.
        least_share: the smallest.
        most_share: the largest.
        median_error: median signed error of the estimate.
        p90_error: 90th percentile of the signed error.
        median_abs_error: median of its size.
        interval_coverage: share of the records inside their interval.
        books: errors of what a fit used, of what is shipped, and of what is new, apart.
    """

    records: int
    held: int
    scored: int
    fitted: int
    without_profile: int
    without_calibration: int
    excluded: int
    explained: int
    bound_violations: int
    median_share: float | None = None
    least_share: float | None = None
    most_share: float | None = None
    median_error: float | None = None
    p90_error: float | None = None
    median_abs_error: float | None = None
    interval_coverage: float | None = None
    books: Mapping[str, BookFigures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFigures:
    """The records of one suite, source and quantity."""

    suite: str
    source: str
    first_hand: bool
    quantity: str
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateSummary:
    """All suites together."""

    records: int
    held: int
    scored: int
    fitted: int
    without_profile: int
    without_calibration: int
    excluded: int
    explained: int
    bound_violations: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ValidateReport(Report):
    """Trust in the predictions: errors, intervals and violated bounds, by suite and source.

    Args:
        records_file: the file whose records were held against them; none for the shipped ones.
        summary: all suites together.
        suites: each suite.
        sources: each source of each suite, by quantity.
        outcomes: each record.
        rows: the prediction for each row of the file, where it was asked for.
        notes: what should be known about the reading.
    """

    schema: str = "kvcalc.validate/1"
    records_file: str | None
    summary: ValidateSummary
    suites: Mapping[str, Figures]
    sources: tuple[SourceFigures, ...]
    outcomes: tuple[Outcome, ...]
    rows: tuple[RowAnswer, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether no record beats its bound without a cause."""
        return self.summary.bound_violations == 0
