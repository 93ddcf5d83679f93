"""One JSON address for each report: the object of ``--json``, and beside it its chart, its command and its formulas."""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import lru_cache, partial
from shlex import quote
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import anyio
from starlette.responses import Response
from starlette.routing import Route

from kvcalc import api
from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.explore.fields import FieldError, of_field, read_fields
from kvcalc.explore.questions import QUESTIONS, looked_up
from kvcalc.explore.sides import compare_sides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.requests import Request

    # Takes a query's names and texts, and the body where there is one.
    _Work = Callable[[list[tuple[str, str]], str | None], Response]

__all__ = ["Turns", "answer", "routes"]

_MOST_WAITING = 64
_MOST_KEPT = 512
_MOST_KEPT_BYTES = 200_000
_BUSY = {"what": "too much is being computed at once", "hint": "try again in a moment", "field": ""}
_REFUSED = 422
_ENGINES = ("vllm", "sglang", "llama.cpp", "transformers", "ideal")


class Turns:
    """Lets calculators run one after the other and simulations beside them one after the other, in order of arrival."""

    def __init__(self) -> None:
        self._limits = {slow: anyio.CapacityLimiter(1) for slow in (False, True)}

    async def take(self, work: Callable[[], Response], *, slow: bool) -> Response:
        """Return what the work returns, or that there is too much waiting already."""
        limit = self._limits[slow]
        if limit.statistics().tasks_waiting >= _MOST_WAITING:
            return _json({"error": _BUSY}, status=503)
        return await anyio.to_thread.run_sync(work, limiter=limit)


class _Kept:
    """The answers given last: a slider is moved back and forth, and a figure is looked at more than once.

    A key must hold all that an answer follows from, users' profiles included.
    """

    def __init__(self) -> None:
        self._bodies: OrderedDict[object, bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, key: object) -> bytes | None:
        with self._lock:
            if key in self._bodies:
                self._bodies.move_to_end(key)
            return self._bodies.get(key)

    def put(self, key: object, body: bytes) -> None:
        if len(body) > _MOST_KEPT_BYTES:
            return
        with self._lock:
            self._bodies[key] = body
            if len(self._bodies) > _MOST_KEPT:
                self._bodies.popitem(last=False)


def routes(turns: Turns) -> list[Route]:
    """Return the addresses below ``/api``."""
    kept = _Kept()
    found = [
        Route(f"/{name}", _endpoint(partial(_remembered, name, partial(answer, name), kept), turns, slow=question.slow),
              methods=["GET", "POST"] if question.takes_config else ["GET"])
        for name, question in QUESTIONS.items()
    ]  # fmt: skip
    return [
        *found,
        Route("/engines", _endpoint(partial(_remembered, "engines", _by_engine, kept), turns), methods=["GET", "POST"]),
        Route("/compare", _endpoint(partial(_remembered, "compare", _compared, kept), turns), methods=["GET"]),
        Route("/reconcile", _endpoint(_reconciled, turns), methods=["POST"]),
        Route("/catalogue", _endpoint(_catalogue, turns), methods=["GET"]),
    ]


def _endpoint(work: _Work, turns: Turns, *, slow: bool = False) -> Any:
    async def endpoint(request: Request) -> Response:
        body = await request.body() if request.method == "POST" else None
        try:
            asked = parse_qsl(request.url.query, keep_blank_values=True, max_num_fields=64, errors="strict")
            text = None if body is None else body.decode("utf-8")
        except ValueError:
            return _mistake(InputError("the question is not UTF-8, or has too many fields"), "")
        return await turns.take(lambda: _told(work, asked, text), slow=slow)

    return endpoint


def _told(work: _Work, asked: list[tuple[str, str]], text: str | None) -> Response:
    try:
        with api.noting_origins():
            return work(asked, text)
    except FieldError as wrong:
        return _mistake(wrong.error, wrong.field)
    except KvcalcError as error:
        return _mistake(error, "")


