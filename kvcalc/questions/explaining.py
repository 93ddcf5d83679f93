"""The formulas behind a report, and the calibration behind an estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from kvcalc.sources import find_calibration, load_calibration

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.common import ExplainedStep
    from kvcalc.plan.deployment import Deployment

__all__ = ["explain", "used_calibration"]


def used_calibration(
    deployment: Deployment,
    asked: str | Path | Calibration | None,
    *,
    wanted: bool,
    phase: Literal["decode", "prefill"] | None = None,
) -> tuple[Calibration | None, tuple[str, ...]]:
    """Return the calibration to estimate with, and the notes that its use asks for."""
    if asked is None and not wanted:
        return None, ()
    from kvcalc.plan.estimates import estimate_notes

    calibration = find_calibration(deployment) if asked is None else load_calibration(asked)
    return calibration, estimate_notes(calibration, deployment, *() if phase is None else (phase,))


@overload
def explain(
    report: Literal["size", "decode", "prefill"],
    deployment: Deployment,
    *,
    context: int | None = ...,
    batch: int = ...,
    calibration: str | Path | Calibration | None = ...,
) -> tuple[ExplainedStep, ...]: ...
@overload
def explain(report: Literal["roofline"], deployment: HardwareProfile) -> tuple[ExplainedStep, ...]: ...
def explain(
    report: str,
    deployment: Deployment | HardwareProfile,
    *,
    context: int | None = None,
    batch: int = 1,
    calibration: str | Path | Calibration | None = None,
) -> tuple[ExplainedStep, ...]:
    """Return the formulas behind a report, with the numbers put in and their sources.

    Args:
        report: ``size``, ``decode``, ``prefill`` or ``roofline``.
        deployment: what the report was about (for ``roofline``, the accelerator).
        context: tokens attended, or of the prompt.
        batch: sequences.
        calibration: what the estimate of a decode step or a prefill is made with, if one is.
    """
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.plan import explain as steps
    from kvcalc.plan.contexts import default_context

    if isinstance(deployment, HardwareProfile):
        return steps.explain_roofline(deployment)
    tokens = default_context(deployment.model, deployment.engine) if context is None else context
    if report == "size":
        return steps.explain_size(deployment, context=tokens, batch=batch)
    used = None if calibration is None else load_calibration(calibration)
    if report == "prefill":
        return steps.explain_prefill(deployment, batch=batch, prompt=tokens, calibration=used)
    return steps.explain_decode(deployment, batch=batch, context=tokens, calibration=used)
