"""``kvcalc prefill``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from kvcalc.cli.options import (
    Batches,
    Calibration,
    Engine,
    Estimate,
    Explain,
    Gpu,
    Json,
    Model,
    Output,
    takes_charts,
    takes_costs,
    takes_deployment,
    takes_engine,
)

Prompts = Annotated[str | None, Option("--prompt", help="Tokens of a prompt: one, a list or a range.")]


@takes_deployment
@takes_engine
@takes_costs
@takes_charts
def command(
    model: Model,
    gpu: Gpu,
    batch: Batches = "1",
    prompt: Prompts = None,
    engine: Engine = None,
    estimate: Estimate = False,
    calibration: Calibration = None,
    explain: Explain = False,
    json: Json = False,
    output: Output = "table",
    *,
    chart_files: dict[str, str | None],
    cost_options: dict[str, Any],
    engine_options: dict[str, Any],
    deployment_options: dict[str, Any],
) -> None:
    """Bound on prefill: the least time to first token, and what limits it.

    Example: kvcalc prefill --model llama3.1-8b --gpu h100-sxm --prompt 1024,8192
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, counts, draw, emit, explain_first, served, tell_gpu

    shown = command_output(output, json=json)
    batches, prompts = counts(batch, "batch") or (1,), counts(prompt, "prompt")
    deployment = api.deployment(model, gpu=gpu, engine=engine, **deployment_options, **cost_options)
    deployment = served(deployment, engine, engine_options)
    tell_gpu(gpu, deployment.hardware)
    report = api.prefill(deployment, batches=batches, prompts=prompts, estimate=estimate, calibration=calibration)
    draw(report, chart_files)
    used = calibration or (report.calibration.name if report.calibration is not None else None)
    emit(report, shown, explain_first("prefill", deployment, batches, prompts, used) if explain else None)
