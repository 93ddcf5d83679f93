"""``kvcalc crosscheck``."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from kvcalc.cli.measuring import Ceilings, Device, Rounds, WriteCalibration, WriteGpu
from kvcalc.cli.options import Batches, Calibration, Json, Output, Set, takes_charts

Engine = Annotated[
    str | None, Option("--engine", help="Run this engine in place of the loop: vllm or llama.cpp, where installed.")
]
Models = Annotated[str, Option("--model", "-m", help="Models: catalogue names, files, or a list of them.")]
Contexts = Annotated[str, Option("--context", help="Tokens attended: one, a list or a range (1024-33792+1024).")]
Weights = Annotated[
    str | None, Option("--weights", help="Formats of weights, cache and activations: bf16, fp16, fp32 or a list.")
]
Layers = Annotated[int | None, Option("--layers", help="Cut each model to so many layers.")]
FitMemory = Annotated[str | None, Option("--fit-memory", help="Cut each model to what fits: 2GiB.")]
Draft = Annotated[str | None, Option("--draft", help="Measure speculative decoding of the first model with this one.")]
Gamma = Annotated[int, Option("--gamma", help="Proposals for each pass of the target.")]
Acceptance = Annotated[float, Option("--acceptance", help="How often a proposal is made right.")]
Check = Annotated[bool, Option("--check/--no-check", help="Hold cached decoding against full recomputation first.")]


@takes_charts
def command(
    model: Models,
    engine: Engine = None,
    device: Device = "auto",
    weights: Weights = None,
    batch: Batches = "1",
    context: Contexts = "512",
    layers: Layers = None,
    fit_memory: FitMemory = None,
    gpu: Ceilings = None,
    calibration: Calibration = None,
    draft: Draft = None,
    gamma: Gamma = 4,
    acceptance: Acceptance = 0.8,
    rounds: Rounds = 20,
    check: Check = True,
    write_gpu: WriteGpu = None,
    write_calibration: WriteCalibration = None,
    settings: Set = None,
    json: Json = False,
    output: Output = "table",
    *,
    chart_files: dict[str, str | None],
) -> None:
    """Predictions held against a real decode loop here: bytes, bounds, estimates. Needs PyTorch.

    Example: kvcalc crosscheck --device cpu --model smollm2-135m --layers 4 --batch 1,4 --context 256 --rounds 3
    """
    from kvcalc import api
    from kvcalc.cli.measuring import hand_over, leave, listed, tell
    from kvcalc.cli.shared import command_output, counts, memory
    from kvcalc.render.files import check_writable

    shown = command_output(output, json=json)
    check_writable((write_gpu, write_calibration))
    report = api.crosscheck(
        listed(model),
        engine=engine,
        device=device,
        formats=None if weights is None else listed(weights),
        batches=counts(batch, "batch") or (1,),
        contexts=counts(context, "context") or (1,),
        layers=layers,
        fit_memory_bytes=memory(fit_memory, "fit-memory"),
        gpu=gpu,
        calibration=calibration,
        draft=draft,
        gamma=gamma,
        acceptance=acceptance,
        rounds=rounds,
        check=check,
        settings=settings or (),
        progress=tell,
    )
    profiles = ((report.ceilings, write_gpu), (report.calibration, write_calibration))
    hand_over(report, shown, profiles, chart_files)
    leave(interrupted=report.interrupted, passed=report.passed)
