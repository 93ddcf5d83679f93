"""Conditions at an answer: memory, speeds and costs, as `fit`, `decode`, `prefill` and `speculate` tell them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.identity import ById
from kvcalc.plan.decode import decode_row
from kvcalc.plan.fit import longest_length
from kvcalc.plan.prefill import prefill_row
from kvcalc.plan.room import BudgetTerms, room
from kvcalc.plan.speculative import Acceptance, SpeculationOptions
from kvcalc.plan.speculative.report import ask

if TYPE_CHECKING:
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.speculative.passes import Outcome, Speculation

__all__ = ["MAX_BYTES_PER_S", "NO_TARGETS", "Check", "Drafting", "Question", "Solution", "Targets", "Trial"]

# No memory moves so many bytes a second, and no target is so large.
MAX_BYTES_PER_S = 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Targets to reach besides fitting into memory.

    Args:
        tokens_per_s: least decoding speed of all sequences together.
        tokens_per_s_per_sequence: least decoding speed of each.
        ttft_s: most time to first token of one prompt as long as the context.
        usd_per_million_tokens: most that a million decoded tokens may cost.
        speedup: least speed over plain decoding, of speculation.
    """

    tokens_per_s: float | None = None
    tokens_per_s_per_sequence: float | None = None
    ttft_s: float | None = None
    usd_per_million_tokens: float | None = None
    speedup: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 < value < MAX_BYTES_PER_S:
                raise InputError(f"{name.replace('_', '-')} must be above 0, not {value}")

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return any(getattr(self, name) is not None for name in self.__slots__)


NO_TARGETS = Targets()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """The way to draft, where the acceptance is asked for.

    Args:
        draft: the draft model on the target's accelerators; none for methods without one.
        method: the way to draft; a draft model where left out.
        gamma: drafted tokens in a row; the best where left out.
    """

    draft: Deployment | None = None
    method: str | None = None
    gamma: int | None = None

    def speedup(self, trial: Trial) -> float:
        """Return the speed over plain decoding at a trial's acceptance."""
        return self.outcome(trial).speedup

    def outcome(self, trial: Trial) -> Outcome:
        """Return the round at a trial's acceptance."""
        asked = self._speculation(trial)
        return asked.asked_for(trial.batch, trial.context, self.gamma, acceptance=_constant(trial.acceptance))

    def in_memory(self, trial: Trial, outcome: Outcome) -> Trial:
        """Return a trial with what drafts a round in the target's memory."""
        return replace(trial, deployment=self._speculation(trial).passes.with_draft(outcome.tree))

    def _speculation(self, trial: Trial) -> Speculation:
        return _asked(ById(trial.deployment), ById(self.draft), self.method, self.gamma)


@lru_cache(maxsize=4)
def _asked(
    target: ById[Deployment], draft: ById[Deployment | None], method: str | None, gamma: int | None
) -> Speculation:
    """Return the question to speculation: its passes are the same at every acceptance that a search tries."""
    gammas = None if gamma is None else (gamma,)
    return ask(target.value, draft.value, SpeculationOptions(acceptance=_constant(1.0), method=method, gammas=gammas))


def _constant(rate: float) -> Acceptance:
    return Acceptance(rates=(rate,), constant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One value of every quantity."""

    deployment: Deployment
    batch: int
    context: int
    acceptance: float = 1.0


@dataclass(frozen=True, slots=True)
class Check:
    """One constraint at one trial."""

    quantity: str
    relation: str
    target: float
    reached: float | None
    holds: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Conditions at a trial.

    Args:
        targets: speeds and costs.
        terms: terms of the budget that are given.
        memory: whether the batch must fit; a made-up bandwidth or price asks for the speed alone.
        starts_as_asked: whether the engine is started for the context of each trial, not for its own longest.
        drafting: how is drafted, where a speed-up is a target.
    """

    targets: Targets
    terms: BudgetTerms
    memory: bool
    starts_as_asked: bool
    drafting: Drafting | None = None

    def checks(self, trial: Trial) -> list[Check]:
        """Return every constraint at a trial.

        Raises:
            InputError: a cost without a price.
        """
        checks = [self.fit(trial)] if self.memory else []
        targets = self.targets
        if targets.ttft_s is not None:
            seconds = prefill_row(trial.deployment, batch=1, prompt=trial.context).ideal_s
            checks.append(Check("ttft_s", "at most", targets.ttft_s, seconds, seconds <= targets.ttft_s))
        if targets.speedup is not None and self.drafting is not None:
            gained = self.drafting.speedup(trial)
            checks.append(Check("speedup", "at least", targets.speedup, gained, gained >= targets.speedup))
        rated = ("tokens_per_s", "tokens_per_s_per_sequence", "usd_per_million_tokens")
        wanted = [(name, getattr(targets, name)) for name in rated if getattr(targets, name) is not None]
        row = decode_row(trial.deployment, batch=trial.batch, context=trial.context) if wanted else None
        for name, target in wanted:
            value = getattr(row, name)
            below = name == "usd_per_million_tokens"
            if value is None:
                raise InputError("a cost needs the price of a GPU-hour", hint="give --price")
            holds = value <= target if below else value >= target
            checks.append(Check(name, "at most" if below else "at least", target, value, holds))
        return checks

    def fit(self, trial: Trial) -> Check:
        """Return whether a trial's batch fits into memory."""
        longest = longest_length(trial.deployment, trial.context, asked=self.starts_as_asked)
        space = room(trial.deployment, max_model_len=longest, terms=self.terms)
        reason = space.reason(context=trial.context, batch=trial.batch)
        taken = trial.batch <= space.max_sequences
        needed = space.pool.bytes_for(context=trial.context, batch=trial.batch) if taken else None
        return Check("memory_bytes", "at most", max(0, space.kv_bytes), needed, not reason, reason)

    def holds(self, trial: Trial) -> bool:
        """Whether every constraint holds at a trial."""
        return all(check.holds for check in self.checks(trial))


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The trial at the answer, or the closest to one, its neighbour beyond, and the answer if there is one."""

    answer: float | None
    trial: Trial
    beyond: Trial | None
    stop: str = ""
