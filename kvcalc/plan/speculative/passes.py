"""Costs of draft and verification at a batch and context, in time and memory: every time is that of a `forward_cost`.

Bounds are `step_time`'s; estimates are `estimate_time`'s, with what the engine's host takes between the passes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from kvcalc.core.errors import InputError
from kvcalc.core.records import dataclass
from kvcalc.core.reports.speculative import DraftMemory
from kvcalc.core.sums import added
from kvcalc.cost.roofline import step_time
from kvcalc.cost.sharding import rank_cache
from kvcalc.cost.speculation import expected_tokens_of_tree, tree_acceptance
from kvcalc.plan.rank_memory import memory_needed
from kvcalc.plan.room import fit_reason
from kvcalc.plan.speculative.estimated import CORRECTION, EstimatedRounds, Ratios, pass_cost
from kvcalc.plan.speculative.placing import drafted
from kvcalc.plan.steps import required_hardware

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.cost_types import StepTime
    from kvcalc.core.speculation import DraftTree
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.speculative.acceptance import Acceptance
    from kvcalc.plan.speculative.methods import Drafter

__all__ = ["Kind", "Outcome", "Passes", "Ratios", "Speculation", "draft_memory", "speculation_memory"]

# Which time of a pass: a sequence passes all pipeline stages, so that the ideal one is the sum over them.
Kind = Literal["latency_s", "serial_s", "estimate_s"]
# Times that are kept of one target and draft.
_MAX_KEPT = 20_000


class Passes:
    """Times of the passes of a target and its draft, each computed once.

    Args:
        target: the model that verifies.
        drafter: what drafts.
        calibration: what rounds are estimated with, beside the bounds.
    """

    def __init__(self, target: Deployment, drafter: Drafter, calibration: Calibration | None = None) -> None:
        self.target = target
        self.drafter = drafter
        self.estimated = None if calibration is None else EstimatedRounds(target, drafter, calibration)
        self._found: dict[tuple[int, int, int, int], StepTime] = {}
        self._ratios: dict[tuple[int, int, DraftTree, Kind], Ratios] = {}
        self._steps: dict[DraftTree, tuple[int, ...]] = {}
        self._memory: dict[tuple[int, int, DraftTree], int] = {}
        self._drafted: dict[tuple[int, int], Deployment] = {}

    def memory_bytes(self, batch: int, context: int, tree: DraftTree) -> int:
        """Return the bytes that target and draft need on the fullest GPU."""
        key = (batch, context, tree)
        if key not in self._memory:
            if len(self._memory) >= _MAX_KEPT:
                self._memory.clear()
            self._memory[key] = speculation_memory(self.target, self.drafter, tree, batch=batch, context=context)
        return self._memory[key]

    def fits(self, batch: int, context: int, tree: DraftTree) -> bool:
        """Whether target and draft fit under the target's engine."""
        return not fit_reason(self.with_draft(tree), context=context, batch=batch)

    def with_draft(self, tree: DraftTree) -> Deployment:
        """Return the target with what drafts such a tree in its memory, the same object each time."""
        key = (len(tree.level_widths), tree.nodes)
        if key not in self._drafted:
            self._drafted[key] = drafted(self.target, self.drafter, gamma=key[0], nodes=key[1])
        return self._drafted[key]

    def target_time(self, batch: int, context: int, query_tokens: int) -> StepTime:
        """Return the time of a pass of the target over so many new tokens of each sequence, all with logits."""
        return self._time(self.target, batch, context, query_tokens, 0)

    def draft_times(self, batch: int, context: int, tree: DraftTree) -> tuple[StepTime, ...]:
        """Return the time of each step of the draft; none where nothing runs."""
        return tuple(self._time(runs, batch, context, tokens, which) for runs, tokens, which in self._draft_steps(tree))

    def ratios(self, batch: int, context: int, tree: DraftTree, kind: Kind = "latency_s") -> Ratios:
        """Return the times of a round at a batch and context."""
        key = (batch, context, tree, kind)
        known = self._ratios.get(key)
        if known is None:
            known = self._bound(*key) if kind != "estimate_s" else self._estimate(batch, context, tree)
            if len(self._ratios) >= _MAX_KEPT:
                self._ratios.clear()
            self._ratios[key] = known
        return known

    def _bound(self, batch: int, context: int, tree: DraftTree, kind: Kind) -> Ratios:
        steps = self.draft_times(batch, context, tree)
        return Ratios(
            plain_s=getattr(self.target_time(batch, context, 1), kind),
            draft_s=added(getattr(time, kind) for time in steps),
            verify_s=getattr(self.target_time(batch, context, tree.nodes + 1), kind),
            steps=len(steps),
        )

    def _estimate(self, batch: int, context: int, tree: DraftTree) -> Ratios:
        if self.estimated is None:
            raise InputError("no round is estimated without a calibration", hint="--calibration takes your own")
        return self.estimated.ratios(batch, context, tree, self._draft_steps(tree))

    def _draft_steps(self, tree: DraftTree) -> list[tuple[Deployment, int, int]]:
        """Return the steps of the draft: layers that run, tokens of a sequence that they read, and their number."""
        gamma = len(tree.level_widths)
        runs, corrects = self.drafter.runs(gamma), self.drafter.corrects
        if runs is None:
            return []
        if tree not in self._steps:
            self._steps[tree] = self.drafter.steps(tree)
        steps = [(runs, tokens, gamma) for tokens in self._steps[tree]]
        return steps if corrects is None else [*steps, *[(corrects, 1, CORRECTION)] * gamma]

    def _time(self, runs: Deployment, batch: int, context: int, query_tokens: int, which: int) -> StepTime:
        key = (batch, context, query_tokens, which)
        if key not in self._found:
            if len(self._found) >= _MAX_KEPT:
                self._found.clear()
            self._found[key] = step_time(pass_cost(runs, *key[:3]), required_hardware(runs))
        return self._found[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A round at a batch and context: what was drafted, what it takes, and what it gives."""

    tree: DraftTree
    times: Ratios
    expected_tokens: float

    @property
    def gamma(self) -> int:
        """Levels of the draft."""
        return len(self.tree.level_widths)

    @property
    def speedup(self) -> float:
        """Speed over plain decoding."""
        return self.times.speedup(self.expected_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A setting of speculation: passes, acceptance, and the shape of a draft of each length.

    Args:
        passes: times of target and draft.
        acceptance: how often drafted tokens are accepted.
        shape: the tree of a draft with so many levels, for the acceptance of each level.
        gammas: lengths to choose from.
    """

    passes: Passes
    acceptance: Acceptance
    shape: Callable[[tuple[float, ...]], DraftTree]
    gammas: tuple[int, ...]

    def at(
        self,
        batch: int,
        context: int,
        gamma: int,
        *,
        acceptance: Acceptance | None = None,
        kind: Kind = "latency_s",
    ) -> Outcome:
        """Return a round of a given length; with another acceptance where one is given."""
        by_depth = (acceptance or self.acceptance).by_depth(gamma)
        tree = self.shape(by_depth)
        return Outcome(
            tree=tree,
            times=self.passes.ratios(batch, context, tree, kind),
            expected_tokens=_expected(tree, by_depth),
        )

    @property
    def basis(self) -> Kind:
        """The times that lengths are chosen by: estimates where there are any, else the bounds."""
        return "latency_s" if self.passes.estimated is None else "estimate_s"

    def best(self, batch: int, context: int, *, acceptance: Acceptance | None = None) -> Outcome:
        """Return the round of the length that is fastest of those that fit, the shortest of equals."""
        return max(
            (self.at(batch, context, gamma, acceptance=acceptance, kind=self.basis) for gamma in self.gammas),
            key=lambda outcome: (self.passes.fits(batch, context, outcome.tree), outcome.speedup, -outcome.gamma),
        )

    def asked_for(
        self, batch: int, context: int, gamma: int | None, *, acceptance: Acceptance | None = None
    ) -> Outcome:
        """Return the bound of a round of a given length, or of the best where none is given."""
        if gamma is None:
            gamma = self.best(batch, context, acceptance=acceptance).gamma
        return self.at(batch, context, gamma, acceptance=acceptance)


@lru_cache(maxsize=1024)
def _expected(tree: DraftTree, by_depth: tuple[float, ...]) -> float:
    return expected_tokens_of_tree(tree, tree_acceptance(tree, by_depth))


def draft_memory(target: Deployment, drafter: Drafter, tree: DraftTree, *, batch: int, context: int) -> DraftMemory:
    """Return the memory of draft and drafted tokens on the fullest GPU.

    The slots that are looked ahead are one for each drafted token, in windowed layers too: a rejection must leave the
    window as it was. A recurrent state cannot be cut back, so each drafted token needs a copy of it (vLLM 0.32,
    MambaSpec.num_speculative_blocks).
    """
    gamma = len(tree.level_widths)
    runs = drafter.runs(gamma)
    weights = drafter.weight_bytes(gamma)
    cache = 0
    if runs is not None and drafter.keeps_cache:
        draft_cache = rank_cache(runs.model, runs.formats, runs.parallel, tokens=context + tree.nodes, batch=batch)
        cache = draft_cache.growing + draft_cache.state + draft_cache.cross
    ahead = rank_cache(target.model, target.formats, target.parallel, tokens=tree.nodes, batch=batch)
    lookahead = ahead.growing + tree.nodes * ahead.state
    return DraftMemory(
        weight_bytes=weights, kv_bytes=cache, lookahead_bytes=lookahead, total_bytes=weights + cache + lookahead
    )


def speculation_memory(target: Deployment, drafter: Drafter, tree: DraftTree, *, batch: int, context: int) -> int:
    """Return the bytes that the target and what speculation adds need on the fullest GPU."""
    added = draft_memory(target, drafter, tree, batch=batch, context=context).total_bytes
    return memory_needed(target, tokens=context, batch=batch) + added
