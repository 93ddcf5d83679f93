"""The calculators: bytes, bounds, what fits, and how each number comes about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, overload

from kvcalc.sources import find_calibration, load_calibration, load_hardware

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.common import ExplainedStep
    from kvcalc.core.reports.fit import FitReport
    from kvcalc.core.reports.roofline import RooflineReport
    from kvcalc.core.reports.size import SizeReport
    from kvcalc.core.reports.speed import DecodeReport, PrefillReport
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment

__all__ = ["decode", "explain", "fit", "prefill", "roofline", "size"]


def size(
    deployment: Deployment,
    *,
    context: int | None = None,
    batch: int = 1,
    engine: str | None = None,
    options: EngineOptions | None = None,
) -> SizeReport:
    """Return the bytes of cache and weights; with an engine, also what that engine reserves.

    For llama.cpp, ``context`` is that of all ``options.parallel`` sequences together, as its tools take it.

    Raises:
        InputError: a batch or context below one, or an engine that is not known.
        UnsupportedError: a model that the engine's memory model does not describe.
    """
    from kvcalc.plan.size import size_report

    return size_report(deployment, context=context, batch=batch, engine=engine, options=options)


def fit(
    deployment: Deployment,
    *,
    engine: str | None = None,
    options: EngineOptions | None = None,
    context: int | None = None,
    batch: int = 1,
    kv_memory_bytes: int | None = None,
    activation_bytes: int | None = None,
    overhead_bytes: int | None = None,
) -> FitReport:
    """Return whether a model, its cache and an engine's overhead fit, and the largest that would.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        engine: another engine whose memory model is used: ``vllm``, ``llama.cpp``, ``sglang``, ``transformers`` or
            ``ideal``; that of the deployment where left out.
        options: that engine's options.
        context: tokens of each sequence.
        batch: sequences.
        kv_memory_bytes: memory for the cache on each GPU; skips the budget, and no accelerator is needed.
        activation_bytes: peak of activations, where it is known.
        overhead_bytes: context, buffers and graphs, where they are known.

    Raises:
        InputError: neither an accelerator nor a memory for the cache, or sizes that make no sense.
        UnsupportedError: a model or arrangement that the engine's memory model does not describe.
    """
    from kvcalc.plan.fit import fit_report
    from kvcalc.plan.room import BudgetTerms

    terms = BudgetTerms(kv_bytes=kv_memory_bytes, activation_bytes=activation_bytes, overhead_bytes=overhead_bytes)
    return fit_report(deployment, engine=engine, options=options, terms=terms, context=context, batch=batch)


def decode(
    deployment: Deployment,
    *,
    batches: Sequence[int] = (1,),
    contexts: Sequence[int] | None = None,
    estimate: bool = False,
    calibration: str | Path | Calibration | None = None,
) -> DecodeReport:
    """Return the bound on decoding for each batch and context.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        batches: sequences decoded together.
        contexts: tokens attended by the new token, itself included.
        estimate: estimate the time as well, with the calibration that applies.
        calibration: estimate with this one: a name, a file or a calibration.

    Raises:
        InputError: no accelerator, or a batch or context below one.
        UnknownNameError: no such calibration.
    """
    from kvcalc.plan.decode import decode_report

    found, notes = _calibration(deployment, calibration, wanted=estimate)
    report = decode_report(deployment, batches=batches, contexts=contexts, calibration=found)
    return replace(report, notes=(*report.notes, *notes))


def _calibration(
    deployment: Deployment, asked: str | Path | Calibration | None, *, wanted: bool
) -> tuple[Calibration | None, tuple[str, ...]]:
    """Return the calibration to estimate with and what is to be said of it."""
    if asked is None and not wanted:
        return None, ()
    from kvcalc.plan.estimates import estimate_notes

    found = find_calibration(deployment) if asked is None else load_calibration(asked)
    return found, estimate_notes(found, deployment)


def prefill(
    deployment: Deployment,
    *,
    batches: Sequence[int] = (1,),
    prompts: Sequence[int] | None = None,
    estimate: bool = False,
    calibration: str | Path | Calibration | None = None,
) -> PrefillReport:
    """Return the bound on prefill for each batch and prompt; arguments and errors as `decode`."""
    from kvcalc.plan.prefill import prefill_report

    found, notes = _calibration(deployment, calibration, wanted=estimate)
    report = prefill_report(deployment, batches=batches, prompts=prompts, calibration=found)
    return replace(report, notes=(*report.notes, *notes))


def roofline(
    gpu: str | Path | HardwareProfile,
    deployments: Sequence[Deployment] = (),
    *,
    gpus: int = 1,
    batches: Sequence[int] = (1,),
    contexts: Sequence[int] | None = None,
    settings: Sequence[str] = (),
) -> RooflineReport:
    """Return an accelerator's ceilings and ridge points, and where models sit below them.

    Raises:
        KvcalcError: an accelerator that cannot be found, or a batch or context below one.
    """
    from kvcalc.plan.roofline import roofline_report

    hardware = load_hardware(gpu, settings=settings)
    return roofline_report(hardware, deployments, gpus=gpus, batches=batches, contexts=contexts)


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
    from kvcalc.plan.deployment import default_context

    if isinstance(deployment, HardwareProfile):
        return steps.explain_roofline(deployment)
    tokens = default_context(deployment.model) if context is None else context
    if report == "size":
        return steps.explain_size(deployment, context=tokens, batch=batch)
    used = None if calibration is None else load_calibration(calibration)
    if report == "prefill":
        return steps.explain_prefill(deployment, batch=batch, prompt=tokens, calibration=used)
    return steps.explain_decode(deployment, batch=batch, context=tokens, calibration=used)
