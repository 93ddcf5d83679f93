"""``kvcalc traffic``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from kvcalc.cli.options import Json, Model, Output, With, takes_charts, takes_deployment

Prompt = Annotated[str, Option("--prompt", help="Tokens of the prompt; 0 for none.")]
OutputTokens = Annotated[str, Option("--output-tokens", help="Tokens generated for each sequence.")]
Batch = Annotated[str, Option("--batch", help="Sequences: they share the weights' reads, not the cache's.")]
Window = Annotated[str | None, Option("--window", help="Keep the last so many tokens: --with window=…")]
Budget = Annotated[str | None, Option("--budget", help="Evict down to so many tokens: --with evict=…")]
Chunk = Annotated[str | None, Option("--chunk", help="One state for so many tokens (16, 4x4): --with hierarchy=…")]


@takes_deployment
@takes_charts
def command(
    model: Model,
    prompt: Prompt = "0",
    output_tokens: OutputTokens = "1024",
    batch: Batch = "1",
    window: Window = None,
    budget: Budget = None,
    chunk: Chunk = None,
    with_levers: With = "",
    json: Json = False,
    output: Output = "table",
    *,
    chart_files: dict[str, str | None],
    deployment_options: dict[str, Any],
) -> None:
    """Bytes read to generate tokens after a prompt: weights each time, the cache quadratically.

    Example: kvcalc traffic --model llama2-7b --prompt 0 --output-tokens 4096
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, count_from_zero, draw, emit, one_count

    shown = command_output(output, json=json)
    tokens, sequences = one_count(output_tokens, "output-tokens") or 1, one_count(batch, "batch") or 1
    named = {"window": window, "evict": budget, "hierarchy": chunk}
    levers = [f"{name}={value}" for name, value in named.items() if value is not None]
    report = api.traffic(
        api.deployment(model, **deployment_options),
        prompt_tokens=count_from_zero(prompt, "prompt"),
        output_tokens=tokens,
        batch=sequences,
        with_levers=",".join([with_levers, *levers]),
    )
    draw(report, chart_files)
    emit(report, shown)
