"""``kvcalc crosscheck``: predictions held against a real decode loop on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kvcalc.core.model import Mixture
from kvcalc.core.reports.measure import BatchCrossing, ContextGrowth, CrosscheckReport, CrosscheckRow, LoopCheck
from kvcalc.core.units import bytes_text
from kvcalc.core.workload import decode_step
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.estimate import estimate_time
from kvcalc.cost.linear import experts_touched
from kvcalc.cost.parameters import weight_bytes
from kvcalc.measure.bench import measured_probes
from kvcalc.measure.calibrate import RESIDENT_TIMES, calibration_of, ceilings, drift, noise_notes, today
from kvcalc.measure.correctness import check_loop
from kvcalc.measure.machine import Plan, joined
from kvcalc.measure.scale import check_memory
from kvcalc.measure.steps import timed_steps
from kvcalc.plan.steps import timed_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.measure import MeasuredSpeculation
    from kvcalc.measure.library import Device
    from kvcalc.measure.machine import Probe
    from kvcalc.measure.steps import Step
    from kvcalc.plan.deployment import Deployment

__all__ = ["Questions", "crosscheck_report"]

# A step grows with its batch where the time of the largest is at least so large a share of proportional growth.
_GROWS = 0.75
_MOST_DRIFT = 0.15
_LEAST_ROUNDS = 3
_NINE_TENTHS = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is measured.

    Args:
        deployments: models in formats, cut to fit.
        batches: sequences of a step.
        contexts: tokens attended.
        rounds: repetitions of a step.
        hardware: ceilings; none for those that a bench reaches here.
        calibration: what estimates stand on; none for one that a bench fits before and after.
        check: whether the loop itself is checked first.
    """

    deployments: tuple[Deployment, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    rounds: int
    hardware: HardwareProfile | None = None
    calibration: Calibration | None = None
    check: bool = True


def crosscheck_report(
    device: Device,
    asked: Questions,
    *,
    progress: Callable[[str], None],
    speculation: Callable[[], MeasuredSpeculation] | None = None,
) -> CrosscheckReport:
    """Return how predictions stand against a real decode loop.

    Bench, steps, bench: the calibration never sees the steps it is tested on. What was measured before an interruption
    is kept.

    Args:
        device: where the loop runs.
        asked: models, batches, contexts.
        progress: told what is done next.
        speculation: measures speculative decoding, where it is wanted.

    Raises:
        InputError: too little memory.
        UnsupportedError: a layer that the loop does not build.
        KeyboardInterrupt: before a step was measured.
    """
    for deployment in asked.deployments:
        check_memory(
            deployment.model,
            deployment.formats,
            batch=max(asked.batches),
            context=max(asked.contexts),
            free_bytes=device.free_bytes(),
            device=device.kind,
        )
    checks: list[LoopCheck] = []
    if asked.check:
        for model in dict.fromkeys(deployment.model.name for deployment in asked.deployments):
            progress(f"{model}: cached decoding against full recomputation")
            first = next(found for found in asked.deployments if found.model.name == model)
            checks += check_loop(first.model, device)
    benched = asked.hardware is None or asked.calibration is None
    plan = Plan(
        formats=tuple(dict.fromkeys(found.formats.weights.name for found in asked.deployments)),
        stream_rounds=asked.rounds,
        rounds=max(_LEAST_ROUNDS, asked.rounds // 3),
    )
    before, interrupted = measured_probes(device, plan, progress=progress) if benched else ((), False)
    steps: list[Step] = []
    spoken = None
    after: Sequence[Probe] = ()
    try:
        for deployment in asked.deployments:
            for step in timed_steps(
                deployment,
                device,
                batches=asked.batches,
                contexts=asked.contexts,
                rounds=asked.rounds,
                progress=progress,
            ):
                steps.append(step)  # noqa: PERF402  what was measured is kept
        if speculation is not None:
            progress("speculative decoding")
            spoken = speculation()
        if benched:
            after, interrupted = measured_probes(device, plan, progress=progress)
    except KeyboardInterrupt:
        if not steps:
            raise
        interrupted = True
    probes = joined(before, after)
    hardware = asked.hardware or ceilings(device, probes)
    calibration = asked.calibration or (calibration_of(device, hardware, probes) if probes else None)
    rows = [_row(step, hardware, calibration) for step in steps]
    checks += _byte_checks(rows)
    checks += _bound_checks(rows)
    if spoken is not None:
        words = f"{spoken.target} with {spoken.draft}: greedy speculative decoding gives the tokens of plain decoding"
        checks.append(LoopCheck(name=words, passed=spoken.identical, detail=f"{spoken.tokens_per_pass:.2f} a pass"))
    errors = _errors(rows)
    return CrosscheckReport(
        device=device.kind,
        title=device.title,
        threads=device.threads,
        versions=device.versions,
        date=today(),
        gpu=hardware.name,
        ceilings=hardware,
        calibration=calibration,
        rows=tuple(rows),
        checks=tuple(checks),
        crossings=tuple(_crossings(rows)),
        growth=tuple(_growth(rows)),
        speculation=spoken,
        median_abs_error={name: found[len(found) // 2] for name, found in errors.items()},
        p90_abs_error={name: found[int(_NINE_TENTHS * (len(found) - 1) + 0.5)] for name, found in errors.items()},
        passed=all(check.passed for check in checks),
        interrupted=interrupted,
        notes=_notes(device, steps, before, after, probes, interrupted=interrupted),
    )


def _row(step: Step, hardware: HardwareProfile, calibration: Calibration | None) -> CrosscheckRow:
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
    return replace(row, cause=_cause(row, deployment, cache))


def _cause(row: CrosscheckRow, deployment: Deployment, cache_bytes_held: int) -> str:
    """Why a step may honestly be faster than its bound, where it is: part of it stayed in the cache, fewer experts."""
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


def _byte_checks(rows: Sequence[CrosscheckRow]) -> list[LoopCheck]:
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


def _bound_checks(rows: Sequence[CrosscheckRow]) -> list[LoopCheck]:
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


def _errors(rows: Iterable[CrosscheckRow]) -> Mapping[str, list[float]]:
    errors: dict[str, list[float]] = {}
    for row in rows:
        if row.estimate_error is not None:
            errors.setdefault(row.format, []).append(abs(row.estimate_error))
    return {name: sorted(found) for name, found in errors.items()}


def _sorted_by(rows: Sequence[CrosscheckRow], apart: str, along: str) -> list[list[CrosscheckRow]]:
    """Return rows of one model, format and ``apart``, in the order of ``along``, where there are several."""
    groups: dict[tuple[str, str, int], list[CrosscheckRow]] = {}
    for row in rows:
        groups.setdefault((row.model, row.format, getattr(row, apart)), []).append(row)
    return [sorted(found, key=lambda row: int(getattr(row, along))) for found in groups.values() if len(found) > 1]


def _crossings(rows: Sequence[CrosscheckRow]) -> list[BatchCrossing]:
    found = []
    for group in _sorted_by(rows, "context", "batch"):
        batches = [row.batch for row in group]
        found.append(
            BatchCrossing(
                model=group[0].model,
                format=group[0].format,
                context=group[0].context,
                bound_batch=_crossing(batches, [row.bound_s for row in group]),
                estimate_batch=_crossing(batches, [row.estimate_s for row in group]),
                measured_batch=_crossing(batches, [row.measured_s for row in group]),
                largest_batch=batches[-1],
            )
        )
    return found


def _crossing(batches: Sequence[int], seconds: Sequence[float | None]) -> float | None:
    """Where the line from the origin to the largest batch meets the time of the smallest.

    None while the two largest batches do not yet take times in proportion.

    >>> _crossing([1, 4, 16, 64], [1.0, 1.0, 2.0, 8.0]), _crossing([1, 2, 4], [1.0, 1.0, 1.1])
    (8.0, None)
    """
    known = [value for value in seconds if value is not None]
    if len(known) != len(batches):
        return None
    growth = known[-1] / known[-2] / (batches[-1] / batches[-2])
    return known[0] * batches[-1] / known[-1] if growth >= _GROWS else None


def _growth(rows: Sequence[CrosscheckRow]) -> list[ContextGrowth]:
    found = []
    for group in _sorted_by(rows, "batch", "context"):
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


def _notes(
    device: Device,
    steps: Sequence[Step],
    before: Sequence[Probe],
    after: Sequence[Probe],
    probes: Sequence[Probe],
    *,
    interrupted: bool,
) -> tuple[str, ...]:
    notes = list(noise_notes(probes))
    moved = drift(before, after)
    if moved > _MOST_DRIFT:
        notes.append(f"the machine drifted by {moved:.0%} between the bench before and the one after: measure again")
    copied = {step.deployment.model.name: step.copied_bytes for step in steps if step.copied_bytes}
    notes += [
        f"{name}: the tied table is held a second time, prepacked for the head: {bytes_text(size)} beside the weights"
        for name, size in copied.items()
    ]
    cut = {step.deployment.model.name: step.layers for step in steps}
    notes += [f"{name}: {layers} layers were built" for name, layers in cut.items()]
    if device.kind == "cuda" and not all(step.in_graph for step in steps):
        notes.append("some steps could not be recorded as a graph: their times include the host's")
    if interrupted:
        notes.append("interrupted: the rows that were done")
    return tuple(notes)
