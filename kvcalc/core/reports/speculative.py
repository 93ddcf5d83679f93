"""Gain and limits of speculation: the answer of ``kvcalc speculate``."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal

from kvcalc.core.figures import figure
from kvcalc.core.records import dataclass
from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from kvcalc.core.reports.common import RunFormats
    from kvcalc.core.reports.speed import EstimatedWith

__all__ = [
    "BatchLimit",
    "DraftMemory",
    "GammaRow",
    "LargestDraft",
    "MapCell",
    "PayingRange",
    "Pays",
    "QuotedRule",
    "SpeculativeReport",
    "SpeculativeRow",
    "Verdict",
]

Verdict = Literal["pays", "may pay", "does not pay"]

# Where over the batch speculation pays.
Pays = Literal[
    "never", "up to a batch", "from a batch on", "between two batches", "at every batch", "in several ranges"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeRow:
    """Speculation at one batch, context and length of the draft.

    Times are least times of a pass of one batch, everything overlapped; what is named ``serial`` is of operator after
    operator.

    Args:
        batch: sequences.
        context: tokens attended by the first new token, itself included.
        gamma: levels of the draft.
        draft_tokens: tokens drafted, gamma of a chain, the nodes of a tree.
        acceptance_rate: the rate of acceptance; of a list by position the constant one that gives as many tokens.
        expected_tokens_per_pass: what a verification gives on average, the target's own token included.
        speedup: over plain decoding.
        serial_speedup: the same of the serial times.
        break_even_acceptance: the rate at which the speed-up is 1; none where no acceptance reaches it.
        plain_s: one plain step of the target.
        draft_s: all steps of the draft.
        verify_s: one verification.
        draft_ratio: c, a step of the draft over a plain step.
        verify_ratio: v, a verification over a plain step.
        verify_limiter: what limits the verification.
        plain_tokens_per_s: of plain decoding, over the batch.
        tokens_per_s: with speculation.
        fits: whether the target and what speculation adds fit.
        memory_needed_bytes: on the fullest GPU.
        estimate_speedup: what an engine makes of it, where that is asked for: passes at the rates reached, and what its
            host takes between them.
        estimate_low_speedup: one measurement of ten is lower.
        estimate_high_speedup: one measurement of ten is higher.
        estimate_plain_s: a plain step.
        estimate_draft_s: all steps of the draft.
        estimate_verify_s: a verification, with the recurrent states that are kept for each drafted token.
        estimate_host_s: work of the host that no pass hides.
        verdict: whether it pays: yes or no only where the whole interval says so.
    """

    batch: int = field(metadata=figure("batch"))
    context: int = field(metadata=figure("context"))
    gamma: int = field(metadata=figure("gamma"))
    draft_tokens: int
    acceptance_rate: float
    expected_tokens_per_pass: float = field(
        metadata=figure("tokens per pass", "higher", column="tokens/pass", digits=2)
    )
    speedup: float = field(metadata=figure("speed-up", "higher", digits=3))
    serial_speedup: float = field(metadata=figure("speed-up, serial", "higher", column="serial", digits=3, rank=3))
    break_even_acceptance: float | None = field(
        metadata=figure("breaks even at", "lower", column="breaks even", digits=3)
    )
    plain_s: float = field(metadata=figure("plain step", "lower"))
    draft_s: float = field(metadata=figure("draft", "lower"))
    verify_s: float = field(metadata=figure("verification", "lower"))
    draft_ratio: float = field(metadata=figure("c", "lower", digits=3, rank=2))
    verify_ratio: float = field(metadata=figure("v", "lower", digits=3, rank=2))
    verify_limiter: str
    plain_tokens_per_s: float = field(metadata=figure("tokens/s without speculation", "higher"))
    tokens_per_s: float = field(metadata=figure("tokens/s (upper bound)", "higher", column="tokens/s"))
    fits: bool = field(metadata=figure("fits", "higher"))
    memory_needed_bytes: int = field(metadata=figure("memory per GPU", "lower"))
    estimate_speedup: float | None = field(
        default=None, metadata=figure("speed-up, estimate", "higher", column="estimate", digits=3)
    )
    estimate_low_speedup: float | None = field(
        default=None, metadata=figure("speed-up, estimate, low end", "higher", column="low", digits=3, rank=2)
    )
    estimate_high_speedup: float | None = field(
        default=None, metadata=figure("speed-up, estimate, high end", "higher", column="high", digits=3, rank=2)
    )
    estimate_plain_s: float | None = field(default=None, metadata=figure("plain step, estimate", "lower"))
    estimate_draft_s: float | None = field(default=None, metadata=figure("draft, estimate", "lower"))
    estimate_verify_s: float | None = field(default=None, metadata=figure("verification, estimate", "lower"))
    estimate_host_s: float | None = field(default=None, metadata=figure("host, estimate", "lower"))
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GammaRow:
    """One length of the draft at the first batch and context."""

    gamma: int = field(metadata=figure("gamma"))
    draft_tokens: int = field(metadata=figure("drafted"))
    expected_tokens_per_pass: float = field(
        metadata=figure("tokens per pass", "higher", column="tokens/pass", digits=2)
    )
    speedup: float = field(metadata=figure("speed-up", "higher", digits=3))
    serial_speedup: float = field(metadata=figure("speed-up, serial", "higher", column="serial", digits=3, rank=3))
    break_even_acceptance: float | None = field(
        metadata=figure("breaks even at", "lower", column="breaks even", digits=3)
    )
    estimate_speedup: float | None = field(
        default=None, metadata=figure("speed-up, estimate", "higher", column="estimate", digits=3)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PayingRange:
    """Batches in a row at which speculation pays, both ends included; none for a last one where it never stops."""

    first_batch: int
    last_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimit:
    """At which batches speculation pays at one context.

    Args:
        context: tokens.
        gamma: the length of the draft; none where the best is taken at each batch.
        break_even_batch: the largest batch at which it pays; 0 where it never does, none where it never stops.
        pays: in words.
        paying: the ranges of batches; several where a mixture of experts loses between them.
        serial_break_even_batch: the same of serial times: there linear layers can be compute-bound while the cache is
            read.
        serial_pays: the same.
        serial_paying: the same.
        searched_batch: the largest batch that was tried.
        largest_fitting_batch: the largest batch that fits with what speculation adds; 0 for none.
        estimate_paying: the ranges of batches at which the whole interval of the estimate is above 1; none without one.
    """

    context: int
    gamma: int | None
    break_even_batch: int | None
    pays: Pays
    paying: tuple[PayingRange, ...]
    serial_break_even_batch: int | None
    serial_pays: Pays
    serial_paying: tuple[PayingRange, ...]
    searched_batch: int
    largest_fitting_batch: int
    estimate_paying: tuple[PayingRange, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestDraft:
    """The slowest draft that still pays at the first batch and context, whatever its length.

    Args:
        gamma: the length of its drafts.
        draft_ratio: its step over a plain step of the target; 0 where not even a free draft pays.
        step_s: the same in seconds.
        parameters: what a dense draft may have that does nothing but multiply its weights, cache aside.
        weight_format: the format of these weights.
    """

    gamma: int
    draft_ratio: float
    step_s: float
    parameters: int
    weight_format: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMemory:
    """Memory that speculation adds on the fullest GPU, at the first row.

    Args:
        weight_bytes: weights of the draft.
        kv_bytes: cache of the draft, for as many tokens as the target's.
        lookahead_bytes: slots of the target's cache for the drafted tokens; for a recurrent state a copy for each of
            them, to return to.
        total_bytes: all three.
    """

    weight_bytes: int
    kv_bytes: int
    lookahead_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedRule:
    """A rule that people quote, beside the exact answer.

    Args:
        name: the rule.
        speedup: what it predicts; none where it only says yes or no.
        pays: its verdict.
        agrees: whether the exact verdict at the first row is the same.
        why: where it misleads here.
    """

    name: str
    speedup: float | None
    pays: bool
    agrees: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MapCell:
    """The speed-up at one batch and one rate of acceptance, at the first context, and whether that fits into memory."""

    batch: int
    acceptance: float
    gamma: int
    speedup: float
    fits: bool
    estimate_speedup: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SpeculativeReport(Report):
    """Whether speculation pays, where it stops, and what it costs. The headline is that of the first row.

    Args:
        best_gamma: the length of the draft that is fastest; 0 where plain decoding is.
        break_even_batch: the largest batch at which it pays at the first context; 0 where it never does, none where it
            never stops. ``by_context`` has the batches below it at which it does not pay.
        acceptance: the rate of each drafted position.
        estimate_speedup: what an engine makes of it, as of the first row; none where nothing is estimated.
        verdict: whether it pays by the estimate's interval; none where nothing is estimated.
        calibration: what estimates are made with.
    """

    schema: str = "kvcalc.speculate/1"
    model: str
    draft: str | None
    method: str
    gpu: str
    gpus: int
    memory_bytes: int
    formats: RunFormats
    draft_formats: RunFormats | None
    acceptance: tuple[float, ...]
    batch: int
    context: int
    gamma: int
    expected_tokens_per_pass: float
    speedup: float
    serial_speedup: float
    break_even_acceptance: float | None
    best_gamma: int
    break_even_batch: int | None
    rows: tuple[SpeculativeRow, ...]
    by_gamma: tuple[GammaRow, ...]
    by_context: tuple[BatchLimit, ...]
    largest_draft: LargestDraft
    memory: DraftMemory
    rules: tuple[QuotedRule, ...]
    map: tuple[MapCell, ...]
    estimate_speedup: float | None = None
    estimate_low_speedup: float | None = None
    estimate_high_speedup: float | None = None
    verdict: Verdict | None = None
    calibration: EstimatedWith | None = None
    notes: tuple[str, ...] = ()
