"""Verdicts on measured steps: each against its bytes, bound and estimate, and the growth with the context."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kvcalc.core.model import Mixture
from kvcalc.core.reports.measure import ContextGrowth, CrosscheckRow, LoopCheck, MeasuredLoop
from kvcalc.core.units import bytes_text
from kvcalc.core.workload import decode_step
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.estimate import estimate_time
from kvcalc.cost.linear import experts_touched
from kvcalc.cost.parameters import weight_bytes
from kvcalc.measure.library import RESIDENT_TIMES
from kvcalc.measure.scale import run_bytes
from kvcalc.plan.steps import timed_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.measure.loop import LoopRun
    from kvcalc.measure.steps import Step
    from kvcalc.plan.deployment import Deployment

__all__ = [
    "abs_errors",
    "bound_checks",
    "byte_checks",
    "cause",
    "graph_checks",
    "growth",
    "loop_row",
    "rows_along",
    "step_row",
    "variant_checks",
]

# Experts' results are added in any order; other kernels give the same bits.
_ORDER_ULPS = 4
# Fewer roundings on the way are other roundings, and each layer adds its own.
_VARIANT_ULPS = 8
_MANTISSA_BITS = {"bf16": 7, "fp16": 10, "fp32": 23}


def step_row(step: Step, hardware: HardwareProfile, calibration: Calibration | None) -> CrosscheckRow:
    """Return a measured step beside what is predicted of it."""
    deployment = replace(step.deployment, hardware=hardware)
    timed = timed_step(deployment, decode_step(batch=step.batch, context=step.context))
    estimate = None if calibration is None else estimate_time(timed.cost, hardware, calibration)
    each = cache_bytes(deployment.model, step.context, deployment.formats)
    moved = timed.cost.total("weight_bytes") + timed.cost.total("kv_read_bytes")
    cache = hardware.last_level_cache_bytes or 0
    timing, memory = step.timing, step.memory
    row = CrosscheckRow(
        model=deployment.model.name,
        layers=step.layers,
        format=deployment.formats.weights.name,
        batch=step.batch,
        context=step.context,
        predicted_kv_bytes=step.batch * (each.growing + each.state),
        allocated_kv_bytes=step.kv_bytes,
        allocator_kv_bytes=None if memory is None else memory.cache,
        predicted_weight_bytes=weight_bytes(deployment.model, deployment.formats),
        allocated_weight_bytes=step.weight_bytes,
        allocator_weight_bytes=None if memory is None else memory.weights,
        run_bytes=run_bytes(deployment.model, deployment.formats, batch=step.batch, context=step.context),
        peak_bytes=None if memory is None else memory.peak,
        bound_s=timed.time.ideal_s,
        serial_s=timed.time.serial_s,
        estimate_s=None if estimate is None else estimate.estimate_s,
        estimate_low_s=None if estimate is None else estimate.low_s,
        estimate_high_s=None if estimate is None else estimate.high_s,
        measured_s=timing.low_s,
        least_s=timing.least_s,
        median_s=timing.median_s,
        samples_s=timing.samples_s,
        back_to_back_s=step.back_to_back_s,
        in_graph=step.in_graph,
        replay_error=step.replay_error,
        variant_error=step.variant_error,
        kernels=step.kernels,
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
    """Whether caches and weights take the predicted bytes, exactly: of their tensors, and of the allocator's word."""
    checks = [
        _equal(rows, "cache: predicted bytes are allocated bytes", "predicted_kv_bytes", "allocated_kv_bytes"),
        _equal(
            rows, "weights: predicted bytes are allocated bytes", "predicted_weight_bytes", "allocated_weight_bytes"
        ),
    ]
    asked = [row for row in rows if row.allocator_kv_bytes is not None]
    if not asked:
        return checks
    beyond = [row for row in asked if (row.peak_bytes or 0) > (row.run_bytes or 0)]
    return [
        *checks,
        _equal(
            asked, "cache: predicted bytes are those asked of the allocator", "predicted_kv_bytes", "allocator_kv_bytes"
        ),
        _equal(
            asked,
            "weights: predicted bytes are those asked of the allocator",
            "predicted_weight_bytes",
            "allocator_weight_bytes",
        ),
        LoopCheck(
            name="memory: a step's peak is within what was asked for beforehand",
            passed=not beyond,
            detail=_detail(asked, beyond, "run_bytes", "peak_bytes"),
        ),
    ]


def _equal(rows: Sequence[CrosscheckRow], name: str, predicted: str, real: str) -> LoopCheck:
    unlike = [row for row in rows if getattr(row, predicted) != getattr(row, real)]
    return LoopCheck(name=name, passed=bool(rows) and not unlike, detail=_detail(rows, unlike, predicted, real))


def _detail(rows: Sequence[CrosscheckRow], unlike: Sequence[CrosscheckRow], predicted: str, real: str) -> str:
    steps = f"{len(rows) - len(unlike)} of {len(rows)} steps"
    if not unlike:
        return steps
    row = unlike[0]
    words = [f"{getattr(row, name):,} {name.partition('_')[0]}" for name in (predicted, real)]
    return f"{steps}; {row.model} in {row.format}: {', '.join(words)}"


