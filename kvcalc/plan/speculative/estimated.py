"""Estimated rounds of speculation: the passes at the rates reached, and what the engine does between them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.core.sums import added
from kvcalc.core.workload import decode_step
from kvcalc.cost.estimate import estimate_time
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.sharding import rank_cache
from kvcalc.cost.speculation import break_even_rate, host_seconds, kept_state_seconds, speedup
from kvcalc.engines.rounds import round_terms
from kvcalc.plan.steps import required_hardware

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.cost_types import StepCost
    from kvcalc.core.speculation import DraftTree, RoundTerms
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.speculative.methods import Drafter

__all__ = [
    "CORRECTION",
    "DraftStep",
    "EstimatedRounds",
    "Ratios",
    "draft_calibration",
    "kept_seconds",
    "pass_cost",
    "served_terms",
    "terms_of",
]

# Times that are kept of one target and draft.
_MAX_KEPT = 20_000
# What runs at a step of a draft, the tokens of a sequence that it reads, and a number that tells it from others: the
# length of the draft, or `CORRECTION` for what runs behind a pass for each of its tokens.
DraftStep = tuple["Deployment", int, int]
CORRECTION = -1
_VERIFIED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Times of a round, and the same over a plain step of the target.

    Args:
        plain_s: a plain step.
        draft_s: all steps of the draft.
        verify_s: the verification.
        steps: how many the draft takes.
        host_s: the host's work that no pass hides; none of it in a bound.
    """

    plain_s: float
    draft_s: float
    verify_s: float
    steps: int
    host_s: float = 0.0

    @property
    def draft_ratio(self) -> float:
        """A step of the draft over a plain step: c."""
        return self.draft_s / self.steps / self.plain_s if self.steps else 0.0

    @property
    def verify_ratio(self) -> float:
        """The verification over a plain step: v; in an estimate with the host's work behind it."""
        return (self.verify_s + self.host_s) / self.plain_s

    @property
    def round_s(self) -> float:
        """The whole round."""
        return self.draft_s + self.verify_s + self.host_s

    def speedup(self, expected: float) -> float:
        """Return the speed over plain decoding for so many tokens a pass."""
        return speedup(
            expected=expected, gamma=self.steps, draft_ratio=self.draft_ratio, verify_ratio=self.verify_ratio
        )

    def break_even(self, tree: DraftTree) -> float | None:
        """Return the rate of acceptance at which the speed-up is 1."""
        return break_even_rate(
            tree=tree, gamma=self.steps, draft_ratio=self.draft_ratio, verify_ratio=self.verify_ratio
        )


class EstimatedRounds:
    """Estimated times of rounds, each pass computed once.

    Args:
        target: the model that verifies.
        drafter: what drafts.
        calibration: the rates of the passes.
    """

    def __init__(self, target: Deployment, drafter: Drafter, calibration: Calibration) -> None:
        self.calibration = calibration
        self.terms = terms_of(target, drafter.method, calibration)
        self._target = target
        self._drafted = _without_host(calibration)
        self._found: dict[tuple[int, int, int, int], float] = {}

    def ratios(self, batch: int, context: int, tree: DraftTree, steps: Sequence[DraftStep]) -> Ratios:
        """Return the times of passes, of the states kept for each drafted token, and of the host."""
        target = self._target
        return Ratios(
            plain_s=self._seconds(target, batch, context, 1, _VERIFIED),
            draft_s=added(self._seconds(runs, batch, context, tokens, which) for runs, tokens, which in steps),
            verify_s=self._seconds(target, batch, context, tree.nodes + 1, _VERIFIED)
            + kept_seconds(target, self.calibration, nodes=tree.nodes, batch=batch),
            steps=len(steps),
            host_s=host_seconds(self.terms, batch),
        )

    def _seconds(self, runs: Deployment, batch: int, context: int, query_tokens: int, which: int) -> float:
        """Return the time of a pass; a correction is part of one, and has no floor of its own."""
        key = (batch, context, query_tokens, which)
        if key not in self._found:
            if len(self._found) >= _MAX_KEPT:
                self._found.clear()
            cost = pass_cost(runs, batch, context, query_tokens)
            calibration = self.calibration if which == _VERIFIED else self._drafted
            seconds = estimate_time(cost, required_hardware(runs), calibration).estimate_s
            self._found[key] = seconds - (self.calibration.step_s if which == CORRECTION else 0.0)
        return self._found[key]


def pass_cost(runs: Deployment, batch: int, context: int, query_tokens: int) -> StepCost:
    """Return the cost of a pass over so many new tokens of each sequence, all with logits."""
    group = decode_step(batch=batch, context=context, query_tokens=query_tokens)
    return forward_cost(runs.model, (group,), runs.formats, parallel=runs.parallel)


def kept_seconds(target: Deployment, calibration: Calibration, *, nodes: int, batch: int) -> float:
    """Return the time in which a verification writes the recurrent states that a rejection returns to.

    Args:
        target: the model that verifies.
        calibration: the share of the bandwidth at which states are written.
        nodes: drafted tokens of a sequence.
        batch: sequences.
    """
    states = rank_cache(target.model, target.formats, target.parallel, tokens=1, batch=batch).state
    bandwidth = required_hardware(target).memory_bandwidth_bytes_per_s
    share = calibration.reach_of("state", "").bandwidth_share
    return kept_state_seconds(states, nodes=nodes, bytes_per_s=share * bandwidth)


def draft_calibration(calibration: Calibration | None) -> Calibration | None:
    """Return the calibration of a draft's passes; none where times are bounds."""
    return None if calibration is None else _without_host(calibration)


def _without_host(calibration: Calibration) -> Calibration:
    """Return a calibration without the time of sampled tokens: what is only drafted stays on the GPU."""
    return replace(calibration, sample_s=0.0)


def served_terms(
    target: Deployment, draft: Deployment | None, calibration: Calibration | None, *, gamma: int
) -> RoundTerms | None:
    """Return the terms of a served target's rounds, the states that it keeps with each sequence.

    Args:
        target: the model that verifies.
        draft: the draft model; n-grams where left out.
        calibration: what its passes are estimated with; in bounds a round takes its passes alone.
        gamma: drafted tokens of a verification.
    """
    if calibration is None or not gamma:
        return None
    terms = terms_of(target, "ngram" if draft is None else "draft-model", calibration)
    kept_s = kept_seconds(target, calibration, nodes=gamma, batch=1)
    return replace(terms, sequence_s=terms.sequence_s + kept_s)


def terms_of(target: Deployment, method: str, calibration: Calibration) -> RoundTerms:
    """Return the terms of rounds in the engine that is asked for, else in the calibration's.

    Args:
        target: the model that verifies, with its engine and version where they are named.
        method: the way to draft.
        calibration: what its passes are estimated with.
    """
    engine = calibration.engine if target.engine in (None, "ideal") else target.engine
    return round_terms(engine or calibration.engine, method, version=target.options.version)
