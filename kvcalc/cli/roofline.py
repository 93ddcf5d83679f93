"""``kvcalc roofline``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from kvcalc.cli.options import (
    Batches,
    Contexts,
    Engine,
    Explain,
    Gpu,
    Json,
    Output,
    takes_charts,
    takes_deployment,
    takes_engine,
)

Models = Annotated[list[str] | None, Option("--model", "-m", help="A model to place on it. May be repeated.")]


@takes_deployment
@takes_engine
@takes_charts
def command(
    gpu: Gpu,
    model: Models = None,
    batch: Batches = "1",
    context: Contexts = None,
    engine: Engine = None,
    explain: Explain = False,
    json: Json = False,
    output: Output = "table",
    *,
    chart_files: dict[str, str | None],
    engine_options: dict[str, Any],
    deployment_options: dict[str, Any],
) -> None:
    """Ceilings and ridge points of an accelerator, and where models sit below them.

    Example: kvcalc roofline --gpu h100 --model llama3.1-8b --batch 1,64 --context 4096
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, counts, draw, emit, served, tell_gpu

    shown = command_output(output, json=json)
    batches, contexts = counts(batch, "batch") or (1,), counts(context, "context")
    names = [name for given in model or () for name in given.split(",")]
    loaded = [api.deployment(name, gpu=gpu, engine=engine, **deployment_options) for name in names]
    deployments = [served(deployment, engine, engine_options) for deployment in loaded]
    given = {} if names else {name: deployment_options[name] for name in ("settings", "memory_bytes")}
    hardware = deployments[0].hardware if deployments else api.load_hardware(gpu, **given)
    if hardware is None:
        return
    tell_gpu(gpu, hardware)
    gpus = deployments[0].parallel.gpus if deployments else deployment_options["gpus"] or 1
    report = api.roofline(hardware, deployments, gpus=gpus, batches=batches, contexts=contexts)
    draw(report, chart_files)
    emit(report, shown, (lambda: api.explain("roofline", hardware)) if explain else None)
