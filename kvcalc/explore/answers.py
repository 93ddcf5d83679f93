"""The answer to each question of a page: the object of ``--json``, with its charts, its command and its formulas."""

from __future__ import annotations

import json
import traceback
from functools import lru_cache, partial
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc import api
from kvcalc.core import readers
from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.explore.fields import FieldError, of_field, read_fields
from kvcalc.explore.questions import QUESTIONS, looked_up
from kvcalc.explore.sides import compare_sides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kvcalc.core.model import ModelProfile

__all__ = ["LIMIT_S", "NAMES", "OK", "REFUSED", "RUNTIME", "WARM_UP", "Asked", "Reply", "answer", "mistake", "reply_to"]

OK, REFUSED, FAILED = 200, 422, 500
LIMIT_S = 10.0
# Of the limit, for a simulation; the rest is for its charts and its way to the page.
_SIMULATED_SHARE = 0.9
_MAX_MODELS = 4
_MAX_LAYERS = 1_000
_DRAFT_SHARE = 4
_ENGINES = ("vllm", "sglang", "llama.cpp", "transformers", "ideal")


class Asked(NamedTuple):
    """A question as it comes.

    Args:
        name: one of `NAMES`.
        fields: names and texts of the query.
        text: the body, where there is one.
        live: whether to tell what is known before the answer.
        limit_s: how long the answer may take: a simulation ends itself a little before.
    """

    name: str
    fields: tuple[tuple[str, str], ...] = ()
    text: str | None = None
    live: bool = False
    limit_s: float = LIMIT_S


class Reply(NamedTuple):
    """An answer as it goes out.

    Args:
        status: of HTTP.
        body: JSON.
        fault: what failed where kvcalc itself did, for who runs it.
    """

    status: int
    body: bytes
    fault: str = ""


# The script that draws charts. Making it stops all else in a process for a second, so that a worker does.
RUNTIME = Asked("runtime")
# Loads what most questions need.
WARM_UP = Asked("fit", (("model", "llama3.1-8b"), ("gpu", "h100-sxm")))


def reply_to(asked: Asked, tell: Callable[[bytes], object] | None = None) -> Reply:
    """Return the answer to a question, or what is wrong with it and in which field.

    Args:
        asked: the question.
        tell: is told JSON of what is known before the answer, where the question asks for that and can tell.
    """
    try:
        if asked == RUNTIME:
            return Reply(OK, api.chart_runtime().encode())
        with api.noting_origins():
            if asked.name in QUESTIONS and QUESTIONS[asked.name].live:
                told = partial(_tell, tell) if tell is not None and asked.live else None
                within_s = _SIMULATED_SHARE * asked.limit_s
                return Reply(OK, _json(answer(asked.name, asked.fields, asked.text, so_far=told, within_s=within_s)))
            return Reply(OK, _json(_WORK[asked.name](asked.fields, asked.text)))
    except FieldError as wrong:
        return Reply(REFUSED, mistake(wrong.error.what, wrong.error.hint, wrong.field))
    except KvcalcError as error:
        return Reply(REFUSED, mistake(error.what, error.hint))
    except (MemoryError, RecursionError):
        return Reply(REFUSED, mistake("this takes too much memory, or is nested too deeply"))
    except Exception as error:  # noqa: BLE001  whatever it is, the next question can be answered
        frame = traceback.extract_tb(error.__traceback__)[-1]
        fault = f"/api/{asked.name}: {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        return Reply(FAILED, mistake("kvcalc failed to answer; this is a fault of kvcalc's"), fault)


def _tell(tell: Callable[[bytes], object], so_far: Any) -> None:
    tell(_json({"so_far": api.report_data(so_far)}))


def mistake(what: str, hint: str = "", field: str = "", *, again: bool = False) -> bytes:
    """Return JSON that says what is wrong, what to do about it, the field, and whether asking again may help."""
    return _json({"error": {"what": what, "hint": hint, "field": field} | ({"again": True} if again else {})})


def _json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


def answer(name: str, asked: Iterable[tuple[str, str]], config: str | None = None, **live: Any) -> dict[str, Any]:
    """Return a report's data with ``command``, ``charts`` by their names, and ``explain`` where it was asked for.

    Args:
        name: a key of `QUESTIONS`.
        asked: names and texts of fields; ``explain`` is ``true`` for the formulas.
        config: the text of a model's config, in place of the field ``model``.
        live: for a question that tells what it has come to: ``so_far``, which it tells, and ``within_s``.

    Raises:
        FieldError: a mistake that is in one field, as far as can be told.
    """
    question = QUESTIONS[name]
    values = read_fields(asked, (*question.fields, "explain"), {"explain": readers.flag})
    pasted = None
    if config is not None:
        with of_field("config"):
            if "model" in values.read:
                raise InputError("a pasted config stands for the model: leave the model out")
            pasted = _pasted_model(config)
    try:
        found = question.ask(values, pasted, **live)
        explained = found.explained() if values.get("explain") and found.explained else ()
    except KvcalcError as error:
        raise FieldError(error, error.parameter if error.parameter in question.fields else "") from error
    data = api.report_data(found.report, explained=explained)
    data.setdefault("answer", api.report_sentence(found.report))
    if "command" in data:
        data["engine_command"] = data["command"]
    data["command"] = question.command_line(values, pasted=config is not None)
    data["charts"] = {view or "main": chart for view in question.views if (chart := _chart(found.report, view))}
    return data


