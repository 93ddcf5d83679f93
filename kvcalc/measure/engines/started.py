"""Starts of engines, and their numbers beside those predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcalc.core.reports.measure import LoopCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.plan.deployment import Deployment

__all__ = ["Start", "same_numbers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start of an engine for a model.

    Args:
        deployment: model and formats, as the engine holds them.
        kv_bytes: what its cache should take.
        asked: what its process is told beside the steps.
        checks: whether what the process found, and printed, is what was predicted.
    """

    deployment: Deployment
    kv_bytes: int
    asked: Mapping[str, Any]
    checks: Callable[[Mapping[str, Any], str], list[LoopCheck]]


def same_numbers(name: str, pairs: Sequence[tuple[str, float, float | None]]) -> list[LoopCheck]:
    """Return whether numbers are the same: each with what it is, as predicted, and as found, where it was found."""
    return [
        LoopCheck(
            name=f"{name}: {what}",
            passed=computed == real,
            detail=f"{computed:,} predicted, " + ("none found" if real is None else f"{real:,} found"),
        )
        for what, computed, real in pairs
    ]
