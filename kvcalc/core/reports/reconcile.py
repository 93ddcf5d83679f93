"""An engine's start-up log against the prediction: the answer of ``kvcalc reconcile``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvcalc.core.reports.common import Report

__all__ = ["MemoryPart", "Number", "ReconcileReport", "ReconcileRow", "Refusal"]

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
    """One part of the memory of a rank.

    Args:
        part: the part.
        taken_bytes: its bytes.
        source: whether the log printed it, or it was computed from model and options.
    """

    part: str
    taken_bytes: int
    source: Literal["printed", "computed"] = "printed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why an engine did not start.

    Args:
        start_up: which start, as in the rows.
        kind: what it lacks: ``out_of_memory``, ``no_cache_memory``, ``request_too_long``, ``memory_in_use``,
            ``too_many_sequences``, ``beyond_model`` or ``uneven_heads``.
        stage: what it was doing.
        reason: the reason in a sentence.
        line: line of the log, from 1.
        tried_bytes: size of the allocation that failed.
        total_bytes: memory of the GPU.
        free_bytes: what was free of it.
        needed_bytes: what one request of the longest length needs of the cache, on each GPU.
        available_bytes: what was left for the cache.
    """

    start_up: str
    kind: str
    stage: str
    reason: str
    line: int
    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    needed_bytes: int | None = None
    available_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReconcileReport(Report):
    """A log's printed numbers against the predicted.

    Args:
        engine: engines found, separated by commas.
        version: versions printed, likewise.
        model: models identified, likewise.
        rows: the printed numbers.
        memory: what took the memory of a rank, at the last start-up.
        advice: what to change to get more context or concurrency, in words; where the engine did not start, flags with
            which it would.
        refusal: why the last start-up failed; none where it did not.
        start_with: one line of flags that would start it, checked by the engine's rules; empty where there are none.
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
    refusal: Refusal | None = None
    start_with: str = ""
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
