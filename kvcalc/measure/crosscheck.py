"""``kvcalc crosscheck``: predictions held against a real decode loop on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvcalc.core.reports.measure import CrosscheckReport, LoopCheck
from kvcalc.core.units import bytes_text
from kvcalc.measure.bench import measured_probes
from kvcalc.measure.calibrate import calibration_of, ceilings, drift, noise_notes, today
from kvcalc.measure.correctness import check_loop
from kvcalc.measure.crossover import crossings
from kvcalc.measure.machine import Plan, joined, reading
from kvcalc.measure.scale import check_memory
from kvcalc.measure.steps import Step, timed_steps
from kvcalc.measure.verdicts import abs_errors, bound_checks, byte_checks, growth, step_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.measure import CrosscheckRow, MeasuredSpeculation
    from kvcalc.measure.library import Device
    from kvcalc.measure.machine import Probe
    from kvcalc.plan.deployment import Deployment

__all__ = ["Questions", "crosscheck_report", "whole_report"]

_MOST_DRIFT = 0.15
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
        calibration: what estimates stand on; none for the one that the bench fits, if there is a bench.
        check: whether the loop itself is checked first.
    """

    deployments: tuple[Deployment, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    rounds: int
    hardware: HardwareProfile | None = None
    calibration: Calibration | None = None
    check: bool = True


@dataclass(slots=True, kw_only=True)
class _Measured:
    """What was measured so far."""

    before: Sequence[Probe] = ()
    after: Sequence[Probe] = ()
    steps: list[Step] = field(default_factory=list)
    beside: list[Probe] = field(default_factory=list)
    speculation: MeasuredSpeculation | None = None
    interrupted: bool = False


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
    checks = _loop_checks(device, asked, progress) if asked.check else []
    found = _measured(device, asked, progress, speculation)
    probes = joined(found.before, found.after)
    hardware = asked.hardware or ceilings(device, [*probes, *found.beside])
    calibration = asked.calibration or (calibration_of(device, hardware, probes) if probes else None)
    rows = [step_row(step, hardware, calibration) for step in found.steps]
    spoken = found.speculation
    checks += [*byte_checks(rows), *bound_checks(rows), *(_spoken_check(spoken) if spoken is not None else ())]
    return whole_report(
        device,
        rows,
        checks,
        deployments=asked.deployments,
        hardware=hardware,
        calibration=calibration,
        speculation=spoken,
        interrupted=found.interrupted,
        notes=_notes(device, found, probes),
    )


def whole_report(
    device: Device,
    rows: Sequence[CrosscheckRow],
    checks: Sequence[LoopCheck],
    *,
    deployments: Sequence[Deployment],
    hardware: HardwareProfile,
    calibration: Calibration | None,
    notes: tuple[str, ...],
    engine: str = "",
    engine_versions: Mapping[str, str] | None = None,
    speculation: MeasuredSpeculation | None = None,
    interrupted: bool = False,
) -> CrosscheckReport:
    """Return the report on measured steps: with what they say together, and where they were measured."""
    errors = abs_errors(rows)
    return CrosscheckReport(
        engine=engine,
        device=device.kind,
        title=device.title,
        threads=device.threads,
        versions={**device.versions, **(engine_versions or {})},
        date=today(),
        gpu=hardware.name,
        ceilings=hardware,
        calibration=calibration,
        rows=tuple(rows),
        checks=tuple(checks),
        crossings=tuple(crossings(rows, [replace(each, hardware=hardware) for each in deployments])),
        growth=tuple(growth(rows)),
        speculation=speculation,
        median_abs_error={name: off[len(off) // 2] for name, off in errors.items()},
        p90_abs_error={name: off[int(_NINE_TENTHS * (len(off) - 1) + 0.5)] for name, off in errors.items()},
        passed=all(check.passed for check in checks),
        interrupted=interrupted,
        notes=notes,
    )


def _loop_checks(device: Device, asked: Questions, progress: Callable[[str], None]) -> list[LoopCheck]:
    """Check each model once, whatever the formats it is measured in."""
    models = {deployment.model.name: deployment.model for deployment in asked.deployments}
    checks = []
    for name, model in models.items():
        progress(f"{name}: cached decoding against full recomputation")
        checks += check_loop(model, device)
    return checks


def _spoken_check(spoken: MeasuredSpeculation) -> list[LoopCheck]:
    words = (
        f"{spoken.target} with {spoken.draft}: greedy speculative decoding gives the tokens of plain decoding, in fp32"
    )
    return [LoopCheck(name=words, passed=spoken.identical, detail=f"{spoken.tokens_per_pass:.2f} tokens a pass")]


def _measured(
    device: Device,
    asked: Questions,
    progress: Callable[[str], None],
    speculation: Callable[[], MeasuredSpeculation] | None,
) -> _Measured:
    """Bench, steps, bench; what was done before an interruption."""
    benched = asked.hardware is None
    plan = Plan.asked((found.formats.weights.name for found in asked.deployments), asked.rounds)
    found = _Measured()
    if benched:
        found.before, found.interrupted = measured_probes(device, plan, progress=progress)
    if found.interrupted:
        raise KeyboardInterrupt
    try:
        for deployment in asked.deployments:
            for timed in timed_steps(
                deployment,
                device,
                batches=asked.batches,
                contexts=asked.contexts,
                rounds=asked.rounds,
                progress=progress,
                beside=(reading(device),) if asked.hardware is None else (),
            ):
                if isinstance(timed, Step):
                    found.steps.append(timed)
                else:
                    found.beside.append(timed)
        if speculation is not None:
            progress("speculative decoding")
            found.speculation = speculation()
        if benched:
            found.after, found.interrupted = measured_probes(device, plan, progress=progress)
    except KeyboardInterrupt:
        if not found.steps:
            raise
        found.interrupted = True
    return found


def _notes(device: Device, found: _Measured, probes: Sequence[Probe]) -> tuple[str, ...]:
    notes = list(noise_notes(probes))
    moved = drift(found.before, found.after)
    if moved > _MOST_DRIFT:
        notes.append(f"the machine drifted by {moved:.0%} between the bench before and the one after: measure again")
    copied = {step.deployment.model.name: step.copied_bytes for step in found.steps if step.copied_bytes}
    notes += [
        f"{name}: the tied table is held a second time, prepacked for the head: {bytes_text(size)} beside the weights"
        for name, size in copied.items()
    ]
    built = {step.deployment.model.name: step.layers for step in found.steps}
    notes += [f"{name}: {layers} layers were built" for name, layers in built.items()]
    if device.kind == "cuda" and not all(step.in_graph for step in found.steps):
        notes.append("some steps could not be recorded as a graph: their times include the host's")
    if found.interrupted:
        notes.append("interrupted: the rows that were done")
    return tuple(notes)