def graph_checks(rows: Sequence[CrosscheckRow], loops: Sequence[MeasuredLoop] = ()) -> list[LoopCheck]:
    """Whether all that a GPU ran was replayed from graphs, and each replay computed what its kernels do one by one."""
    fell = [row for row in rows if not row.in_graph]
    unlike = [row for row in rows if row.replay_error is not None and row.replay_error > _rounding(row.format)]
    replayed = LoopCheck(
        name="graphs: every step was replayed from one",
        passed=bool(rows) and not fell and all(loop.in_graph for loop in loops),
        detail=f"{len(rows) - len(fell)} of {len(rows)} steps"
        + ("" if not fell else f"; {fell[0].model} in {fell[0].format} waits for the host"),
    )
    worst = max((row.replay_error for row in rows if row.replay_error is not None), default=0.0)
    same = LoopCheck(
        name="graphs: a replay is the step itself",
        passed=not unlike and all(loop.identical for loop in loops),
        detail=f"logits within {worst:.1e} of their largest, "
        f"{sum(loop.identical for loop in loops)} of {len(loops)} runs of tokens alike",
    )
    return [replayed, same]


def variant_checks(rows: Sequence[CrosscheckRow]) -> list[LoopCheck]:
    """Whether every variant's steps give the logits of the plain kernels, in the format that was measured."""
    errors = [(row, row.variant_error) for row in rows if row.variant_error is not None]
    if not errors:
        return []
    unlike = [row for row, error in errors if error > _VARIANT_ULPS * 2.0 ** -_MANTISSA_BITS[row.format]]
    detail = f"logits within {max(error for _, error in errors):.1e} of their largest"
    if unlike:
        detail += f"; {unlike[0].model} in {unlike[0].format} with {unlike[0].kernels} kernels"
    return [LoopCheck(name="kernels: every variant gives the plain step", passed=not unlike, detail=detail)]


def _rounding(name: str) -> float:
    """Return the share by which sums in another order may differ from the largest: some units in the last place."""
    return _ORDER_ULPS * 2.0 ** -_MANTISSA_BITS[name]


def loop_row(run: LoopRun, hardware: HardwareProfile) -> MeasuredLoop:
    """Tokens decoded in a row beside the bounds of their steps."""
    deployment = replace(run.deployment, hardware=hardware)
    steps = (decode_step(batch=run.batch, context=run.context + at) for at in range(run.tokens))
    bound = sum(timed_step(deployment, step).time.ideal_s for step in steps)
    seconds = run.timing.least_s
    return MeasuredLoop(
        model=deployment.model.name,
        format=deployment.formats.weights.name,
        kernels=run.kernels,
        batch=run.batch,
        context=run.context,
        tokens=run.tokens,
        in_graph=run.in_graph,
        identical=run.identical,
        bound_s=bound,
        measured_s=seconds,
        tokens_per_s=run.batch * run.tokens / seconds,
        ratio=seconds / bound,
    )


def bound_checks(rows: Sequence[CrosscheckRow], loops: Sequence[MeasuredLoop] = ()) -> list[LoopCheck]:
    """Whether no step, and no run of tokens, is faster than its bound without a cause."""
    beaten = [
        f"{row.model} in {row.format} at {row.batch} x {row.context:,}: {row.least_s / row.bound_s:.2f}"
        for row in rows
        if row.least_s < row.bound_s and not row.cause
    ]
    excused = {(row.model, row.format, row.batch) for row in rows if row.cause}
    beaten += [
        f"{loop.model} in {loop.format}, {loop.tokens} tokens at batch {loop.batch}: {loop.ratio:.2f}"
        for loop in loops
        if loop.ratio < 1 and (loop.model, loop.format, loop.batch) not in excused
    ]
    causes = sum(bool(row.cause) for row in rows)
    smallest = min((row.least_s / row.bound_s for row in rows if not row.cause), default=None)
    detail = f"{causes} faster with a cause" if causes else "none is faster"
    if smallest is not None:
        detail += f"; the nearest at {smallest:.2f} times the bound"
    name = "bound: no step is faster without a cause"
    return [LoopCheck(name=name, passed=bool(rows) and not beaten, detail=", ".join(beaten) or detail)]


def abs_errors(rows: Iterable[CrosscheckRow]) -> Mapping[str, list[float]]:
    """Return the errors of estimates, by format, the smallest first."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        if row.estimate_error is not None:
            errors.setdefault(row.format, []).append(abs(row.estimate_error))
    return {name: sorted(shares) for name, shares in errors.items()}


def rows_along(rows: Sequence[CrosscheckRow], *, apart: str, along: str) -> list[list[CrosscheckRow]]:
    """Return rows of one model, format, variant and ``apart``, in the order of ``along``, where there are several."""
    groups: dict[tuple[str, str, str, int], list[CrosscheckRow]] = {}
    for row in rows:
        groups.setdefault((row.model, row.format, row.kernels, getattr(row, apart)), []).append(row)
    return [sorted(group, key=lambda row: int(getattr(row, along))) for group in groups.values() if len(group) > 1]


def growth(rows: Sequence[CrosscheckRow]) -> list[ContextGrowth]:
    """Return the cost of a token of context, between each two contexts of a model, format and batch."""
    rows_of_growth = []
    for group in rows_along(rows, apart="batch", along="context"):
        for low, high in pairwise(group):
            tokens = high.context - low.context
            estimated = None
            if low.estimate_s is not None and high.estimate_s is not None:
                estimated = (high.estimate_s - low.estimate_s) / tokens
            rows_of_growth.append(
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
    return rows_of_growth
