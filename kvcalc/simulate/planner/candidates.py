"""Candidates of a plan: models on cards to be spread, the demand on them, and the layouts found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvcalc.core.workload import Parallel
from kvcalc.cost.sharding import splits_evenly
from kvcalc.plan.speculative import with_drafter
from kvcalc.plan.speculative.estimated import draft_calibration, served_terms
from kvcalc.simulate.timer import step_timer

if TYPE_CHECKING:
    from kvcalc.core.calibration import Calibration
    from kvcalc.core.speculation import RoundTerms
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.planner.prices import Price
    from kvcalc.plan.planner.space import Limits
    from kvcalc.plan.planner.traffic import Traffic
    from kvcalc.simulate.metrics import Limit
    from kvcalc.simulate.planner.steady import State, Steady
    from kvcalc.simulate.timer import StepTimer

__all__ = ["Candidate", "Demand", "Drafting", "Ranking", "Variant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """Speculative decoding of a variant.

    Args:
        gamma: drafted tokens of a verification.
        tokens_per_pass: tokens that a verification gives on average.
        model: the draft model on one rank's accelerator; none where drafting takes no time.
    """

    gamma: int
    tokens_per_pass: float
    model: Deployment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model on one accelerator in an engine's formats, to be spread.

    Args:
        deployment: it, with the options that are given.
        calibration: what its steps are estimated with; none for the bound without overlap.
        price: of the accelerator, where one is given.
        drafting: speculative decoding, where it is asked for.
    """

    deployment: Deployment
    calibration: Calibration | None
    price: Price | None
    drafting: Drafting | None = None

    @property
    def step_times(self) -> str:
        """Times of steps: ``estimate``, or ``serial``, the bound without overlap."""
        return "serial" if self.calibration is None else "estimate"

    def cost(self, gpus: int) -> float:
        """Return dollars an hour of so many accelerators, or their number where there is no price."""
        return float(gpus) if self.price is None else self.price.of(gpus)

    def timer(self, deployment: Deployment) -> StepTimer:
        """Return the times of a deployment's steps."""
        return step_timer(deployment, self.step_times, self.calibration, alike=True)

    def draft_timer(self, draft: Deployment) -> StepTimer:
        """Return the times of the draft's steps."""
        return step_timer(draft, self.step_times, draft_calibration(self.calibration), alike=True)

    def draft_on(self, parallel: Parallel) -> Deployment | None:
        """Return the draft model beside a target: over its tensor ranks, where they share the draft's heads."""
        model = None if self.drafting is None else self.drafting.model
        if model is None:
            return None
        ranks = parallel.tensor if splits_evenly(model.model, parallel.tensor) else 1
        return replace(model, parallel=Parallel(tensor=ranks))

    def round_terms(self, deployment: Deployment) -> RoundTerms | None:
        """Return the terms of rounds besides their passes; none without drafts, or in bounds."""
        gamma = 0 if self.drafting is None else self.drafting.gamma
        return served_terms(deployment, self.draft_on(deployment.parallel), self.calibration, gamma=gamma)

    def with_draft(self, deployment: Deployment) -> Deployment:
        """Return a deployment with what drafts for it in its memory."""
        drafting = self.drafting
        if drafting is None:
            return deployment
        method = "ngram" if drafting.model is None else None
        return with_drafter(deployment, self.draft_on(deployment.parallel), gamma=drafting.gamma, method=method)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Load, limits and headroom that a plan must meet.

    Args:
        traffic: the requests; its rate is that of the peak, growth included.
        limits: what must hold.
        load_share: share of its capacity that a plan may be loaded to.
        spare: replicas that may fail.
        max_gpus: accelerators of a plan at most.
    """

    traffic: Traffic
    limits: tuple[Limit, ...]
    load_share: float
    spare: int
    max_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One layout with its limits, and the estimate of what it does.

    Args:
        variant: card, formats and engine.
        deployment: spread, with its limits.
        limits: the limits that it is started with beside its defaults.
        state: the busiest steady state of a copy within the limits.
        slots: requests that may run at once on a copy.
        replicas: replicas that the load needs.
        binds: the limit that breaks first.
        alone_s: time per output token of a request that runs alone.
        steady: the steady states of a copy; none where it is simulated, which asks for none.
    """

    variant: Variant
    deployment: Deployment
    limits: Limits
    state: State
    slots: int
    replicas: int
    binds: str
    alone_s: float
    steady: Steady | None = field(repr=False, compare=False)

    def state_at(self, rate_per_s: float) -> State:
        """Return the steady state of a copy at a load: the busiest at one beyond it."""
        return self.state if self.steady is None else self.steady.at_rate(rate_per_s, busiest=self.state)

    @property
    def copies(self) -> int:
        """Data-parallel copies of a replica."""
        return self.deployment.parallel.data

    @property
    def capacity_per_s(self) -> float:
        """Requests a second of one replica, estimated."""
        return self.copies * self.state.rate_per_s

    def cost(self, replicas: int | None = None) -> tuple[float, int]:
        """Return dollars an hour, or GPUs where there is no price; and GPUs."""
        gpus = self.gpus(self.replicas if replicas is None else replicas)
        return self.variant.cost(gpus), gpus

    def gpus(self, replicas: int) -> int:
        """Return the accelerators of so many replicas."""
        return self.deployment.parallel.gpus * replicas


@dataclass(slots=True)
class Ranking:
    """The end of the search.

    Args:
        candidates: the best limits of each layout, cheapest first.
        tried: candidates looked at.
        refused: those that the engine refuses.
        pruned: those that a bound on time or price rules out.
        ranked: those that were estimated.
        why: for each card, why its engine refuses layouts, with the number of GPUs of a replica.
        bounds: for each card the bound of the layout that comes closest to the limits, with the times that it is of
            its limit.
        short: for each card, why layouts that no bound rules out are out, with the number of GPUs that the load needs:
            infinite where no load keeps the limits.
    """

    candidates: list[Candidate] = field(default_factory=list)
    tried: int = 0
    refused: int = 0
    pruned: int = 0
    ranked: int = 0
    why: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    bounds: dict[str, tuple[float, str]] = field(default_factory=dict)
    short: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def out(self, hardware: str, parallel: Parallel, reason: str) -> None:
        """Note why a layout is refused."""
        self.why.setdefault(hardware, []).append((parallel.gpus, reason))
