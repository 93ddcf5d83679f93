"""``kvcalc demo``: a subcommand for each demonstration."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from kvcalc.cli.options import Json, Output, takes_charts, takes_lesson

if TYPE_CHECKING:
    from collections.abc import Callable

_HELP = "See it work, step by step: the KV cache, speculation, paging, drift."
app = typer.Typer(help=_HELP, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Prompt = Annotated[int, Option("--prompt", help="Tokens of the prompt.")]
OutputTokens = Annotated[int, Option("--output-tokens", help="Tokens to make.")]
Layers = Annotated[int, Option("--layers", help="Layers of the small decoder.")]
Heads = Annotated[int, Option("--heads", help="Its query heads.")]
KvHeads = Annotated[int, Option("--kv-heads", help="Its key-value heads: as many, fewer (GQA) or one (MQA).")]
Batch = Annotated[int, Option("--batch", help="Sequences.")]
Gamma = Annotated[int, Option("--gamma", help="Tokens drafted for each pass of the target.")]
MemoryTokens = Annotated[str, Option("--memory-tokens", help="Tokens that the memory holds.")]
BlockSize = Annotated[int, Option("--block-size", help="Tokens of a block.")]
MaxModelLen = Annotated[str, Option("--max-model-len", help="The longest length served, set aside where not paged.")]
FreeSteps = Annotated[int, Option("--free-steps", help="Steps that the generator runs free.")]
Horizon = Annotated[int, Option("--horizon", help="Steps that it runs on its own states in training.")]
Consistency = Annotated[float, Option("--consistency", help="Weight of the consistency loss.")]
Trainings = Annotated[int, Option("--trainings", help="Trainings that errors are means over.")]
Seed = Annotated[int, Option("--seed", help="Seed of all that is random.")]


@app.callback(invoke_without_command=True)
def default(ctx: typer.Context) -> None:
    """Print the demonstrations there are."""
    if ctx.invoked_subcommand is None:
        sys.stdout.write(ctx.get_help() + "\n")


default.__doc__ = _HELP


def _demo(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a demonstration with the options that all of them have."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        return app.command(name)(takes_lesson(takes_charts(command)))

    return add


def _show(report: Any, output: str, lesson: dict[str, Any], charts: dict[str, str | None], *, json: bool) -> None:
    """Print a demonstration as the options ask."""
    from kvcalc.cli.shared import command_output, draw, emit
    from kvcalc.demo.lesson import animate, lesson_text, step_texts

    shown = command_output(output, json=json)
    draw(report, charts)
    if shown != "table":
        emit(report, shown)
        return
    plain = bool(lesson["plain"])
    if lesson["watch"] and not plain:
        animate(step_texts(report))
        sys.stdout.write("\n")
    sys.stdout.write(lesson_text(report, steps=bool(lesson["steps"] or (lesson["watch"] and plain)), plain=plain))


@_demo("kv-cache")
def kv_cache(
    prompt: Prompt = 3,
    output_tokens: OutputTokens = 20,
    layers: Layers = 2,
    heads: Heads = 4,
    kv_heads: KvHeads = 2,
    batch: Batch = 1,
    seed: Seed = 0,
    json: Json = False,
    output: Output = "table",
    *,
    lesson_options: dict[str, Any],
    chart_files: dict[str, str | None],
) -> None:
    """Generate without and with a cache: the same tokens, a fraction of the projections.

    Example: kvcalc demo kv-cache --prompt 3 --output-tokens 20 --steps
    """
    from kvcalc import api
    from kvcalc.demo.decoder import DecoderShape

    shape = DecoderShape(layers=layers, heads=heads, kv_heads=kv_heads)
    report = api.demo_kv_cache(shape=shape, prompt_tokens=prompt, output_tokens=output_tokens, batch=batch, seed=seed)
    _show(report, output, lesson_options, chart_files, json=json)


@_demo("speculate")
def speculate(
    prompt: Prompt = 3,
    output_tokens: OutputTokens = 20,
    gamma: Gamma = 4,
    seed: Seed = 0,
    json: Json = False,
    output: Output = "table",
    *,
    lesson_options: dict[str, Any],
    chart_files: dict[str, str | None],
) -> None:
    """Draft, verify, accept, correct: with a perfect, a half and a poor draft the passes change, the output never.

    Example: kvcalc demo speculate --gamma 4 --output-tokens 20
    """
    from kvcalc import api

    report = api.demo_speculate(prompt_tokens=prompt, output_tokens=output_tokens, gamma=gamma, seed=seed)
    _show(report, output, lesson_options, chart_files, json=json)


@_demo("paging")
def paging(
    memory_tokens: MemoryTokens = "32768",
    block_size: BlockSize = 16,
    max_model_len: MaxModelLen = "4096",
    json: Json = False,
    output: Output = "table",
    *,
    lesson_options: dict[str, Any],
    chart_files: dict[str, str | None],
) -> None:
    """Serve requests of real lengths with memory set aside in one piece, then in blocks; share blocks, copy on write.

    Example: kvcalc demo paging --block-size 16 --max-model-len 4096
    """
    from kvcalc import api
    from kvcalc.cli.shared import one_count

    report = api.demo_paging(
        memory_tokens=one_count(memory_tokens, "memory-tokens") or 1,
        block_tokens=block_size,
        longest_tokens=one_count(max_model_len, "max-model-len") or 1,
    )
    _show(report, output, lesson_options, chart_files, json=json)


@_demo("drift")
def drift(
    free_steps: FreeSteps = 100,
    horizon: Horizon = 8,
    consistency: Consistency = 1.0,
    trainings: Trainings = 3,
    seed: Seed = 0,
    json: Json = False,
    output: Output = "table",
    *,
    lesson_options: dict[str, Any],
    chart_files: dict[str, str | None],
) -> None:
    """Let a small generator feed on its own states: its error grows, and a consistency loss shrinks it.

    Example: kvcalc demo drift --free-steps 100 --trainings 1
    """
    from kvcalc import api

    report = api.demo_drift(
        steps=free_steps, horizon_steps=horizon, consistency=consistency, trainings=trainings, seed=seed
    )
    _show(report, output, lesson_options, chart_files, json=json)
