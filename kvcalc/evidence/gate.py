"""The gate: no sound measurement beats the bound, unless for a cause that can be computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text
from kvcalc.cost.roofline import step_time

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.evidence.cases import Case

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


def bound_s(case: Case, *, held_bytes: float = 0) -> float:
    """Return the least time of a case's passes on whichever of its accelerators is fastest.

    Args:
        case: the case.
        held_bytes: what may lie in the last-level cache when a pass begins, so that it need not be read again.
    """
    return min(_bound_s(case, hardware, held_bytes) for hardware in case.variants)


def _bound_s(case: Case, hardware: HardwareProfile, held_bytes: float) -> float:
    times = [(step.times, step_time(step.cost, hardware)) for step in case.passes]
    if case.timing == "mixed":
        # all overlapped: prompts ride along with the steps of others, whose weights they share
        shared = sum(op.weight_bytes for op in case.passes[0].cost.stages[0]) if len(times) > 1 else 0
        memory = sum(count * time.memory_s for count, time in times) - shared / hardware.memory_bandwidth_bytes_per_s
        compute = sum(count * time.compute_s for count, time in times)
        return max(compute, memory, sum(count * time.link_s for count, time in times))
    if held_bytes:
        saved = held_bytes / hardware.memory_bandwidth_bytes_per_s
        return sum(count * max(time.compute_s, time.memory_s - saved, time.link_s) for count, time in times)
    return sum(count * (time.latency_s if case.timing == "one by one" else time.ideal_s) for count, time in times)


def judge(case: Case) -> Verdict:
    """Return the bound of a case, whether it is beaten, and what explains it."""
    least = bound_s(case)
    if case.measured_s >= least:
        return Verdict(bound_s=least, beaten=False)
    return Verdict(bound_s=least, beaten=True, cause=_cause(case))


def _cause(case: Case) -> str:
    """Return the causes, in this order, that together bring the bound down to the measurement; empty if all do not."""
    told: list[str] = []
    for words, changed in (
        ("its tokens may share experts: held against the bound with the fewest", _concentrated),
        ("the cache's format was not printed: held against the bound with 8 bits", _narrow_cache),
        ("the weights' format was not printed: held against the bound with 8 bits", _narrow_weights),
        ("multiplied in the narrower format of its weights: held against that peak", _narrow),
    ):
        other = changed(case)
        if bound_s(other) < bound_s(case):
            case = other
            told.append(words)
        if case.measured_s >= bound_s(case):
            return "; ".join(told)
    held = max(hardware.last_level_cache_bytes or 0 for hardware in case.variants)
    if case.measured_s >= bound_s(case, held_bytes=held):
        return "; ".join([*told, f"{bytes_text(held)} of what it reads may stay in the last-level cache between runs"])
    return ""


def _concentrated(case: Case) -> Case:
    return case.with_routing("best")


def _narrow_cache(case: Case) -> Case:
    """Return the case with a cache of 8 bits, which engines offer, where the record leaves its format open."""
    return case.with_formats(cache="fp8") if case.record.kv is None else case


def _narrow_weights(case: Case) -> Case:
    return case.with_formats(weights="fp8", activations="fp8") if case.record.weights is None else case


def _narrow(case: Case) -> Case:
    return replace(case, passes=case.narrow) if case.narrow else case
