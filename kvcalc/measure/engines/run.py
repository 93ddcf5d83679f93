"""``kvcalc crosscheck --engine vllm``: the engine's own cache and decode steps, held against the prediction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.reports.measure import LoopCheck
from kvcalc.core.units import ceil_div
from kvcalc.engines.logs import read_log
from kvcalc.engines.vllm import VllmOptions, capacity, layout
from kvcalc.measure.bench import measured_probes
from kvcalc.measure.calibrate import calibration_of, ceilings, noise_notes
from kvcalc.measure.clock import Timing
from kvcalc.measure.crosscheck import whole_report
from kvcalc.measure.engines.made import hugging_face_config
from kvcalc.measure.machine import Plan
from kvcalc.measure.scale import check_memory
from kvcalc.measure.steps import Step
from kvcalc.measure.verdicts import bound_checks, byte_checks, step_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.measure import CrosscheckReport, CrosscheckRow
    from kvcalc.engines.vllm import Capacity, Layout
    from kvcalc.measure.crosscheck import Questions
    from kvcalc.measure.library import Device
    from kvcalc.measure.machine import Probe
    from kvcalc.plan.deployment import Deployment

__all__ = ["Prediction", "engine_report", "predicted", "printed_checks"]

_BATCHED_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the engine should make of the memory that its cache is given.

    Args:
        options: what it is started with.
        kv_memory_bytes: the memory, half a block more than whole blocks.
        layout: how it is cut into blocks.
        capacity: what they hold.
    """

    options: VllmOptions
    kv_memory_bytes: int
    layout: Layout
    capacity: Capacity

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole blocks, which the engine allocates."""
        return self.capacity.num_blocks * self.layout.bytes_per_block


def predicted(deployment: Deployment, *, batch: int, tokens: int, device: str) -> Prediction:
    """Return what vLLM should make of a cache for so many sequences and half a block.

    Args:
        deployment: model and formats.
        batch: sequences.
        tokens: of each, at the end.
        device: ``cpu`` or ``cuda``.
    """
    options = VllmOptions(
        max_model_len=tokens,
        max_num_batched_tokens=max(_BATCHED_TOKENS, batch),
        max_in_flight_batches=1,
        platform="cpu" if device == "cpu" else "gpu",
    )
    placed = layout(deployment.model, deployment.formats, options)
    memory = (1 + batch * placed.needed_blocks) * placed.bytes_per_block + placed.bytes_per_block // 2
    return Prediction(
        options=options, kv_memory_bytes=memory, layout=placed, capacity=capacity(placed, kv_memory_bytes=memory)
    )


def engine_report(device: Device, asked: Questions, *, progress: Callable[[str], None]) -> CrosscheckReport:
    """Return how predictions stand against vLLM with the models' shapes and dummy weights.

    The engine runs in a process of its own, after the bench where there is one.

    Args:
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
    probes = _bench(device, asked, progress)
    hardware = asked.hardware or ceilings(device, probes)
    calibration = asked.calibration or (calibration_of(device, hardware, probes) if probes else None)
    rows: list[CrosscheckRow] = []
    checks: list[LoopCheck] = []
    versions: dict[str, str] = {}
    interrupted = False
    for deployment in asked.deployments:
        prediction = predicted(deployment, batch=max(asked.batches), tokens=last, device=device.kind)
        progress(f"{deployment.model.name}: vLLM starts, compiles and decodes")
        found, log, interrupted = _run(deployment, prediction, asked)
        versions["vllm"] = found["version"]
        checks += printed_checks(deployment.model.name, prediction, found, log)
        rows += _rows(deployment, prediction, found, hardware, calibration)
        if interrupted:
            break
    if not rows:
        raise KeyboardInterrupt
    checks += [*byte_checks(rows), *bound_checks(rows)]
    return whole_report(
        device,
        rows,
        checks,
        engine="vllm",
        engine_versions=versions,
        hardware=hardware,
        calibration=calibration,
        interrupted=interrupted,
        notes=(*noise_notes(probes), *_load_note(device)),
    )


