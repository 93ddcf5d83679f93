"""The facade: names and paths in, reports out. The command line and every other front end call only this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from kvcalc.core.errors import InputError, UnknownNameError
from kvcalc.core.hardware import HardwareProfile
from kvcalc.sources import load_hardware, load_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.common import ExplainedStep
    from kvcalc.core.reports.fit import FitReport
    from kvcalc.core.reports.reconcile import ReconcileReport
    from kvcalc.core.reports.roofline import RooflineReport
    from kvcalc.core.reports.size import SizeReport
    from kvcalc.core.reports.speed import DecodeReport, PrefillReport
    from kvcalc.engines.options import EngineOptions
    from kvcalc.importers.config_reader import KeyUse
    from kvcalc.plan.deployment import Deployment
    from kvcalc.profiles.catalog import Kind

__all__ = [
    "decode",
    "deployment",
    "explain",
    "fit",
    "lint_config",
    "load_hardware",
    "load_model",
    "prefill",
    "profile_names",
    "profile_schema",
    "profile_text",
    "reconcile",
    "roofline",
    "size",
    "validate_profile",
]


def profile_names(kind: Kind) -> list[str]:
    """Return the names of the models or accelerators that can be found."""
    from kvcalc.profiles.catalog import names

    return names(kind)


def profile_text(profile: ModelProfile | HardwareProfile) -> str:
    """Return a profile as the YAML of a profile file."""
    from kvcalc.profiles.writer import profile_yaml

    return profile_yaml(profile)


def profile_schema(kind: Kind) -> dict[str, object]:
    """Return the JSON Schema of a kind of profile file."""
    from kvcalc.profiles.schema import HardwareDocument, ModelDocument, json_schema

    return json_schema(ModelDocument if kind == "model" else HardwareDocument)


def validate_profile(path: Path, kind: Kind) -> None:
    """Check a profile file against the schema.

    Raises:
        ProfileError: the first thing that is wrong.
    """
    from kvcalc.profiles.loader import load_hardware_file, load_model_file

    load_model_file(path) if kind == "model" else load_hardware_file(path)


def lint_config(path: Path) -> list[KeyUse]:
    """Return what becomes of each key of a Hugging Face config: used, defaulted or ignored.

    Args:
        path: a ``config.json``, its folder, or a ``.safetensors`` file beside it.

    Raises:
        UnsupportedError: an architecture that is not known.
        ProfileError: a file that cannot be read.
    """
    from kvcalc.importers.folders import config_of
    from kvcalc.importers.hugging_face import lint

    return lint(config_of(path))


def deployment(
    model: str | Path | ModelProfile,
    *,
    gpu: str | Path | HardwareProfile | None = None,
    gpus: int | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    expert_parallel: int | None = None,
    data_parallel: int | None = None,
    weights: str | None = None,
    kv_dtype: str | None = None,
    key_dtype: str | None = None,
    value_dtype: str | None = None,
    activations: str | None = None,
    settings: Sequence[str] = (),
) -> Deployment:
    """Return a model on accelerators, in formats, spread as asked; see `load_model` and `load_hardware` for the names.

    ``gpus`` alone means tensor parallel. A setting whose first field is an accelerator's is applied there.

    Raises:
        KvcalcError: what cannot be found, read or combined.
    """
    from kvcalc.plan.deployment import deploy, parallel_sizes

    mine, theirs = _split_settings(settings, with_hardware=gpu is not None)
    return deploy(
        load_model(model, settings=mine),
        hardware=None if gpu is None else load_hardware(gpu, settings=theirs),
        parallel=parallel_sizes(
            gpus=gpus, tensor=tensor_parallel, pipeline=pipeline_parallel, expert=expert_parallel, data=data_parallel
        ),
        weights=weights,
        kv=kv_dtype,
        key=key_dtype,
        value=value_dtype,
        activations=activations,
    )


_HARDWARE_FIELDS = frozenset(HardwareProfile.__dataclass_fields__) - {
    "name",
    "aliases",
    "sources",
    "provenance",
    "notes",
}


def _split_settings(settings: Sequence[str], *, with_hardware: bool) -> tuple[list[str], list[str]]:
    mine: list[str] = []
    theirs: list[str] = []
    for setting in settings:
        field = setting.partition("=")[0].partition(".")[0].strip()
        is_hardware = field in _HARDWARE_FIELDS - {"architecture"}
        if is_hardware and not with_hardware:
            raise InputError(f"--set {field} is a field of an accelerator, and none is given", hint="give --gpu")
        (theirs if is_hardware else mine).append(setting)
    return mine, theirs


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
    engine: str = "vllm",
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
        engine: whose memory model is used: ``vllm``, ``llama.cpp``, ``transformers`` or ``ideal``.
        options: the engine's options.
        context: tokens of each sequence.
        batch: sequences.
        kv_memory_bytes: memory for the cache on each GPU; skips the budget, and no accelerator is needed.
        activation_bytes: peak of activations, where it is known.
        overhead_bytes: context, buffers and graphs, where they are known.

    Raises:
        InputError: neither an accelerator nor a memory for the cache, or sizes that make no sense.
        UnsupportedError: a model or arrangement that the engine's memory model does not describe.
    """
    from kvcalc.plan.fit import BudgetTerms, fit_report

    terms = BudgetTerms(kv_bytes=kv_memory_bytes, activation_bytes=activation_bytes, overhead_bytes=overhead_bytes)
    return fit_report(deployment, engine=engine, options=options, terms=terms, context=context, batch=batch)


