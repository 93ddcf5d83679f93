"""``kvcalc crosscheck --engine``: an engine's own cache and decode steps, held against the prediction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.measure.bench import measured_probes
from kvcalc.measure.calibrate import calibration_of, ceilings, noise_notes
from kvcalc.measure.clock import Timing
from kvcalc.measure.crosscheck import whole_report
from kvcalc.measure.engines import llama_cpp, vllm
from kvcalc.measure.engines.start import hugging_face_config
from kvcalc.measure.probes import Plan, joined
from kvcalc.measure.scale import check_memory
from kvcalc.measure.steps import Step
from kvcalc.measure.verdicts import bound_checks, byte_checks, step_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.measure import CrosscheckReport, CrosscheckRow, LoopCheck
    from kvcalc.measure.crosscheck import Questions
    from kvcalc.measure.engines.start import Start
    from kvcalc.measure.library import Device
    from kvcalc.measure.probes import Probe

__all__ = ["engine_report"]

# How each engine is started, and the module that is its process.
_ENGINES: dict[str, tuple[Callable[..., Start], str]] = {
    "vllm": (vllm.start, "vllm_child"),
    "llama.cpp": (llama_cpp.start, "llama_cpp_child"),
}
# Whose kernels are those that a bench measures.
_ON_TORCH = ("vllm",)


@dataclass(slots=True, kw_only=True)
class _Runs:
    """Findings on the engine so far: for each model its start, its words, and whether its log agrees."""

    done: list[tuple[Start, Mapping[str, Any], bool]] = field(default_factory=list)
    checks: list[LoopCheck] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False


def engine_report(
    engine: str, device: Device, asked: Questions, *, progress: Callable[[str], None]
) -> CrosscheckReport:
    """Hold predictions against an engine with the models' shapes and random weights.

    The engine runs in a process of its own, between two benches where there are any.

    Args:
        engine: ``vllm`` or ``llama.cpp``.
        device: where it runs.
        asked: models, batches, contexts.
        progress: told what is done next.

    Raises:
        InputError: too little memory, or the engine does not start.
        UnsupportedError: a model of which no config is made.
        KeyboardInterrupt: before a step was measured.
    """
    last = max(asked.contexts) + asked.rounds
    for deployment in asked.deployments:
        hugging_face_config(deployment.model, dtype=deployment.formats.weights.name, positions=last)
        check_memory(
            deployment.model,
            deployment.formats,
            batch=max(asked.batches),
            context=last,
            free_bytes=device.free_bytes(),
            device=device.kind,
        )
    before, interrupted = _bench(device, asked, progress)
    if interrupted:
        raise KeyboardInterrupt
    runs = _Runs()
    after: tuple[Probe, ...] = ()
    try:
        _decode(runs, engine, device, asked, progress, tokens=last)
        if not runs.interrupted:
            after, runs.interrupted = _bench(device, asked, progress)
    except KeyboardInterrupt:
        runs.interrupted = True
    probes = joined(before, after)
    hardware = asked.hardware or ceilings(device, probes)
    calibration = asked.calibration
    if calibration is None and probes and engine in _ON_TORCH:
        calibration = calibration_of(device, hardware, probes)
    rows = [row for run in runs.done for row in _rows(run, hardware, calibration)]
    if not rows:
        raise KeyboardInterrupt
    checks = [*runs.checks, *byte_checks(rows), *bound_checks(rows)]
    return whole_report(
        device,
        rows,
        checks,
        engine=engine,
        engine_versions=runs.versions,
        deployments=[started.deployment for started, _, _ in runs.done],
        hardware=hardware,
        calibration=calibration,
        interrupted=runs.interrupted,
        notes=(*noise_notes(probes), *_load_note(device)),
    )


def _decode(
    runs: _Runs, engine: str, device: Device, asked: Questions, progress: Callable[[str], None], *, tokens: int
) -> None:
    """Run the engine on each model and note down what it found, until it is interrupted."""
    start, child = _ENGINES[engine]
    for deployment in asked.deployments:
        started = start(deployment, asked, device, tokens=tokens)
        progress(f"{deployment.model.name}: {engine} starts and decodes")
        results, log, runs.interrupted = _run(engine, child, started, asked, positions=tokens)
        runs.versions[engine] = results["version"]
        own = started.checks(results, log)
        runs.checks += own
        runs.done.append((started, results, all(check.passed for check in own)))
        if runs.interrupted:
            return


def _bench(device: Device, asked: Questions, progress: Callable[[str], None]) -> tuple[tuple[Probe, ...], bool]:
    """Return benchmarks, where no ceilings were given, and whether they were interrupted."""
    if asked.hardware is not None:
        return (), False
    plan = Plan.asked((deployment.formats.weights.name for deployment in asked.deployments), asked.rounds)
    probes, interrupted = measured_probes(device, plan, progress=progress)
    return tuple(probes), interrupted


def _run(
    engine: str, child: str, started: Start, asked: Questions, *, positions: int
) -> tuple[Mapping[str, Any], str, bool]:
    """Return the result of the engine's process, its log, and whether it was interrupted."""
    name = started.deployment.formats.weights.name
    config = hugging_face_config(started.deployment.model, dtype=name, positions=positions)
    settings = {
        **started.asked,
        "format": name,
        "dtype": config["torch_dtype"],
        "rounds": asked.rounds,
        "vocabulary": config["vocab_size"],
        "cells": [(batch, context) for context in asked.contexts for batch in asked.batches],
    }
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / "asked.json").write_text(json.dumps(settings), encoding="utf-8")
        code, interrupted = _child(child, folder)
        log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        result = folder / "found.json"
        if code and not interrupted:
            raise InputError(
                f"{engine} stopped with exit code {code}: {_last_words(log)}", hint="its own log says more"
            )
        if not result.exists():
            raise KeyboardInterrupt
        return json.loads(result.read_text(encoding="utf-8")), log, interrupted


def _child(module: str, folder: Path) -> tuple[int, bool]:
    command = [sys.executable, "-m", f"kvcalc.measure.engines.{module}", str(folder)]
    with (folder / "log.txt").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as child:  # noqa: S603
        try:
            return child.wait(), False
        except KeyboardInterrupt:
            child.terminate()
            return child.wait(), True


def _last_words(log: str) -> str:
    r"""Return the last line that is an error's own.

    >>> _last_words("INFO ready\nValueError: no room\n")
    'ValueError: no room'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it printed nothing"])[-1]


def _rows(
    run: tuple[Start, Mapping[str, Any], bool], hardware: HardwareProfile, calibration: Calibration | None
) -> list[CrosscheckRow]:
    """Return the engine's steps; one that does not tell the bytes of its cache is taken at its printed word."""
    started, results, printed = run
    rows = []
    for step in results["steps"]:
        measured = Step(
            deployment=started.deployment,
            layers=started.deployment.model.layers,
            batch=step["batch"],
            context=step["context"],
            kv_bytes=results.get("kv_bytes", started.kv_bytes if printed else 0),
            weight_bytes=results["weight_bytes"],
            copied_bytes=0,
            timing=Timing(samples_s=tuple(step["samples_s"])),
            experts=None,
        )
        rows.append(replace(step_row(measured, hardware, calibration), predicted_kv_bytes=started.kv_bytes))
    return rows


def _load_note(device: Device) -> tuple[str, ...]:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if device.kind != "cpu":
        return ()
    return (f"load average {load:.1f} on {cores} cores at the end; above {cores} other work slows the steps",)
