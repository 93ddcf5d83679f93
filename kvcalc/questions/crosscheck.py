"""Do predictions hold here: ``kvcalc crosscheck``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.ranges import check_combinations
from kvcalc.core.readers import counts, flag, memory, names, number, whole
from kvcalc.questions.bench import Measured, check_rounds, format_names, found_device
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.groups import BATCHES, CALIBRATION, Run
from kvcalc.sources import load_calibration, load_hardware, load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.measure import CrosscheckReport, CrosscheckRow, MeasuredLoop, MeasuredSpeculation
    from kvcalc.measure.library import Device
    from kvcalc.plan.deployment import Deployment

__all__ = ["Crosscheck", "crosscheck"]

_MAX_GAMMA = 64
_MAX_STEPS = 10_000
_MAX_LOOP_TOKENS = 100_000


class Crosscheck(Measured):
    """Predictions against a real decode loop on this machine. Needs PyTorch.

    Example: kvcalc crosscheck --device cpu --model smollm2-135m --layers 4 --batch 1,4 --context 256 --rounds 3
    """

    model: tuple[str, ...] = param(
        "--model", "-m", help="Models: catalogue names, files, or a list of them.", read=names, is_required=True
    )
    engine: str | None = param(
        "--engine", otherwise="none", help="Run this engine in place of the loop: vllm or llama.cpp, if installed."
    )
    weights: tuple[str, ...] | None = param(
        "--weights",
        help="Formats of weights, KV and activations: bf16, fp16, fp32 or a list.",
        read=names,
        otherwise="the checkpoint's, else bf16",
    )
    batch: tuple[int, ...] = BATCHES
    context: tuple[int, ...] = param(
        "--context",
        help="Context length in tokens: one, a list or a range (1024-33792+1024).",
        read=counts,
        default="512",
    )
    layers: int | None = param(
        "--layers", heading="Model", help="Keep only this many layers.", read=whole, otherwise="all"
    )
    fit_memory: int | None = param(
        "--fit-memory", heading="Model", help="Keep only as many layers as fit: 2GiB.", read=memory, otherwise="all"
    )
    calibration: str | None = CALIBRATION
    draft: str | None = param("--draft", help="Also measure speculative decoding with this draft model.")
    gamma: int = param("--gamma", help="Draft tokens per verification.", read=whole, default=4)
    acceptance: float = param("--acceptance", help="Acceptance of draft tokens.", read=number, default=0.8)
    kernels: tuple[str, ...] = param(
        "--kernels", help="Kernels of the loop: plain, sdpa, fused or a list.", read=names, default="plain"
    )
    loop_tokens: tuple[int, ...] | None = param(
        "--loop-tokens", help="Also decode N tokens in a row: 64, or 64,256.", read=counts
    )
    check: bool = param(
        "--check/--no-check",
        help="First compare cached decoding with full recomputation.",
        read=flag,
        default=True,
    )
    settings: tuple[str, ...] = Run.params["settings"]  # type: ignore[assignment]
    has_chart = True

    def answer(self) -> Answer:
        """Return the predictions beside what was measured."""
        report = crosscheck(
            self.model,
            engine=self.engine,
            device=self.device,
            formats=self.weights,
            batches=self.batch,
            contexts=self.context,
            layers=self.layers,
            fit_memory_bytes=self.fit_memory,
            gpu=self.gpu,
            calibration=self.calibration,
            draft=self.draft,
            gamma=self.gamma,
            acceptance=self.acceptance,
            rounds=self.rounds,
            kernels=self.kernels,
            loop_tokens=self.loop_tokens or (),
            check=self.check,
            settings=self.settings,
            progress=self.progress,
        )
        profiles = ((report.ceilings, self.write_gpu), (report.calibration, self.write_calibration))
        return Answer(report, passed=report.passed, profiles=profiles)


def crosscheck(
    models: Sequence[str | Path | ModelProfile],
    *,
    engine: str | None = None,
    device: str = "auto",
    formats: Sequence[str] | None = None,
    batches: Sequence[int] = (1,),
    contexts: Sequence[int] = (512,),
    layers: int | None = None,
    fit_memory_bytes: int | None = None,
    gpu: str | Path | HardwareProfile | None = None,
    calibration: str | Path | Calibration | None = None,
    draft: str | Path | ModelProfile | None = None,
    gamma: int = 4,
    acceptance: float = 0.8,
    rounds: int = 20,
    check: bool = True,
    kernels: Sequence[str] = ("plain",),
    loop_tokens: Sequence[int] = (),
    settings: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _: None,
    measured: Callable[[CrosscheckRow | MeasuredLoop], None] = lambda _: None,
) -> CrosscheckReport:
    """Return predictions held against a real decode loop in torch with the models' shapes and random weights.

    Args:
        models: as `load_model` takes them.
        engine: ``vllm`` runs that engine with dummy weights in place of the loop.
        device: ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
        formats: of weights, cache and activations; a checkpoint's own 16- or 32-bit format, else bf16, where left out.
        batches: sequences of a step.
        contexts: tokens attended, the new one included.
        layers: cut each model to so many layers.
        fit_memory_bytes: cut each model to as many layers as fit, cache included.
        gpu: ceilings that bounds stand on; those that a short bench reaches where left out.
        calibration: what estimates stand on; the one that the bench fits where both are left out.
        draft: a draft model, to measure speculative decoding of the first model with.
        gamma: its proposals for each pass.
        acceptance: how often a proposal is made right.
        rounds: repetitions of a step.
        check: whether cached decoding is held against full recomputation first.
        kernels: variants of the loop's kernels, each measured: plain, sdpa, fused.
        loop_tokens: numbers of tokens that are decoded in a row, at the shortest context.
        settings: fields of the models to replace, as ``path=value``.
        progress: told what is done next.
        measured: given each row as it is measured, where ``gpu`` is given.

    Raises:
        InputError: torch or the engine is not installed, the device is not there, or too little memory is free.
        UnsupportedError: a layer that the loop does not build, or a model that the engine is not given.
        KvcalcError: a model, accelerator or calibration that cannot be found.
    """
    check_rounds(rounds)
    _check_loop_tokens(loop_tokens)
    if not models:
        raise InputError("no model is given", hint="give --model, for example --model llama3.2-1b")
    hint = "each of them is run: take larger steps"
    check_combinations("steps of model, batch and context", models, batches, contexts, max_rows=_MAX_STEPS, hint=hint)
    hardware = None if gpu is None else load_hardware(gpu)
    fitted = None if calibration is None else load_calibration(calibration)
    profiles = [load_model(model, settings=settings) for model in models]
    if engine is not None:
        engine = _engine(engine, draft)
    real_device = found_device(device)
    from kvcalc.measure.crosscheck import Questions, crosscheck_report
    from kvcalc.measure.kernels import kernels_of

    for name in kernels:
        kernels_of(name, real_device)

    def deployed(model: ModelProfile, name: str | None) -> Deployment:
        return _cut(model, name, layers, fit_memory_bytes, batch=max(batches), context=max(contexts))

    deployments = tuple(deployed(model, name) for model in profiles for name in format_names(formats or ()) or (None,))
    speculation = None
    if draft is not None:
        _check_speculation(gamma, acceptance)
        drafting = load_model(draft)
        small = _cut(
            drafting,
            deployments[0].formats.weights.name,
            None if layers is None else min(layers, drafting.layers),
            fit_memory_bytes,
            batch=1,
            context=max(contexts),
        )
        kinds = tuple(kernels) or ("plain",)
        speculation = _speculation(
            deployments[0], small, real_device, gamma=gamma, acceptance=acceptance, kernels=kinds[-1]
        )
    asked = Questions(
        deployments=deployments,
        batches=tuple(batches),
        contexts=tuple(contexts),
        rounds=rounds,
        hardware=hardware,
        calibration=fitted,
        check=check,
        kernels=tuple(dict.fromkeys(kernels)),
        loops=tuple(loop_tokens),
    )
    if engine is not None:
        from kvcalc.measure.engines.run import engine_report

        return engine_report(engine, real_device, asked, progress=progress)
    return crosscheck_report(real_device, asked, progress=progress, speculation=speculation, measured=measured)


def _engine(engine: str, draft: object) -> str:
    from kvcalc.measure.engines.start import require_engine

    name = require_engine(engine)
    if draft is not None:
        raise InputError(f"--draft is measured with the loop, not with {name}", hint="leave out --engine or --draft")
    return name


def _check_loop_tokens(loop_tokens: Sequence[int]) -> None:
    if any(not 1 <= tokens <= _MAX_LOOP_TOKENS for tokens in loop_tokens):
        raise InputError(f"--loop-tokens must be from 1 to {_MAX_LOOP_TOKENS:,}, not {max(loop_tokens):,}")


def _check_speculation(gamma: int, acceptance: float) -> None:
    if not 1 <= gamma <= _MAX_GAMMA:
        raise InputError(f"--gamma must be from 1 to {_MAX_GAMMA}, not {gamma}")
    if not 0 <= acceptance <= 1:
        raise InputError(f"--acceptance is a probability, not {acceptance}")


def _cut(
    model: ModelProfile, name: str | None, layers: int | None, memory_bytes: int | None, *, batch: int, context: int
) -> Deployment:
    """Return a model in one format for weights, cache and activations, cut to fit."""
    from kvcalc.measure.decoder import check_supported
    from kvcalc.measure.library import FORMATS_MEASURED, torch_dtype
    from kvcalc.measure.scale import fit_layers, with_layers
    from kvcalc.plan.deployment import deploy

    check_supported(model)
    positions = [table.rows for table in model.embeddings[1:]]
    if positions and context > positions[0]:
        raise InputError(f"context {context:,} is beyond the {positions[0]:,} positions of {model.name}")
    chosen = name or (model.dtype if model.dtype in FORMATS_MEASURED else FORMATS_MEASURED[0])
    torch_dtype(chosen)
    if layers is not None:
        model = with_layers(model, layers)
    deployment = deploy(model, weights=chosen, kv=chosen, activations=chosen)
    if memory_bytes is None:
        return deployment
    cut = fit_layers(model, deployment.formats, batch=batch, context=context, memory_bytes=memory_bytes)
    return replace(deployment, model=cut)


def _speculation(
    target: Deployment, draft: Deployment, device: Device, *, gamma: int, acceptance: float, kernels: str
) -> Callable[[], MeasuredSpeculation]:
    from kvcalc.measure.speculation import check_rollback, check_room, measured_speculation

    for deployment in (target, draft):
        check_rollback(deployment.model)
    known, drafted = (deployment.model.embeddings[0].rows for deployment in (target, draft))
    if known != drafted:
        raise InputError(f"the draft {draft.model.name} knows {drafted:,} tokens and {target.model.name} {known:,}")
    check_room(target, draft, device, gamma=gamma)
    return lambda: measured_speculation(target, draft, device, gamma=gamma, acceptance=acceptance, kernels=kernels)
