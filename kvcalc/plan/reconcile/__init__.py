"""An engine's start-up log held against the prediction: each printed number, computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, KvcalcError, did_you_mean
from kvcalc.core.reports.reconcile import ReconcileReport
from kvcalc.plan.reconcile.findings import start_up_name
from kvcalc.plan.reconcile.llama_cpp import reconcile_llama_cpp
from kvcalc.plan.reconcile.llama_memory import memory_notes
from kvcalc.plan.reconcile.refused import limits_of, printed_gpu_bytes, refusal_of, refused_memory, remedies_of
from kvcalc.plan.reconcile.remedies import llama_cpp_offload
from kvcalc.plan.reconcile.sglang import reconcile_sglang
from kvcalc.plan.reconcile.vllm import reconcile_vllm
from kvcalc.plan.reconcile.weights import reconcile_weights
from kvcalc.plan.reconcile.words import llama_cpp_advice, sglang_advice, vllm_advice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.reconcile import ReconcileRow
    from kvcalc.engines.logs import StartUp
    from kvcalc.engines.logs.records import Engine

__all__ = ["check_engine", "printed_gpu_bytes", "reconcile_report", "reconcile_start_up"]

_ENGINES: dict[str, Engine] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama.cpp": "llama.cpp",
    "llama_cpp": "llama.cpp",
    "ollama": "llama.cpp",
}

# Start-ups that are computed: the last ones. Of those that printed the same, as in a crash loop, the first counts.
_MAX_SHOWN = 32


def check_engine(engine: str) -> Engine:
    """Return an engine's name as start-ups have it.

    Raises:
        InputError: an engine whose log is not read.
    """
    name = engine.strip().lower()
    if name not in _ENGINES:
        hint = did_you_mean(name, _ENGINES) or f"engines: {', '.join(_ENGINES)}"
        raise InputError(f"the log of engine {engine!r} cannot be read", hint=hint)
    return _ENGINES[name]


def reconcile_start_up(
    start_up: StartUp, model: ModelProfile
) -> tuple[tuple[ReconcileRow, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the rows of one start-up, what to change, and notes.

    Args:
        start_up: what was read from the log.
        model: the model it ran.

    Raises:
        KvcalcError: the model's cache in this engine is not modelled.
    """
    if start_up.engine == "vllm":
        outcome = reconcile_vllm(start_up, model)
        weights, notes = reconcile_weights(start_up, model)
        return (*weights, *outcome.rows), vllm_advice(start_up, outcome.setup), notes
    if start_up.engine == "sglang":
        return reconcile_sglang(start_up, model), sglang_advice(start_up, model), ()
    advice = llama_cpp_advice(start_up)
    if start_up.refusal is None:
        advice = (*advice, *llama_cpp_offload(start_up, model))
    rows, notes = reconcile_llama_cpp(start_up, model)
    return rows, advice, (*notes, *memory_notes(start_up))


