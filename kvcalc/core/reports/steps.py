"""A scheduler's decisions, step by step: the answer of ``kvcalc simulate --steps``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["StepsReport"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepsReport(Report):
    """The steps of a scenario on a step clock, in the form in which engines' own were recorded.

    Args:
        name: the scenario's name.
        steps: for each step its number, what was ``scheduled`` (tokens of each request, in order), ``new``,
            ``resumed``, ``preempted`` and ``finished`` requests, how many are ``running`` and ``waiting``, free blocks
            after scheduling and at the end, and ``prefix_hit_tokens``.
        totals: their sums.
    """

    name: str
    steps: tuple[Mapping[str, Any], ...]
    totals: Mapping[str, Any]
    schema: str = "kvcalc.steps/1"
    notes: tuple[str, ...] = ()
