"""``kvcalc levers``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from kvcalc.cli.options import Json, Model, Output, With, takes_charts, takes_deployment

Gpu = Annotated[str | None, Option("--gpu", help="Accelerator, for tokens/s and tokens/s per GiB.")]
Context = Annotated[str | None, Option("--context", help="Tokens of each sequence.")]
Batch = Annotated[str, Option("--batch", help="Sequences.")]
Longest = Annotated[
    str | None, Option("--max-model-len", help="Tokens set aside for a sequence where nothing is paged.")
]


@takes_deployment
@takes_charts
def command(
    model: Model,
    gpu: Gpu = None,
    context: Context = None,
    batch: Batch = "1",
    with_levers: With = "",
    max_model_len: Longest = None,
    json: Json = False,
    output: Output = "table",
    *,
    chart_files: dict[str, str | None],
    deployment_options: dict[str, Any],
) -> None:
    """Every known way to shrink the cache: bytes held and read, what it cuts, what it asks for.

    Example: kvcalc levers --model llama2-7b --context 4096 --batch 8 --with gqa,fp8,window=1024
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, draw, emit, one_count, tell_gpu

    shown = command_output(output, json=json)
    tokens, sequences = one_count(context, "context"), one_count(batch, "batch") or 1
    longest = one_count(max_model_len, "max-model-len")
    deployment = api.deployment(model, gpu=gpu, **deployment_options)
    if gpu is not None:
        tell_gpu(gpu, deployment.hardware)
    report = api.levers(deployment, context=tokens, batch=sequences, with_levers=with_levers, max_model_len=longest)
    draw(report, chart_files)
    emit(report, shown)
