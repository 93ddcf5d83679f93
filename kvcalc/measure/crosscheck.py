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
from kvcalc.measure.library import check_format
from kvcalc.measure.loop import LoopRun
from kvcalc.measure.machine import reading
from kvcalc.measure.probes import Plan, joined
from kvcalc.measure.scale import check_memory
from kvcalc.measure.steps import Step, longest, timed_steps
from kvcalc.measure.verdicts import (
    abs_errors,
    bound_checks,
    byte_checks,
    graph_checks,
    growth,
    loop_row,
    step_row,
    variant_checks,
)
from kvcalc.measure.workspaces import taken_workspaces, workspace_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.measure import CrosscheckRow, MeasuredLoop, MeasuredSpeculation
    from kvcalc.measure.library import Device
    from kvcalc.measure.probes import Probe
    from kvcalc.plan.deployment import Deployment

__all__ = ["Questions", "crosscheck_report", "whole_report"]

_MAX_DRIFT = 0.15
_NINE_TENTHS = 0.9
# A GPU's kernels are started on one stream and recorded on another.
_STREAMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Settings that are measured.

    Args:
        deployments: models in formats, cut to fit.
        batches: sequences of a step.
        contexts: tokens attended.
        rounds: repetitions of a step.
        hardware: ceilings; none for those that a bench reaches here.
        calibration: what estimates stand on; none for the one that the bench fits, if there is a bench.
        check: whether the loop itself is checked first.
        kernels: variants of the loop's kernels, each measured.
        loops: numbers of tokens that are decoded in a row, beside the single step.
    """

    deployments: tuple[Deployment, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    rounds: int
    hardware: HardwareProfile | None = None
    calibration: Calibration | None = None
    check: bool = True
    kernels: tuple[str, ...] = ("plain",)
    loops: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Measured:
    """Measurements made so far."""

    before: Sequence[Probe] = ()
    after: Sequence[Probe] = ()
    steps: list[Step] = field(default_factory=list)
    beside: list[Probe] = field(default_factory=list)
    loops: list[LoopRun] = field(default_factory=list)
    speculation: MeasuredSpeculation | None = None
    interrupted: bool = False


def crosscheck_report(
    device: Device,
    asked: Questions,
    *,
    progress: Callable[[str], None],
    speculation: Callable[[], MeasuredSpeculation] | None = None,
    measured: Callable[[CrosscheckRow | MeasuredLoop], None] = lambda _: None,
) -> CrosscheckReport:
    """Hold predictions against a real decode loop.

    Bench, steps, bench: the calibration never sees the steps it is tested on. What was measured before an interruption
    is kept.

    Args:
        device: where the loop runs.
        asked: models, batches, contexts.
        progress: told what is done next.
        speculation: measures speculative decoding, where it is wanted.
        measured: given each row as it is measured, where ceilings were given.

    Raises:
        InputError: too little memory.
        UnsupportedError: a layer that the loop does not build.
        KeyboardInterrupt: before a step was measured.
    """
    workspaces = taken_workspaces(device)
    for deployment in asked.deployments:
        check_format(deployment.formats.weights.name, device)
        check_memory(
            deployment.model,
            deployment.formats,
            batch=max(asked.batches),
            context=longest(asked.contexts, asked.loops),
            free_bytes=device.free_bytes(),
            device=device.kind,
        )
    checks = _loop_checks(device, asked, progress) if asked.check else []
    outcome = _measured(device, asked, progress, speculation, measured)
    probes = joined(outcome.before, outcome.after)
    hardware = asked.hardware or ceilings(device, [*probes, *outcome.beside])
    calibration = asked.calibration or (calibration_of(device, hardware, probes) if probes else None)
    rows = [step_row(step, hardware, calibration) for step in outcome.steps]
    loops = [loop_row(run, hardware) for run in outcome.loops]
    speculated = outcome.speculation
    on_gpu = device.kind == "cuda"
    checks += [
        *byte_checks(rows),
        *bound_checks(rows, loops),
        *variant_checks(rows),
        *(graph_checks(rows, loops) if on_gpu else ()),
        *(_speculation_checks(speculated, on_gpu=on_gpu) if speculated is not None else ()),
    ]
    return whole_report(
        device,
        rows,
        checks,
        deployments=asked.deployments,
        hardware=hardware,
        calibration=calibration,
        speculation=speculated,
        loops=loops,
        interrupted=outcome.interrupted,
        notes=(*_notes(outcome, probes), *_workspace_note(device, workspaces)),
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
    loops: Sequence[MeasuredLoop] = (),
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
        loops=tuple(loops),
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
        checks += check_loop(model, device, kernels=asked.kernels)
    return checks


def _speculation_checks(measured: MeasuredSpeculation, *, on_gpu: bool) -> list[LoopCheck]:
    words = (
        f"{measured.target} with {measured.draft}: greedy speculative decoding gives the tokens of plain decoding, "
        "in fp32"
    )
    checks = [LoopCheck(name=words, passed=measured.identical, detail=f"{measured.tokens_per_pass:.2f} tokens a pass")]
    if on_gpu:
        name = "graphs: every pass of speculative decoding was replayed from one"
        checks.append(LoopCheck(name=name, passed=measured.in_graph, detail="with one read of the host a cycle"))
    return checks


def _measured(
    device: Device,
    asked: Questions,
    progress: Callable[[str], None],
    speculation: Callable[[], MeasuredSpeculation] | None,
    measured: Callable[[CrosscheckRow | MeasuredLoop], None],
) -> _Measured:
    """Bench, steps, bench; what was done before an interruption."""
    benched = asked.hardware is None
    plan = Plan.asked((deployment.formats.weights.name for deployment in asked.deployments), asked.rounds)
    outcome = _Measured()
    if benched:
        outcome.before, outcome.interrupted = measured_probes(device, plan, progress=progress)
    if outcome.interrupted:
        raise KeyboardInterrupt
    try:
        for deployment in asked.deployments:
            _time_steps(outcome, deployment, device, asked, progress, measured)
        if speculation is not None:
            progress("speculative decoding")
            outcome.speculation = speculation()
        if benched:
            outcome.after, outcome.interrupted = measured_probes(device, plan, progress=progress)
    except KeyboardInterrupt:
        if not outcome.steps:
            raise
        outcome.interrupted = True
    return outcome


def _time_steps(
    outcome: _Measured,
    deployment: Deployment,
    device: Device,
    asked: Questions,
    progress: Callable[[str], None],
    measured: Callable[[CrosscheckRow | MeasuredLoop], None],
) -> None:
    """Note down what is timed of one model, as it is done, and pass it on where its bound is known."""
    for timed in timed_steps(
        deployment,
        device,
        batches=asked.batches,
        contexts=asked.contexts,
        rounds=asked.rounds,
        progress=progress,
        beside=(reading(device),) if asked.hardware is None else (),
        kernels=asked.kernels,
        loops=asked.loops,
    ):
        if isinstance(timed, Step):
            outcome.steps.append(timed)
            if asked.hardware is not None:
                measured(step_row(timed, asked.hardware, asked.calibration))
        elif isinstance(timed, LoopRun):
            outcome.loops.append(timed)
            if asked.hardware is not None:
                measured(loop_row(timed, asked.hardware))
        else:
            outcome.beside.append(timed)


def _workspace_note(device: Device, taken: int | None) -> tuple[str, ...]:
    if not taken:  # on a CPU; or taken by an earlier measurement of this process
        return ()
    rule = bytes_text(_STREAMS * workspace_bytes(device.architecture))
    return (f"cuBLAS holds {bytes_text(taken)} as its workspaces, {rule} by torch's rule: in no step's peak",)


def _notes(outcome: _Measured, probes: Sequence[Probe]) -> tuple[str, ...]:
    notes = list(noise_notes(probes))
    moved = drift(outcome.before, outcome.after)
    if moved > _MAX_DRIFT:
        notes.append(f"the machine drifted by {moved:.0%} between the bench before and the one after: measure again")
    copied = {step.deployment.model.name: step.copied_bytes for step in outcome.steps if step.copied_bytes}
    notes += [
        f"{name}: the tied table is held a second time, prepacked for the head: {bytes_text(size)} beside the weights"
        for name, size in copied.items()
    ]
    built = {step.deployment.model.name: step.layers for step in outcome.steps}
    notes += [f"{name}: {layers} layers were built" for name, layers in built.items()]
    if outcome.interrupted:
        notes.append("interrupted: the rows that were done")
    return tuple(notes)