def reconcile_report(
    start_ups: Sequence[StartUp],
    model_of: Callable[[StartUp], ModelProfile],
    *,
    engine: str | None = None,
    hardware: HardwareProfile | None = None,
) -> ReconcileReport:
    """Return a log's printed numbers against the predicted.

    Args:
        start_ups: the start-ups read from it.
        model_of: finds the model of a start-up; it raises a `KvcalcError` where it cannot be identified.
        engine: the engine to look at; all of them where left out.
        hardware: the accelerator, for flags that would start what was refused.

    Raises:
        InputError: the log tells of no engine, or not of the one asked for.
        KvcalcError: no start-up could be held against anything; the error is that of the last.
    """
    chosen = _distinct(start_up for start_up in start_ups if engine in (None, start_up.engine))
    if not chosen:
        raise _nothing_found(start_ups, engine)
    notes = _notes(chosen)
    left_out = [start_up_name(start_up) for start_up in chosen[:-_MAX_SHOWN]]
    if any("earlier" in start_up.events for start_up in chosen):
        left_out.insert(0, f"starts before line {min(start_up.line for start_up in chosen)}")
    if left_out:
        notes.append(f"not computed, as there are too many: {', '.join(left_out)}")
    rows: list[ReconcileRow] = []
    advice: tuple[str, ...] = ()
    models: list[ModelProfile] = []
    last, model_of_last = chosen[-1], None
    failure: KvcalcError | None = None
    for start_up in chosen[-_MAX_SHOWN:]:
        try:
            model = model_of(start_up)
            more, advice, log_notes = reconcile_start_up(start_up, model)
        except KvcalcError as error:
            failure = error
            left_out.append(start_up_name(start_up))
            notes.append(f"{start_up_name(start_up)}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
            continue
        rows += more
        notes += [f"{start_up_name(start_up)}: {note}" for note in log_notes]
        models.append(model)
        model_of_last = model if start_up is last else None
    if failure is not None and not models and last.refusal is None:
        raise failure
    remedies = remedies_of(last, model_of_last, hardware) if last.refusal and model_of_last is not None else None
    if remedies is not None and model_of_last is not None:
        advice = (*advice, *limits_of(last, model_of_last), *(remedy.text for remedy in remedies.found))
        notes += [note for note in (remedies.deduced, remedies.why_none) if note]
    return ReconcileReport(
        engine=_joined(start_up.engine for start_up in chosen),
        version=_joined(start_up.version or "unknown" for start_up in chosen),
        model=_joined(model.name for model in models),
        rows=tuple(rows),
        memory=refused_memory(last, remedies),
        advice=advice,
        refusal=refusal_of(last),
        start_with=remedies.found[0].flags if remedies and remedies.found else "",
        notes=tuple(notes),
        left_out=tuple(left_out),
    )


def _distinct(start_ups: Iterable[StartUp]) -> list[StartUp]:
    """Return each start-up once of those that printed the same, as in a crash loop; the last one comes last."""
    by_content: dict[str, StartUp] = {}
    last = ""
    for start_up in start_ups:
        printed = {name: [number.value for number in numbers] for name, numbers in start_up.printed.items()}
        caches = [(cache.total.value, cache.cells, cache.layers) for cache in start_up.caches]
        refused = start_up.refusal and (start_up.refusal.kind, start_up.refusal.stage)
        content = (start_up.engine, start_up.version, start_up.model, dict(start_up.options), printed, caches, refused)
        last = repr(content)
        by_content.setdefault(last, start_up)
    if by_content:
        by_content[last] = by_content.pop(last)
    return list(by_content.values())


def _nothing_found(start_ups: Sequence[StartUp], engine: str | None) -> InputError:
    if start_ups:
        engines = _joined(start_up.engine for start_up in start_ups)
        return InputError(f"the log has no lines of {engine}", hint=f"it tells of {engines}")
    return InputError(
        "the log holds no number that vLLM, SGLang or llama.cpp print when they start",
        hint="give the part that begins with the engine's configuration and ends when it is ready",
    )


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _notes(chosen: Sequence[StartUp]) -> list[str]:
    notes = []
    if len({start_up.engine for start_up in chosen}) > 1:
        places = ", ".join(map(start_up_name, chosen[-_MAX_SHOWN:]))
        notes.append(f"the log has lines of several engines ({places}); choose one with --engine")
    elif len(chosen) > 1:
        sources = dict.fromkeys(start_up.source for start_up in chosen if start_up.source)
        several = f" of {', '.join(sources)}" if len(sources) > 1 else ""
        notes.append(
            f"{len(chosen)} start-ups{several} printed different numbers; {min(len(chosen), _MAX_SHOWN)} are shown"
        )
    if any("replicas" in start_up.events for start_up in chosen):
        notes.append("the log has several data-parallel replicas; equal ones are shown once")
    return notes
