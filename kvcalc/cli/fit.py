"""``kvcalc fit``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from kvcalc.cli.options import Engine, Json, Model, Output, takes_charts, takes_deployment, takes_draft, takes_engine

Gpu = Annotated[str | None, Option("--gpu", help="Accelerator: catalogue name, alias or profile file.")]
Context = Annotated[str | None, Option("--context", help="Tokens of each sequence.")]
Batch = Annotated[str, Option("--batch", help="Sequences.")]
KvMemory = Annotated[str | None, Option("--kv-memory", help="Memory for the cache on each GPU; skips the budget.")]
Activation = Annotated[str | None, Option("--activation-memory", help="Peak of activations, where it is known.")]
Overhead = Annotated[str | None, Option("--overhead-memory", help="Context, buffers and graphs, where known.")]


@takes_deployment
@takes_engine
@takes_draft
@takes_charts
def command(
    model: Model,
    gpu: Gpu = None,
    context: Context = None,
    batch: Batch = "1",
    engine: Engine = None,
    kv_memory: KvMemory = None,
    activation_memory: Activation = None,
    overhead_memory: Overhead = None,
    json: Json = False,
    output: Output = "table",
    *,
    chart_files: dict[str, str | None],
    draft_options: dict[str, Any],
    engine_options: dict[str, Any],
    deployment_options: dict[str, Any],
) -> None:
    """Does it fit: the budget term by term, the largest batch and context, the fewest GPUs.

    Example: kvcalc fit --model llama3.1-8b --gpu rtx-4090 --context 8192 --max-model-len 8192
    """
    from kvcalc import api
    from kvcalc.cli.shared import (
        command_output,
        count_from_zero,
        draw,
        emit,
        memory,
        one_count,
        served,
        tell_gpu,
        with_draft,
    )

    shown = command_output(output, json=json)
    deployment = api.deployment(model, gpu=gpu, engine=engine, **deployment_options)
    deployment = served(deployment, engine or deployment.served_by, engine_options)
    deployment = with_draft(deployment, draft_options, deployment_options["kv_dtype"])
    if gpu is not None:
        tell_gpu(gpu, deployment.hardware)
    report = api.fit(
        deployment,
        context=None if context is None else count_from_zero(context, "context"),
        batch=one_count(batch, "batch") or 1,
        kv_memory_bytes=memory(kv_memory),
        activation_bytes=memory(activation_memory),
        overhead_bytes=memory(overhead_memory),
    )
    draw(report, chart_files)
    emit(report, shown)
