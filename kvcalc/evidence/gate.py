"""The gate: no sound measurement beats the bound, unless for a cause that can be computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text
from kvcalc.cost.roofline import step_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.evidence.cases import Case, Pass

__all__ = ["Verdict", "bound_s", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the gate finds.

    Args:
        bound_s: the least time.
        beaten: whether the measurement is below it.
        cause: why it honestly may be; empty where nothing explains it.
    """

    bound_s: float
    beaten: bool
    cause: str = ""


def bound_s(passes: Sequence[Pass], hardware: HardwareProfile, *, one_by_one: bool, held_bytes: float = 0) -> float:
    """Return the least time of all passes.

    Args:
        passes: the passes.
        hardware: the accelerator.
        one_by_one: whether pipeline stages follow each other.
        held_bytes: what may lie in the last-level cache when a pass begins, so that it need not be read again.
    """
    total = 0.0
    for step in passes:
        time = step_time(step.cost, hardware)
        if held_bytes:
            saved = held_bytes / hardware.memory_bandwidth_bytes_per_s
            total += step.times * max(time.compute_s, time.memory_s - saved, time.link_s)
        else:
            total += step.times * (time.latency_s if one_by_one else time.ideal_s)
    return total


def judge(case: Case) -> Verdict:
    """Return the bound of a case, whether it is beaten, and the first cause that explains it."""
    hardware = case.hardware
    least = bound_s(case.passes, hardware, one_by_one=case.one_by_one)
    if case.measured_s >= least:
        return Verdict(bound_s=least, beaten=False)
    return Verdict(bound_s=least, beaten=True, cause=_cause(case))


def _cause(case: Case) -> str:
    """Return the causes, in this order, that together bring the bound down to the measurement; empty if all do not."""
    told: list[str] = []
    hardware = case.hardware
    for change, words in ((_concentrated, _CONCENTRATED), (_narrow_cache, _NARROW_CACHE), (_narrow, _NARROW)):
        changed = change(case)
        if changed is None:
            continue
        if bound_s(changed.passes, hardware, one_by_one=case.one_by_one) < bound_s(
            case.passes, hardware, one_by_one=case.one_by_one
        ):
            case = changed
            told.append(words)
        if case.measured_s >= bound_s(case.passes, hardware, one_by_one=case.one_by_one):
            return "; ".join(told)
    held = hardware.last_level_cache_bytes or 0
    if case.measured_s >= bound_s(case.passes, hardware, one_by_one=case.one_by_one, held_bytes=held):
        return "; ".join([*told, f"{bytes_text(held)} of what it reads may stay in the last-level cache between runs"])
    return ""


_CONCENTRATED = "its tokens may share experts: held against the bound with the fewest"
_NARROW_CACHE = "the cache's format was not printed: held against the bound with 8 bits"
_NARROW = "multiplied in the narrower format of its weights: held against that peak"


def _concentrated(case: Case) -> Case | None:
    return case.with_routing("best")


def _narrow_cache(case: Case) -> Case | None:
    """Return the case with a cache of 8 bits, which engines offer, where the record leaves its format open."""
    return case.with_cache("fp8") if case.deployment is not None and case.record.kv is None else None


def _narrow(case: Case) -> Case | None:
    return replace(case, passes=case.narrow) if case.narrow else None
