"""``kvcalc simulate``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from kvcalc.cli.options import Json, Output, takes_charts, takes_deployment, takes_engine, takes_load, takes_serving
from kvcalc.core.errors import InputError

_MODEL = "Catalogue name, Hugging Face id, profile, config.json (or its folder), .gguf or .safetensors."
Model = Annotated[str | None, Option("--model", "-m", help=_MODEL)]
Gpu = Annotated[str | None, Option("--gpu", help="Accelerator: catalogue name, alias or profile file.")]
Engine = Annotated[str, Option("--engine", help="vllm: the engine whose scheduler and cache are simulated.")]
Steps = Annotated[str | None, Option("--steps", metavar="FILE", help="Replay a recorded scenario on a step clock.")]
Find = Annotated[bool, Option("--find-capacity", help="Search for the highest rate at which all of --slo holds.")]
Tolerance = Annotated[float, Option("--tolerance", help="--find-capacity: how close, as a share of the rate.")]
SaveRequests = Annotated[
    str | None, Option("--save-requests", metavar="FILE", help="Write a row for each request: .csv or .parquet.")
]
SaveTrace = Annotated[
    str | None, Option("--save-trace", metavar="FILE", help="Write what happened when, for Perfetto: .json.")
]


@takes_load
@takes_serving
@takes_deployment
@takes_engine
@takes_charts
def command(
    model: Model = None,
    gpu: Gpu = None,
    engine: Engine = "vllm",
    steps: Steps = None,
    find_capacity: Find = False,
    tolerance: Tolerance = 0.01,
    save_requests: SaveRequests = None,
    save_trace: SaveTrace = None,
    json: Json = False,
    output: Output = "table",
    *,
    chart_files: dict[str, str | None],
    engine_options: dict[str, Any],
    deployment_options: dict[str, Any],
    serving_options: dict[str, Any],
    load_options: dict[str, Any],
) -> None:
    """A serving run under load: TTFT, TPOT, throughput, the cache, and the highest load that holds.

    Example: kvcalc simulate --model llama3.1-8b --gpu h200 --prompt lognormal:1020,0.9 --output-tokens 200 --rate 4
    """
    from kvcalc import api
    from kvcalc.cli.serving_options import load_of, serving_of
    from kvcalc.cli.shared import command_output, draw, emit, progress, required, tell_gpu, tell_rates
    from kvcalc.render.files import check_writable

    shown = command_output(output, json=json)
    if steps is not None:
        given = (*chart_files.values(), *engine_options.values(), *deployment_options.values())
        given += (*serving_options.values(), *load_options.values())
        if any((model, gpu, find_capacity, save_requests, save_trace, *given)):
            raise InputError("a replay takes all it needs from its file", hint="beside --steps give --json or --output")
        emit(api.replay_steps(steps), shown)
        return
    model = required(model, "model", "for example --model llama3.1-8b")
    gpu = required(gpu, "gpu", "for example --gpu h200")
    load = load_of(load_options)
    serving = serving_of(serving_options, engine, engine_options)
    check_writable((save_requests, save_trace))
    deployment = api.deployment(model, gpu=gpu, **deployment_options)
    tell_gpu(gpu, deployment.hardware)
    capacity = None
    if find_capacity:
        with tell_rates() as tried:
            capacity = api.find_capacity(deployment, load, serving=serving, tolerance=tolerance, progress=tried)
    with progress("requests") as told:
        report = api.simulate_serving(
            deployment,
            load,
            serving=serving,
            capacity=capacity,
            save_requests=save_requests,
            save_trace=save_trace,
            progress=told,
        )
    draw(report, chart_files)
    emit(report, shown)
