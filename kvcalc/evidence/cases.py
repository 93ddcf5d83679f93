"""A record as what can be computed: an accelerator, and the passes that the measured time was spent on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from kvcalc.core.formats import parse_format
from kvcalc.cost.forward import forward_cost

if TYPE_CHECKING:
    from kvcalc.core.cost_types import StepCost
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.workload import Routing, TokenGroup
    from kvcalc.evidence.record import Record
    from kvcalc.plan.deployment import Deployment

__all__ = ["Case", "FirstToken", "Pass", "Unusable", "pass_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Forward passes (or kernels) that are alike.

    Args:
        cost: of one of them.
        groups: the tokens of one of them; none for a kernel.
        times: how many.
        is_beside: whether they are of other requests, so that only a share of their time is waited for.
    """

    cost: StepCost
    groups: tuple[TokenGroup, ...] = ()
    times: float = 1.0
    is_beside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """Parts of the time to a first token.

    Args:
        prompt: the request's own prompt.
        step: a decode step of the others, which it waits for.
        others: prompts of others that may be read before.
    """

    prompt: Pass
    step: Pass
    others: float


def pass_of(
    deployment: Deployment,
    *groups: TokenGroup,
    times: float = 1.0,
    routing: Routing = "expected",
    is_beside: bool = False,
) -> Pass:
    """Return passes of a deployment over groups of tokens."""
    cost = forward_cost(deployment.model, groups, deployment.formats, parallel=deployment.parallel, routing=routing)
    return Pass(cost=cost, groups=groups, times=times, is_beside=is_beside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A record as passes on an accelerator.

    Args:
        record: the record.
        variants: the accelerators that its name may mean, the usual one first.
        passes: what the measured time was spent on.
        measured_s: the measured time of all passes.
        deployment: model, formats and parallel sizes; none for a kernel.
        timing: how the passes follow each other: each ``alone``, ``one by one`` through pipeline stages as those of a
            single sequence, or ``mixed`` with those of other requests, whose weights they share.
        likely: the passes that an estimate is made of, where a bound leaves out what surely was not needed: prompts of
            other requests that an engine reads in the same passes; else those of the bound.
        first: of a time to first token, what it is estimated from.
        narrow: the same passes multiplied in the narrower format of their operands, where an engine may do so.
        assumed: what was not printed, and how it was taken.
        bound_only: why no estimate is meant for it; empty where one is.
    """

    record: Record
    variants: tuple[HardwareProfile, ...]
    passes: tuple[Pass, ...]
    measured_s: float
    deployment: Deployment | None = None
    timing: Literal["alone", "one by one", "mixed"] = "alone"
    likely: tuple[Pass, ...] = ()
    first: FirstToken | None = None
    narrow: tuple[Pass, ...] = ()
    assumed: tuple[str, ...] = ()
    bound_only: str = ""

    @property
    def hardware(self) -> HardwareProfile:
        """The usual one of the accelerators that the record may mean."""
        return self.variants[0]

    def with_routing(self, routing: Routing) -> Case:
        """Return the case with other experts touched."""
        return self if self.deployment is None else self._again(self.deployment, routing)

    def with_formats(
        self, *, cache: str | None = None, weights: str | None = None, activations: str | None = None
    ) -> Case:
        """Return the case with the cache, or weights and what they are multiplied with, in other formats."""
        if self.deployment is None:
            return self
        formats = self.deployment.formats
        if cache is not None:
            formats = replace(formats, key=parse_format(cache), value=parse_format(cache))
        if weights is not None:
            formats = replace(formats, weights=parse_format(weights), parts={}, recipe="")
        if activations is not None:
            formats = replace(formats, activations=parse_format(activations))
        return self._again(replace(self.deployment, formats=formats), "expected")

    def _again(self, deployment: Deployment, routing: Routing) -> Case:
        passes = tuple(pass_of(deployment, *step.groups, times=step.times, routing=routing) for step in self.passes)
        return replace(self, deployment=deployment, passes=passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """A record that cannot be held against a prediction.

    Args:
        status: whether a profile is missing, or the record leaves open what was measured.
        reason: what is missing.
        guess: the record as it may have been, for a prediction that nothing is held against.
    """

    status: Literal["no profile", "excluded"]
    reason: str
    guess: Case | None = None
