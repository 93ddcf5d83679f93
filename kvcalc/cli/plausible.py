"""``kvcalc check --measured``: is a measured speed possible."""

from __future__ import annotations

from typing import Any

from typer import Exit

from kvcalc.core.errors import InputError

__all__ = ["check_speed"]


def check_speed(
    measured: str,
    *,
    model: str | None,
    gpu: str | None,
    phase: str,
    batch: str,
    context: str | None,
    prompt: str | None,
    shown: str,
    deployment_options: dict[str, Any],
) -> None:
    """Print whether a figure is possible on a model and an accelerator; exit code 1 where it beats the bound.

    Raises:
        InputError: what the figure was measured on is missing, or lengths that the phase does not have.
    """
    from kvcalc import api
    from kvcalc.cli.shared import emit, one_count, tell_gpu

    if model is None or gpu is None:
        missing = "model" if model is None else "gpu"
        raise InputError(
            f"--measured needs --{missing}", hint="say what was measured: --model llama3.1-8b --gpu h100-sxm"
        )
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
