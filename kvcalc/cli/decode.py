"""``kvcalc decode``."""

from __future__ import annotations

from typing import Any

from kvcalc.cli.options import (
    Batches,
    Calibration,
    Contexts,
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


@takes_deployment
@takes_engine
@takes_costs
@takes_charts
def command(
    model: Model,
    gpu: Gpu,
    batch: Batches = "1",
    context: Contexts = None,
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
    """Bound on decoding: tokens/s, the least time of a step, and what limits it.

    Example: kvcalc decode --model llama3.1-8b --gpu h100-sxm --batch 1-256*4 --context 8192
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, counts, draw, emit, explain_first, served, tell_gpu

    shown = command_output(output, json=json)
    batches, contexts = counts(batch, "batch") or (1,), counts(context, "context")
    deployment = api.deployment(model, gpu=gpu, engine=engine, **deployment_options, **cost_options)
    deployment = served(deployment, engine, engine_options)
    tell_gpu(gpu, deployment.hardware)
    report = api.decode(deployment, batches=batches, contexts=contexts, estimate=estimate, calibration=calibration)
    draw(report, chart_files)
    used = calibration or (report.calibration.name if report.calibration is not None else None)
    emit(report, shown, explain_first("decode", deployment, batches, contexts, used) if explain else None)
