"""What measured steps say: each against its bytes, bound and estimate, and how steps grow with the context."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kvcalc.core.model import Mixture
from kvcalc.core.reports.measure import ContextGrowth, CrosscheckRow, LoopCheck
from kvcalc.core.units import bytes_text
from kvcalc.core.workload import decode_step
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.estimate import estimate_time
from kvcalc.cost.linear import experts_touched
from kvcalc.cost.parameters import weight_bytes
from kvcalc.measure.library import RESIDENT_TIMES
from kvcalc.plan.steps import timed_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.measure.steps import Step
    from kvcalc.plan.deployment import Deployment

__all__ = ["abs_errors", "bound_checks", "byte_checks", "cause", "growth", "rows_along", "step_row"]


def step_row(step: Step, hardware: HardwareProfile, calibration: Calibration | None) -> CrosscheckRow:
    """Return a measured step beside what is predicted of it."""
    deployment = replace(step.deployment, hardware=hardware)
    timed = timed_step(deployment, decode_step(batch=step.batch, context=step.context))
    estimate = None if calibration is None else estimate_time(timed.cost, hardware, calibration)
    held = cache_bytes(deployment.model, step.context, deployment.formats)
    moved = timed.cost.total("weight_bytes") + timed.cost.total("kv_read_bytes")
    cache = hardware.last_level_cache_bytes or 0
    timing = step.timing
    row = CrosscheckRow(
        model=deployment.model.name,
        layers=step.layers,
        format=deployment.formats.weights.name,
        batch=step.batch,
        context=step.context,
        predicted_kv_bytes=step.batch * (held.growing + held.state),
        allocated_kv_bytes=step.kv_bytes,
        allocator_kv_bytes=step.allocator_bytes,
        predicted_weight_bytes=weight_bytes(deployment.model, deployment.formats),
        allocated_weight_bytes=step.weight_bytes,
        bound_s=timed.time.ideal_s,
        serial_s=timed.time.serial_s,
        estimate_s=None if estimate is None else estimate.estimate_s,
        estimate_low_s=None if estimate is None else estimate.low_s,
        estimate_high_s=None if estimate is None else estimate.high_s,
        measured_s=timing.low_s,
        least_s=timing.least_s,
        median_s=timing.median_s,
        samples_s=timing.samples_s,
        ratio=timing.low_s / timed.time.ideal_s,
        serial_ratio=timing.low_s / timed.time.serial_s,
        estimate_error=None if estimate is None else estimate.estimate_s / timing.low_s - 1,
        touched_experts=step.experts,
        cache_resident=moved < RESIDENT_TIMES * cache,
        cause="",
    )
    return replace(row, cause=cause(row, deployment, cache))


def cause(row: CrosscheckRow, deployment: Deployment, cache_bytes_held: int) -> str:
    """Return why a step may honestly be faster than its bound, where it is: a cache holds part, or fewer experts."""
    if row.least_s >= row.bound_s:
        return ""
    if row.cache_resident:
        return (
            f"cache-resident: it moves less than {RESIDENT_TIMES} x {bytes_text(cache_bytes_held)} of last-level cache"
        )
    expected = sum(
        experts_touched(
            experts=block.mlp.experts,
            chosen=block.mlp.experts_per_token,
            zero_experts=block.mlp.zero_experts,
            tokens=row.batch,
            routing="expected",
        )
        for block in deployment.model.blocks
        if isinstance(block.mlp, Mixture)
    )
    if row.touched_experts is not None and row.touched_experts < expected:
        return f"its tokens used {row.touched_experts} experts, fewer than the {expected:.1f} expected"
    return ""


def byte_checks(rows: Sequence[CrosscheckRow]) -> list[LoopCheck]:
    """Return whether caches and weights take the predicted bytes, exactly."""
    caches = [row for row in rows if row.predicted_kv_bytes != row.allocated_kv_bytes]
    weights = [row for row in rows if row.predicted_weight_bytes != row.allocated_weight_bytes]
    return [
        LoopCheck(
            name="cache: predicted bytes are allocated bytes",
            passed=bool(rows) and not caches,
            detail=f"{len(rows) - len(caches)} of {len(rows)} steps" + _first(caches, "kv"),
        ),
        LoopCheck(
            name="weights: predicted bytes are allocated bytes",
            passed=bool(rows) and not weights,
            detail=f"{len(rows) - len(weights)} of {len(rows)} steps" + _first(weights, "weight"),
        ),
    ]


def _first(rows: Sequence[CrosscheckRow], what: str) -> str:
    if not rows:
        return ""
    predicted, allocated = (getattr(rows[0], f"{side}_{what}_bytes") for side in ("predicted", "allocated"))
    return f"; {rows[0].model} in {rows[0].format}: {predicted:,} predicted, {allocated:,} allocated"


def bound_checks(rows: Sequence[CrosscheckRow]) -> list[LoopCheck]:
    """Return whether no step is faster than its bound without a cause."""
    beaten = [row for row in rows if row.least_s < row.bound_s and not row.cause]
    excused = [row for row in rows if row.cause]
    least = min((row.least_s / row.bound_s for row in rows if not row.cause), default=None)
    detail = f"{len(excused)} faster with a cause" if excused else "none is faster"
    if least is not None:
        detail += f"; the nearest at {least:.2f} times the bound"
    if beaten:
        detail = ", ".join(
            f"{row.model} in {row.format} at {row.batch} x {row.context:,}: {row.least_s / row.bound_s:.2f}"
            for row in beaten
        )
    return [LoopCheck(name="bound: no step is faster without a cause", passed=bool(rows) and not beaten, detail=detail)]


def abs_errors(rows: Iterable[CrosscheckRow]) -> Mapping[str, list[float]]:
    """Return how far estimates are off, by format, the smallest first."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        if row.estimate_error is not None:
            errors.setdefault(row.format, []).append(abs(row.estimate_error))
    return {name: sorted(found) for name, found in errors.items()}


def rows_along(rows: Sequence[CrosscheckRow], *, apart: str, along: str) -> list[list[CrosscheckRow]]:
    """Return rows of one model, format and ``apart``, in the order of ``along``, where there are several."""
    groups: dict[tuple[str, str, int], list[CrosscheckRow]] = {}
    for row in rows:
        groups.setdefault((row.model, row.format, getattr(row, apart)), []).append(row)
    return [sorted(group, key=lambda row: int(getattr(row, along))) for group in groups.values() if len(group) > 1]


def growth(rows: Sequence[CrosscheckRow]) -> list[ContextGrowth]:
    """Return what a token of context adds, between each two contexts of a model, format and batch."""
    found = []
    for group in rows_along(rows, apart="batch", along="context"):
        for low, high in pairwise(group):
            tokens = high.context - low.context
            estimated = None
            if low.estimate_s is not None and high.estimate_s is not None:
                estimated = (high.estimate_s - low.estimate_s) / tokens
            found.append(
                ContextGrowth(
                    model=low.model,
                    format=low.format,
                    batch=low.batch,
                    from_context=low.context,
                    to_context=high.context,
                    bound_s_per_token=(high.bound_s - low.bound_s) / tokens,
                    estimate_s_per_token=estimated,
                    measured_s_per_token=(high.measured_s - low.measured_s) / tokens,
                )
            )
    return found
