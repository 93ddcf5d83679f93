"""Deployments: a model on accelerators, as a question is asked about it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, about
from kvcalc.core.identity import ById
from kvcalc.core.readers import AUTO, memory, texts, whole
from kvcalc.core.units import bytes_text
from kvcalc.questions.arguments import check_options
from kvcalc.sources import load_hardware, load_model, typed_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment

__all__ = ["deployment", "engine_options", "placed", "served"]

_MAX_KEPT = 64
# An option of llama.cpp whose name means something else to those who ask about another engine.
_INSTEAD = {"batch-size": "write --batch for sequences at once"}
_SIZES = ("gpus", "tensor-parallel", "pipeline-parallel", "expert-parallel", "data-parallel")


def deployment(
    model: str | Path | ModelProfile,
    *,
    gpu: str | Path | HardwareProfile | None = None,
    memory_bytes: int | None = None,
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
    engine: str | None = None,
    options: EngineOptions | None = None,
    towers: bool | None = None,
    settings: Sequence[str] = (),
    price_per_hour_usd: float | None = None,
    power_share: float | None = None,
) -> Deployment:
    """Return a model on accelerators, in formats, spread as asked; see `load_model` and `load_hardware` for the names.

    ``gpus`` alone means tensor parallel, where the heads can be shared so; else as many ranks as share them, times
    pipeline stages. With an engine, formats and defaults are those that it starts with. Towers for images and sound are
    loaded unless ``towers`` is false. ``memory_bytes`` is the memory of each accelerator, where it is another than its
    profile's (a Mac's, a laptop's). A setting whose first field is an accelerator's is applied there. Costs are
    computed with the price of a GPU-hour, where the profile has none or another is given, and with a share of the rated
    power, the whole unless one is given.

    Raises:
        KvcalcError: what cannot be found, read or combined.
    """
    from kvcalc.engines.checkpoint import engine_named
    from kvcalc.plan.arrangements import spread
    from kvcalc.plan.deployment import deploy
    from kvcalc.plan.economics import with_costs

    sizes = (gpus, tensor_parallel, pipeline_parallel, expert_parallel, data_parallel)
    gpus, tensor_parallel, pipeline_parallel, expert_parallel, data_parallel = (
        None if size is None else whole(size, name) for name, size in zip(_SIZES, sizes, strict=True)
    )
    if memory_bytes is not None:
        memory_bytes = memory(memory_bytes, "memory")
    for what, given in (("weights", weights), ("kv-dtype", kv_dtype), ("activations", activations), ("engine", engine)):
        if given is not None and not isinstance(given, str):
            raise InputError(f"{what} takes one text, not {given!r:.60}", parameter=what)
    engine = None if engine is None else engine_named(engine)
    weights, kv_dtype, activations = (None if each == AUTO else each for each in (weights, kv_dtype, activations))
    weights = weights or typed_recipe(model)
    if memory_bytes is not None and gpu is None:
        hint = "give --gpu; fit takes a card by its memory: --device 24GiB"
        raise InputError("a memory size needs an accelerator, and none is given", hint=hint)
    check_options(options)
    mine, theirs = _split_settings(texts(settings, "set"), with_hardware=gpu is not None)
    with about("model"):
        loaded = load_model(model, settings=mine, weights=weights)
    if towers is False:
        loaded = loaded.text_only("--no-towers, an engine's --language-model-only")
    with about("gpu"):
        hardware = None if gpu is None else load_hardware(gpu, settings=theirs, memory_bytes=memory_bytes)
    parallel, notes = spread(
        loaded,
        gpus=gpus,
        tensor=tensor_parallel,
        pipeline=pipeline_parallel,
        expert=expert_parallel,
        data=data_parallel,
        engine=engine,
    )
    deployed = deploy(
        loaded,
        hardware=hardware,
        parallel=parallel,
        weights=weights,
        kv=kv_dtype,
        key=key_dtype,
        value=value_dtype,
        activations=activations,
        engine=engine,
        options=options,
    )
    deployed = replace(deployed, layout_notes=(*notes, *_memory_notes(hardware, memory_bytes)))
    return with_costs(deployed, price_per_hour_usd=price_per_hour_usd, power_share=power_share)


def _memory_notes(hardware: HardwareProfile | None, memory_bytes: int | None) -> tuple[str, ...]:
    """Note the memory that programs see of one that was asked for as the driver reports it."""
    if hardware is None or memory_bytes is None or hardware.usable_memory_bytes == memory_bytes:
        return ()
    asked, seen = bytes_text(memory_bytes), bytes_text(hardware.usable_memory_bytes)
    return (f"{asked} as the driver reports it; programs can use {seen}",)


_SHARED_FIELDS = {"name", "architecture", "aliases", "sources", "provenance", "notes"}


def _split_settings(settings: Sequence[str], *, with_hardware: bool) -> tuple[list[str], list[str]]:
    if not settings:
        return [], []
    from kvcalc.core.hardware import HardwareProfile

    # fields that both kinds of profile have are the model's
    fields = set(HardwareProfile.__dataclass_fields__) - _SHARED_FIELDS
    mine: list[str] = []
    theirs: list[str] = []
    for setting in settings:
        field = setting.partition("=")[0].partition(".")[0].strip()
        is_hardware = field in fields
        if is_hardware and not with_hardware:
            raise InputError(f"--set {field} is a field of an accelerator, and none is given", hint="give --gpu")
        (theirs if is_hardware else mine).append(setting)
    return mine, theirs


def engine_options(engine: str | None, given: Mapping[str, Any]) -> EngineOptions | None:
    """Return an engine's options, or none where none are given.

    Args:
        engine: the engine; none where none is asked about.
        given: fields of `EngineOptions`.

    Raises:
        InputError: an option that the engine does not have.
    """
    from kvcalc.engines.checkpoint import FRONTS
    from kvcalc.questions.groups import Engine

    base = FRONTS.get(engine or "", engine)
    foreign = (each for name, each in Engine.params.items() if each.engines and name in given)
    for option in foreign:
        if base not in option.engines and engine not in option.engines:
            raise InputError(
                f"--{option.name} is an option of {' or '.join(option.engines)}",
                hint=f"add --engine {option.engines[0]}, or {_INSTEAD.get(option.name, 'leave it out')}",
                parameter=option.name,
            )
    if not given:
        return None
    from kvcalc.engines.options import EngineOptions

    if engine in FRONTS:
        from kvcalc.engines.llama_cpp.fronts import check_front, front_defaults

        check_front(engine, given)
        return EngineOptions(**{"front": engine, **front_defaults(engine), **given})
    return EngineOptions(**given)


def served(deployment: Deployment, engine: str | None = None, given: Mapping[str, Any] | None = None) -> Deployment:
    """Return a deployment as an engine started with some options runs it; unchanged where neither is given.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        engine: the engine; the usual one for such weights and cards where only options are given.
        given: fields of `EngineOptions`.

    Raises:
        InputError: an option that the engine does not have, or an engine that is not known.
    """
    from kvcalc.plan.deployment import started

    if engine is None and not given:
        return deployment
    name = engine or deployment.served_by
    return started(deployment, name, engine_options(name, given or {}))


def placed(
    model: str | Path | ModelProfile, engine_given: Mapping[str, Any], *, is_started: bool = False, **asked: Any
) -> Deployment:
    """Return a deployment as its engine runs it; one object for one question asked again of the same profiles.

    Args:
        model: the model.
        engine_given: fields of `EngineOptions`.
        is_started: whether an engine is started even where none is asked for: the usual one.
        asked: arguments of `deployment`.

    Raises:
        KvcalcError: as `deployment` and `served`.
    """
    gpu = asked.get("gpu")
    if isinstance(model, str | Path) or isinstance(gpu, str | Path):
        return _started(_deployed(model, engine_given, asked), asked, engine_given, is_started=is_started)
    rest = {name: value for name, value in asked.items() if name != "gpu"}
    return _kept(ById(model), ById(gpu), tuple(rest.items()), tuple(engine_given.items()), is_started)


def _deployed(model: Any, engine_given: Mapping[str, Any], asked: Mapping[str, Any]) -> Deployment:
    """Return a deployment with the engine's options where one is asked for: they say which towers are loaded."""
    engine = asked.get("engine")
    options = None if engine is None else engine_options(engine, engine_given)
    return deployment(model, **asked, options=options)


def _started(
    deployed: Deployment, asked: Mapping[str, Any], engine_given: Mapping[str, Any], *, is_started: bool
) -> Deployment:
    engine = asked.get("engine") or (deployed.served_by if is_started else None)
    return served(deployed, engine, engine_given)


@lru_cache(maxsize=_MAX_KEPT)
def _kept(
    model: ById[Any],
    gpu: ById[Any],
    asked: tuple[tuple[str, Any], ...],
    engine_given: tuple[tuple[str, Any], ...],
    is_started: bool,  # noqa: FBT001  a key of the cache
) -> Deployment:
    options, given = dict(asked), dict(engine_given)
    deployed = _deployed(model.value, given, {"gpu": gpu.value, **options})
    return _started(deployed, options, given, is_started=is_started)