def _mistake(error: KvcalcError, field: str) -> Response:
    return _json({"error": {"what": error.what, "hint": error.hint, "field": field}}, status=_REFUSED)


def _json(data: Any, *, status: int = 200) -> Response:
    return Response(_bytes(data), status_code=status, media_type="application/json")


def _bytes(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


def _remembered(
    name: str,
    make: Callable[[list[tuple[str, str]], str | None], dict[str, Any]],
    kept: _Kept,
    asked: list[tuple[str, str]],
    text: str | None,
) -> Response:
    """Return the answer that was given last to the same question, while no profile has changed, or make one."""
    key = (api.catalogue_stamp(), name, tuple(asked)) if text is None else None
    body = kept.get(key)
    if body is None:
        body = _bytes(make(asked, text))
        if key is not None:
            kept.put(key, body)
    return Response(body, media_type="application/json")


def answer(name: str, asked: Iterable[tuple[str, str]], config: str | None = None) -> dict[str, Any]:
    """Return a report's data with ``command``, ``charts`` by their names, and ``explain`` where it was asked for.

    Args:
        name: a key of `QUESTIONS`.
        asked: names and texts of fields; ``explain`` is ``true`` for the formulas.
        config: the text of a model's config, in place of the field ``model``.

    Raises:
        FieldError: a mistake that is in one field, as far as can be told.
    """
    question = QUESTIONS[name]
    values = read_fields(asked, (*question.fields, "explain"), question.special)
    pasted = None
    if config is not None:
        with of_field("config"):
            if "model" in values.read:
                raise InputError("a pasted config stands for the model: leave the model out")
            pasted = api.config_model(config)
    try:
        found = question.ask(values, pasted)
        explained = found.explained() if values.get("explain") and found.explained else ()
    except KvcalcError as error:
        raise FieldError(error, values.field_of(error)) from error
    data = api.report_data(found.report, explained=explained)
    data["command"] = question.command_line(values, pasted=config is not None)
    data["charts"] = {view or "main": chart for view in question.views if (chart := _chart(found.report, view))}
    return data


def _chart(report: Any, view: str) -> dict[str, Any] | None:
    try:
        return api.chart(report, view=view)
    except InputError:
        return None  # a fit without a budget, a roofline without models


def _by_engine(asked: list[tuple[str, str]], text: str | None) -> dict[str, Any]:
    """Return the fit of each engine, or why there is none."""
    rows: list[dict[str, Any]] = []
    for engine in _ENGINES:
        try:
            rows.append({"engine": engine, "fit": answer("fit", [*asked, ("engine", engine)], text)})
        except FieldError as wrong:
            rows.append({"engine": engine, "refused": wrong.error.what})
    return {"rows": rows}


def _compared(asked: list[tuple[str, str]], text: str | None) -> dict[str, Any]:
    del text
    return compare_sides(asked)


def _reconciled(asked: list[tuple[str, str]], text: str | None) -> Response:
    values = read_fields(asked, ("model", "engine"), {})
    with of_field("model"):
        model = looked_up(api.catalogue_model, values.get("model")) if "model" in values.read else None
    with of_field("log"):
        report = api.reconcile(text or "", model=model, engine=values.get("engine"))
    data = api.report_data(report)
    words = ["kvcalc reconcile engine.log", *(f"--{name} {quote(text)}" for name, text in values.given)]
    data |= {
        "agrees": report.agrees,
        "complete": report.complete,
        "command": " ".join(words),
    }
    return _json(data)


@lru_cache(maxsize=1)
def _names(stamp: tuple[object, ...]) -> bytes:
    del stamp
    found = {kind: [{"name": name, "aliases": list(aliases)} for name, aliases in api.catalogue(kind).items()]
             for kind in ("model", "hardware")}  # fmt: skip
    return _bytes({"models": found["model"], "gpus": found["hardware"]})


def _catalogue(asked: list[tuple[str, str]], text: str | None) -> Response:
    del text
    read_fields(asked, (), {})
    return Response(_names(api.catalogue_stamp()), media_type="application/json")