@lru_cache(maxsize=_MAX_MODELS)
def _pasted_model(config: str) -> ModelProfile:
    """Return the model of a config's text: one object for the same text, so that what follows from it is remembered."""
    model = api.config_model(config)
    if len(model.blocks) > _MAX_LAYERS:
        raise InputError(f"a pasted model has at most {_MAX_LAYERS:,} layers here, not {len(model.blocks):,}",
                         hint="kvcalc size --model config.json takes more")  # fmt: skip
    return model


def _chart(report: Any, view: str) -> dict[str, Any] | None:
    try:
        return api.chart(report, view=view)
    except InputError:
        return None  # a fit without a budget, a roofline without models


def _by_engine(asked: Iterable[tuple[str, str]], text: str | None) -> dict[str, Any]:
    """Return the fit of each engine, or why there is none."""
    rows: list[dict[str, Any]] = []
    for engine in _ENGINES:
        try:
            rows.append({"engine": engine, "fit": answer("fit", [*asked, ("engine", engine)], text)})
        except FieldError as wrong:
            rows.append({"engine": engine, "refused": wrong.error.what})
    return {"rows": rows}


def _compared(asked: Iterable[tuple[str, str]], text: str | None) -> dict[str, Any]:
    del text
    return compare_sides(asked)


def _reconciled(asked: Iterable[tuple[str, str]], text: str | None) -> dict[str, Any]:
    values = read_fields(asked, ("model", "gpu", "engine"), {})
    with of_field("model"):
        model = looked_up(api.catalogue_model, values.get("model")) if "model" in values.read else None
    with of_field("gpu"):
        gpu = looked_up(api.catalogue_hardware, values.get("gpu")) if "gpu" in values.read else None
    with of_field("log"):
        report = api.reconcile(text or "", model=model, engine=values.get("engine"), gpu=gpu)
    words = ["kvcalc reconcile engine.log", *(f"--{name} {quote(text)}" for name, text in values.given)]
    agreement = {"agrees": report.agrees, "complete": report.complete}
    return api.report_data(report) | agreement | {"command": " ".join(words)}


def _catalogue(asked: Iterable[tuple[str, str]], text: str | None) -> dict[str, Any]:
    del text
    read_fields(asked, (), {})
    models = {name: api.catalogue_model(name) for name in api.profile_names("model")}
    gpus = {name: api.catalogue_hardware(name) for name in api.profile_names("hardware")}
    sizes = {name: _parameters(model) for name, model in models.items()}
    return {
        "choices": api.parameter_choices(),
        "models": [{"name": name, "aliases": model.aliases, "architecture": model.architecture,
                    "parameters": sizes[name], "draft": _draft(name, models, sizes)} for name, model in models.items()],
        "gpus": [{"name": name, "aliases": gpu.aliases, "title": gpu.title, "memory_bytes": gpu.memory_label_bytes,
                  "memory_bandwidth_bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
                  "links": {kind: {"name": link.name, "bytes_per_s": link.bytes_per_s, "gpus": link.gpus}
                            for kind, link in gpu.links.items()}} for name, gpu in gpus.items()],
    }  # fmt: skip


def _draft(name: str, models: Mapping[str, ModelProfile], sizes: Mapping[str, int | None]) -> str | None:
    """Return the smallest model that could draft for another: of its architecture and vocabulary, at most a fourth."""
    model, size = models[name], sizes[name]
    if size is None:
        return None
    alike = {(each, other) for other, each in sizes.items() if each is not None and _DRAFT_SHARE * each <= size
             and models[other].architecture == model.architecture
             and _rows(models[other]) == _rows(model)}  # fmt: skip
    return min(alike)[1] if alike else None


def _rows(model: ModelProfile) -> int:
    return model.embeddings[0].rows if model.embeddings else 0


def _parameters(model: ModelProfile) -> int | None:
    try:
        return api.parameter_count(model)
    except KvcalcError:
        return None  # one of a user's own that cannot be computed with


_WORK: dict[str, Callable[[Iterable[tuple[str, str]], str | None], dict[str, Any]]] = {
    **{name: partial(answer, name) for name in QUESTIONS},
    "engines": _by_engine,
    "compare": _compared,
    "reconcile": _reconciled,
    "catalogue": _catalogue,
}
NAMES = tuple(_WORK)
