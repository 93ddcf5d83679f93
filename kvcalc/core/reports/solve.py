"""The one quantity that was left open: the answer of ``kvcalc solve``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from kvcalc.core.reports.common import RunFormats

__all__ = ["SolveConstraint", "SolveReport", "SolveRow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveConstraint:
    """Something that must hold at the answer.

    Args:
        quantity: what is bounded: ``memory_bytes`` (of the cache, on the fullest GPU), ``tokens_per_s`` and so on.
        relation: ``at least`` or ``at most``.
        target: the bound.
        reached: its value at the answer; where there is none, at the closest that was tried.
        beyond: its value one step further; for a number of GPUs, on the next smaller one that was tried.
        beyond_target: the bound there.
        holds: whether it holds at the answer.
        binds: whether it is what stops there, or what cannot be met at all.
        reason: in words, where the engine has some.
    """

    quantity: str
    relation: str
    target: float
    reached: float | None
    beyond: float | None
    beyond_target: float | None
    holds: bool
    binds: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveRow:
    """The answer, with every quantity as it is there.

    Args:
        unknown: the quantity that was left open.
        answer: its value; a whole number where it counts something; none where nothing meets the constraints.
        unit: its unit.
        extreme: ``largest``, ``fewest``, ``least`` or ``most``: which end of what meets the constraints it is.
        binding: the constraints that stop there.
        reason: why there is no answer, or what stops there.
        model: the model.
        gpu: the accelerator.
        gpus: how many.
        tensor: ranks that split every layer.
        pipeline: stages that split the layers.
        expert: ranks that share out the experts.
        data: copies of the attention part.
        batch: sequences.
        context: tokens of each.
        fits: whether the engine holds them; where it does not, the answer is hypothetical.
        misfit: why it does not; empty where it does.
        tokens_per_s: the bound on decoding.
        tokens_per_s_per_sequence: the same for one sequence.
        usd_per_million_tokens: the least cost of a million tokens.
        acceptance: share of drafted tokens that is accepted, where it is the unknown.
        gamma: drafted tokens of a pass there.
        expected_tokens_per_pass: what that acceptance gives, the target's own token included: the accepted length.
        constraints: what had to hold.
    """

    unknown: str
    answer: float | None
    unit: str
    extreme: str
    binding: tuple[str, ...]
    reason: str
    model: str
    gpu: str
    gpus: int
    tensor: int
    pipeline: int
    expert: int
    data: int
    batch: int
    context: int
    fits: bool
    tokens_per_s: float | None
    tokens_per_s_per_sequence: float | None
    usd_per_million_tokens: float | None
    acceptance: float | None
    constraints: tuple[SolveConstraint, ...]
    misfit: str = ""
    gamma: int | None = None
    expected_tokens_per_pass: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SolveReport(Report):
    """The value of the one quantity that was left open; ``rows`` has one entry."""

    schema: str = "kvcalc.solve/1"
    engine: str
    formats: RunFormats
    rows: tuple[SolveRow, ...]
    notes: tuple[str, ...] = ()