def _bench(device: Device, asked: Questions, progress: Callable[[str], None]) -> tuple[Probe, ...]:
    if asked.hardware is not None:
        return ()
    formats = tuple(dict.fromkeys(found.formats.weights.name for found in asked.deployments))
    plan = Plan(formats=formats, stream_rounds=asked.rounds, rounds=ceil_div(asked.rounds, 3))
    probes, interrupted = measured_probes(device, plan, progress=progress)
    if interrupted:
        raise KeyboardInterrupt
    return tuple(probes)


def _run(deployment: Deployment, prediction: Prediction, asked: Questions) -> tuple[Mapping[str, Any], str, bool]:
    """Return what the engine's process found, its log, and whether it was interrupted."""
    model, options = deployment.model, prediction.options
    config = hugging_face_config(model, dtype=deployment.formats.weights.name, positions=options.max_model_len)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / "asked.json").write_text(
            json.dumps(
                {
                    "dtype": config["torch_dtype"],
                    "max_model_len": options.max_model_len,
                    "max_num_seqs": max(asked.batches),
                    "max_num_batched_tokens": options.max_num_batched_tokens,
                    "kv_memory_bytes": prediction.kv_memory_bytes,
                    "rounds": asked.rounds,
                    "vocabulary": config["vocab_size"],
                    "cells": [(batch, context) for context in asked.contexts for batch in asked.batches],
                }
            ),
            encoding="utf-8",
        )
        code, interrupted = _child(folder)
        log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        result = folder / "found.json"
        if code and not interrupted:
            raise InputError(f"vLLM stopped with exit code {code}: {_last_words(log)}", hint="its own log says more")
        if not result.exists():
            raise KeyboardInterrupt
        return json.loads(result.read_text(encoding="utf-8")), log, interrupted


def _child(folder: Path) -> tuple[int, bool]:
    command = [sys.executable, "-m", "kvcalc.measure.engines.vllm_child", str(folder)]
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


def printed_checks(name: str, prediction: Prediction, found: Mapping[str, Any], log: str) -> list[LoopCheck]:
    """Return whether the engine's blocks and the numbers of its log are the predicted ones.

    Args:
        name: the model.
        prediction: what was computed from the memory given.
        found: what the engine's process told.
        log: what it printed.
    """
    start_ups = [start_up for start_up in read_log(log) if start_up.engine == "vllm"]
    shown = {
        quantity: number.value
        for start_up in start_ups[-1:]
        for quantity in ("kv_cache_tokens", "max_concurrency")
        if (number := start_up.first(quantity)) is not None
    }
    placed, held = prediction.layout, prediction.capacity
    pairs = [
        ("tokens of a block", placed.block_size, found["block_size"]),
        ("blocks", held.num_blocks, found["num_blocks"]),
        ("tokens printed as its cache", held.kv_tokens, _whole(shown.get("kv_cache_tokens"))),
        ("requests at once printed", round(held.max_concurrency, 2), shown.get("max_concurrency")),
    ]
    return [
        LoopCheck(
            name=f"{name} in vLLM: {what}",
            passed=computed == real,
            detail=f"{computed:,} predicted, " + ("none found" if real is None else f"{real:,} found"),
        )
        for what, computed, real in pairs
    ]


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _rows(
    deployment: Deployment,
    prediction: Prediction,
    found: Mapping[str, Any],
    hardware: HardwareProfile,
    calibration: Calibration | None,
) -> list[CrosscheckRow]:
    rows = []
    for step in found["steps"]:
        measured = Step(
            deployment=deployment,
            layers=deployment.model.layers,
            batch=step["batch"],
            context=step["context"],
            kv_bytes=found["kv_bytes"],
            allocator_bytes=None,
            weight_bytes=found["weight_bytes"],
            copied_bytes=0,
            timing=Timing(samples_s=tuple(step["samples_s"])),
            experts=None,
            in_graph=False,
        )
        rows.append(replace(step_row(measured, hardware, calibration), predicted_kv_bytes=prediction.kv_bytes))
    return rows


def _load_note(device: Device) -> tuple[str, ...]:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if device.kind != "cpu":
        return ()
    return (f"load average {load:.1f} on {cores} cores at the end; above {cores} other work slows the steps",)
