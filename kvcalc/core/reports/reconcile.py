"""An engine's start-up log against the prediction: the answer of ``kvcalc reconcile``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MemoryPart", "Number", "ReconcileReport", "ReconcileRow"]

# A number in the unit that the row's quantity names.
Number = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRow:
    """One printed number.

    Args:
        start_up: which start of an engine printed it, as ``vllm, line 12``, or ``vllm prefill-0 DP1, line 12``.
        quantity: what it is, with its unit at the end.
        printed: the number as printed.
        predicted: the number computed from the model and the options; of an interval, a number inside.
        predicted_least: the smallest that the digits of the numbers it was computed from allow.
        predicted_most: the largest.
        difference: 0 where they agree; else printed less the nearer end of the interval, or less predicted where the
            printed number lies inside but cannot occur.
        agrees: whether the printed number, within its own digits, lies between the two and can occur.
        reason: how the prediction was made, or which term would explain the difference.
    """

    start_up: str
    quantity: str
    printed: Number
    predicted: Number
    predicted_least: Number
    predicted_most: Number
    difference: Number
    agrees: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """What a part of the memory of one rank was taken by, as printed.

    Args:
        part: the part.
        taken_bytes: its bytes.
    """

    part: str
    taken_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """A log's printed numbers against the predicted.

    Args:
        engine: engines found, separated by commas.
        version: versions printed, likewise.
        model: models identified, likewise.
        rows: the printed numbers.
        memory: what took the memory of a rank, at the last start-up.
        advice: what to change to get more context or concurrency, in words.
        notes: what should be known about the reading.
        left_out: start-ups that were not held against a prediction.
    """

    schema: str = "kvcalc.reconcile/1"
    engine: str
    version: str
    model: str
    rows: tuple[ReconcileRow, ...]
    memory: tuple[MemoryPart, ...] = ()
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether every number agrees."""
        return all(row.agrees for row in self.rows)

    @property
    def complete(self) -> bool:
        """Whether any number was computed again, and no start-up was left out."""
        return bool(self.rows) and not self.left_out
