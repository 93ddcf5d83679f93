"""``kvcalc size``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from kvcalc.cli.options import ENGINE_NAMES, Explain, Json, Model, Output, takes_deployment, takes_engine

Context = Annotated[str | None, Option("--context", help="Tokens of a sequence (llama.cpp: of all of them).")]
Batch = Annotated[str, Option("--batch", help="Sequences.")]
Gpu = Annotated[str | None, Option("--gpu", help="With --engine: the accelerator that its defaults follow.")]
Engine = Annotated[str | None, Option("--engine", help=f"Also print what this engine reserves: {ENGINE_NAMES}.")]


@takes_deployment
@takes_engine
def command(
    model: Model,
    context: Context = None,
    batch: Batch = "1",
    gpu: Gpu = None,
    engine: Engine = None,
    explain: Explain = False,
    json: Json = False,
    output: Output = "table",
    *,
    engine_options: dict[str, Any],
    deployment_options: dict[str, Any],
) -> None:
    """Bytes of the KV cache per token, per sequence and in total, and of the weights.

    Example: kvcalc size --model llama2-70b --context 8000 --batch 32
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, count_from_zero, emit, engine_given, one_count

    shown = command_output(output, json=json)
    tokens, sequences = None if context is None else count_from_zero(context, "context"), one_count(batch, "batch") or 1
    options = api.engine_options(engine, engine_given(engine_options))
    deployment = api.deployment(model, gpu=gpu, engine=engine, options=options, **deployment_options)
    report = api.size(deployment, context=tokens, batch=sequences)
    emit(report, shown, (lambda: api.explain("size", deployment, context=tokens, batch=sequences)) if explain else None)
