"""``kvcalc check``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Exit, Option

from kvcalc.cli.options import Batches, Contexts, Gpu, Json, Model, Output, takes_deployment

Measured = Annotated[
    str,
    Option("--measured", help="The figure: 3000tok/s (of all sequences), 50tok/s/user, or the time of a pass: 12ms."),
]
Phase = Annotated[str, Option("--phase", help="What was measured: decode or prefill.")]
Prompt = Annotated[str | None, Option("--prompt", help="prefill: tokens of each prompt.")]


@takes_deployment
def command(
    measured: Measured,
    model: Model,
    gpu: Gpu,
    phase: Phase = "decode",
    batch: Batches = "1",
    context: Contexts = None,
    prompt: Prompt = None,
    json: Json = False,
    output: Output = "table",
    *,
    deployment_options: dict[str, Any],
) -> None:
    """Is a measured speed possible: held against the bound; exit code 1 where it beats it.

    Example: kvcalc check --measured 3000tok/s --model llama3.1-8b --gpu h100-sxm --batch 32 --context 2048
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, emit, one_count, tell_gpu
    from kvcalc.core.errors import InputError

    shown = command_output(output, json=json)
    other, hint = (prompt, "--context") if phase == "decode" else (context, "--prompt")
    if other is not None:
        raise InputError(f"a {phase} has no {'prompt' if phase == 'decode' else 'context'} here", hint=f"give {hint}")
    tokens = one_count(context if phase == "decode" else prompt, hint.removeprefix("--"))
    deployment = api.deployment(model, gpu=gpu, **deployment_options)
    tell_gpu(gpu, deployment.hardware)
    report = api.check_measured(deployment, measured, phase=phase, batch=one_count(batch, "batch") or 1, tokens=tokens)
    emit(report, shown)
    if not report.passed:
        raise Exit(1)
