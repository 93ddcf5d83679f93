"""The gate: no sound measurement beats the bound, unless for a cause that can be computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.cost_types import OpCost
from kvcalc.core.units import bytes_text
from kvcalc.cost.roofline import step_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.cost_types import StepCost
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.evidence.cases import Case

__all__ = ["Verdict", "bound_s", "judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of the gate.

    Args:
        bound_s: the least time.
        beaten: whether the measurement is below it.
        cause: why it honestly may be; empty where nothing explains it.
    """

    bound_s: float
    beaten: bool
    cause: str = ""


def bound_s(case: Case, *, cached_bytes: float = 0) -> float:
    """Return the least time of a case's passes on whichever of its accelerators is fastest.

    Args:
        case: the case.
        cached_bytes: what may lie in the last-level cache when a pass begins, so that it need not be read again.
    """
    return min(_bound_s(case, hardware, cached_bytes) for hardware in case.variants)


def _bound_s(case: Case, hardware: HardwareProfile, cached_bytes: float) -> float:
    costs = [_less_cached(step.cost, cached_bytes) for step in case.passes]
    times = [(step.times, step_time(cost, hardware)) for step, cost in zip(case.passes, costs, strict=True)]
    if case.timing == "mixed":
        # all overlapped: prompts ride along with the steps of others, whose weights they share
        shared = sum(op.weight_bytes for op in case.passes[0].cost.stages[0]) if len(times) > 1 else 0
        memory = sum(count * time.memory_s for count, time in times) - shared / hardware.memory_bandwidth_bytes_per_s
        compute = sum(count * time.compute_s for count, time in times)
        return max(compute, memory, sum(count * time.link_s for count, time in times))
    return sum(count * (time.latency_s if case.timing == "one by one" else time.ideal_s) for count, time in times)


def _less_cached(cost: StepCost, cached_bytes: float) -> StepCost:
    """Return a pass without the bytes that each accelerator has in its cache already."""
    if not cached_bytes:
        return cost
    kinds = tuple(
        (ranks, tuple((*ops, _taken_off(ops, cached_bytes)) for ops in stages)) for ranks, stages in cost.rank_kinds
    )
    return replace(cost, rank_kinds=kinds)


def _taken_off(ops: Sequence[OpCost], cached_bytes: float) -> OpCost:
    taken_bytes = min(cached_bytes, sum(op.compulsory_bytes for op in ops))
    return OpCost(name="last-level cache", part="cache", unit=ops[0].unit, io_bytes=-taken_bytes)


def judge(case: Case) -> Verdict:
    """Return the bound of a case, whether it is beaten, and what explains it."""
    least_s = bound_s(case)
    if case.measured_s >= least_s:
        return Verdict(bound_s=least_s, beaten=False)
    return Verdict(bound_s=least_s, beaten=True, cause=_cause(case))


def _cause(case: Case) -> str:
    """Return the causes, in this order, that together bring the bound down to the measurement; empty if all do not."""
    causes: list[str] = []
    for words, changed in (
        ("its tokens may share experts: compared with the bound for the fewest", _concentrated),
        ("KV-cache format not stated: compared with the 8-bit bound", _narrow_cache),
        ("weight format not stated: compared with the 8-bit bound", _eight_bit_weights),
        ("weight format not stated: compared with the 4-bit bound", _four_bit_weights),
        ("multiplied in the narrower format of its weights: compared with that peak", _narrow),
    ):
        other = changed(case)
        if bound_s(other) < bound_s(case):
            case = other
            causes.append(words)
        if case.measured_s >= bound_s(case):
            return "; ".join(causes)
    cache_size = max(hardware.last_level_cache_bytes or 0 for hardware in case.variants)
    if case.measured_s >= bound_s(case, cached_bytes=cache_size):
        return "; ".join(
            [*causes, f"{bytes_text(cache_size)} of its reads may stay in the last-level cache between runs"]
        )
    return ""


def _concentrated(case: Case) -> Case:
    return case.with_routing("best")


def _narrow_cache(case: Case) -> Case:
    """Return the case with a cache of 8 bits, which engines offer, where the record leaves its format open."""
    return case.with_formats(cache="fp8") if case.record.kv is None else case


def _eight_bit_weights(case: Case) -> Case:
    return case.with_formats(weights="fp8", activations="fp8") if case.record.weights is None else case


def _four_bit_weights(case: Case) -> Case:
    return case.with_formats(weights="int4-g128") if case.record.weights is None else case


def _narrow(case: Case) -> Case:
    """Return the case multiplied in its weights' own format: in 8 bits where they have 4 without a unit for them."""
    if case.deployment is None:
        return replace(case, passes=case.narrow) if case.narrow else case
    formats = case.deployment.formats
    narrowest = min((formats.weights, *formats.parts.values()), key=lambda form: form.bytes_per_element)
    unit = _NARROW_UNITS.get(narrowest.unit)
    return case if unit is None else case.with_formats(activations=unit)


_NARROW_UNITS = {"fp4": "fp4", "fp8": "fp8", "int8": "int8", "int4": "int8"}
