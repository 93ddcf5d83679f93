"""Drafts in a simulated server: what a round takes besides the pass that verifies, and how many tokens are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from kvcalc.cost.speculation import host_seconds
from kvcalc.simulate.ticks import ticks
from kvcalc.simulate.timer import sums_of

if TYPE_CHECKING:
    from kvcalc.core.speculation import RoundTerms
    from kvcalc.plan.speculative import Acceptance
    from kvcalc.simulate.scheduler import Step
    from kvcalc.simulate.sequences import Job
    from kvcalc.simulate.timer import StepTimer

__all__ = ["Drafting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """Speculative decoding.

    Args:
        acceptance: probability that a draft is accepted, if those before it were; the same at all positions or not.
        timer: how long a pass of the drafter takes; nothing where it costs nothing.
        terms: what a round takes besides its passes; nothing where times are bounds.
        seed: of the draws; each request has its own.
    """

    acceptance: Acceptance
    timer: StepTimer | None = None
    terms: RoundTerms | None = None
    seed: int = 0

    def ticks(self, step: Step[Job]) -> int:
        """Return the ticks of a round beside its verification, of a step that verifies drafts."""
        beside = 0 if self.terms is None else ticks(host_seconds(self.terms, len(step.drafts)))
        return beside + (0 if self.timer is None else self._passes(step, self.timer))

    def accepted(self, step: Step[Job]) -> dict[Job, int]:
        """Draw how many drafts of each sequence are accepted."""
        return {job: self._draw(job, drafts) for job, drafts in step.drafts.items()}

    def _passes(self, step: Step[Job], timer: StepTimer) -> int:
        """Return the ticks of the drafter: a pass for each draft token, which also takes in new prompts."""
        contexts = [job.computed - drafts for job, drafts in step.drafts.items()]
        sums, count = sums_of(contexts, timer), len(contexts)
        level = (0,) * len(sums)
        chunks = [(new, job.computed - new) for job, new in step.scheduled.items() if job not in step.drafts]
        chunks = [chunk for chunk in chunks if chunk[0] > 1]
        alone = timer.line(count, count, sums, level, ())[0]
        whole = timer.line(count + sum(chunk[0] for chunk in chunks), count, sums, level, chunks)[0]
        return whole + (max(step.drafts.values()) - 1) * alone

    def _draw(self, job: Job, drafts: int) -> int:
        if job.random is None:
            job.random = Random(f"{self.seed}/{job.order}")  # noqa: S311  a simulation
        rates = self.acceptance.by_depth(drafts)
        accepted = 0
        while accepted < drafts and job.random.random() < rates[accepted]:
            accepted += 1
        return accepted