def decode(
    deployment: Deployment, *, batches: Sequence[int] = (1,), contexts: Sequence[int] | None = None
) -> DecodeReport:
    """Return the bound on decoding for each batch and context.

    Raises:
        InputError: no accelerator, or a batch or context below one.
    """
    from kvcalc.plan.decode import decode_report

    return decode_report(deployment, batches=batches, contexts=contexts)


def prefill(
    deployment: Deployment, *, batches: Sequence[int] = (1,), prompts: Sequence[int] | None = None
) -> PrefillReport:
    """Return the bound on prefill for each batch and prompt.

    Raises:
        InputError: no accelerator, or a batch or prompt below one.
    """
    from kvcalc.plan.prefill import prefill_report

    return prefill_report(deployment, batches=batches, prompts=prompts)


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


def reconcile(
    text: str,
    *,
    model: str | Path | ModelProfile | None = None,
    engine: str | None = None,
    settings: Sequence[str] = (),
) -> ReconcileReport:
    """Return the numbers that an engine's start-up log prints against those computed from its model and options.

    Args:
        text: the log of vLLM, SGLang or llama.cpp.
        model: the model, where the log does not tell or tells a name that is not known.
        engine: look at the start-ups of this engine alone.
        settings: fields of the model to replace, as ``path=value``.

    Raises:
        InputError: the log tells of no engine, or its model cannot be identified.
        UnsupportedError: the model's cache in that engine is not modelled.
    """
    from functools import cache

    from kvcalc.engines.logs import read_log
    from kvcalc.plan.reconcile import check_engine, reconcile_report

    if engine is not None:
        engine = check_engine(engine)
    given = None if model is None else load_model(model, settings=settings)
    named = cache(lambda printed: load_model(_logged_model(printed), settings=settings))
    return reconcile_report(read_log(text), lambda found: given or named(found.model), engine=engine)


def _logged_model(printed: str | None) -> ModelProfile:
    """Return the model that a log names, from the catalogue: nothing is fetched."""
    from kvcalc.engines.logs import model_names
    from kvcalc.profiles.catalog import find
    from kvcalc.profiles.loader import load_model_file

    names, known = model_names(printed or ""), set(profile_names("model"))
    # the name as printed, then the catalogue's own names, then the aliases: a search in vain reads every profile
    for name in (*names[:1], *(name for name in names[1:] if name in known), *names[1:]):
        try:
            entry = find(name, "model")
        except UnknownNameError:
            continue
        return load_model_file(entry.path, trusted=entry.shipped)
    told = f"the log names {printed!r}, which is in no catalogue" if printed else "the log names no model"
    raise InputError(told, hint="give it with --model")


@overload
def explain(
    report: Literal["size", "decode", "prefill"], deployment: Deployment, *, context: int | None = ..., batch: int = ...
) -> tuple[ExplainedStep, ...]: ...
@overload
def explain(report: Literal["roofline"], deployment: HardwareProfile) -> tuple[ExplainedStep, ...]: ...
def explain(
    report: str, deployment: Deployment | HardwareProfile, *, context: int | None = None, batch: int = 1
) -> tuple[ExplainedStep, ...]:
    """Return the formulas behind a report, with the numbers put in and their sources.

    Args:
        report: ``size``, ``decode``, ``prefill`` or ``roofline``.
        deployment: what the report was about (for ``roofline``, the accelerator).
        context: tokens attended, or of the prompt.
        batch: sequences.
    """
    from kvcalc.plan import explain as steps
    from kvcalc.plan.deployment import default_context

    if isinstance(deployment, HardwareProfile):
        return steps.explain_roofline(deployment)
    tokens = default_context(deployment.model) if context is None else context
    if report == "size":
        return steps.explain_size(deployment, context=tokens, batch=batch)
    if report == "prefill":
        return steps.explain_prefill(deployment, batch=batch, prompt=tokens)
    return steps.explain_decode(deployment, batch=batch, context=tokens)
