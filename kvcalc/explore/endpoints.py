"""One JSON address for each question: read, looked up among the answers given last, else computed in its turn."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kvcalc import api
from kvcalc.child import ChildEndedError
from kvcalc.explore.answers import NAMES, RUNTIME, Asked, Reply, mistake
from kvcalc.explore.questions import QUESTIONS
from kvcalc.explore.turns import SERVER, BusyError, TooSlowError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from starlette.requests import Request

    from kvcalc.explore.turns import Pace, Tell, Workers

    Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

__all__ = ["routes", "runtime", "tell_fault"]

_T = TypeVar("_T")

_OK = 200
# One line of JSON for each thing that is known before the answer, and the answer as the last.
_LINES = "application/x-ndjson"
_BODY_S = 20.0
_MAX_KEPT = 512
_MAX_FAULT = 300
_MAX_KEPT_BYTES = 200_000
_POST_ONLY, _EITHER = {"reconcile"}, {"engines"}


class _Kept:
    """The answers given last: a slider is moved back and forth, and a figure is looked at more than once.

    A key must hold all that an answer follows from, users' profiles included.
    """

    def __init__(self) -> None:
        self._replies: OrderedDict[object, Reply] = OrderedDict()

    def get(self, key: object) -> Reply | None:
        if key in self._replies:
            self._replies.move_to_end(key)
        return self._replies.get(key)

    def put(self, key: object, reply: Reply) -> None:
        if reply.status != _OK or len(reply.body) > _MAX_KEPT_BYTES:
            return
        self._replies[key] = reply
        if len(self._replies) > _MAX_KEPT:
            self._replies.popitem(last=False)


@lru_cache(maxsize=100)
def tell_fault(what: str) -> None:
    """Write what failed to standard error, once: whoever asks must not fill what nobody may be reading."""
    sys.stderr.write(f"error: {what[:_MAX_FAULT]}\n")


def routes(workers: Workers) -> list[Route]:
    """Return the addresses below ``/api``."""
    kept = _Kept()
    return [Route(f"/{name}", _endpoint(name, workers, kept), methods=_methods(name)) for name in NAMES]


def _methods(name: str) -> list[str]:
    if name in _POST_ONLY:
        return ["POST"]
    return ["GET", "POST"] if name in _EITHER or (name in QUESTIONS and QUESTIONS[name].takes_config) else ["GET"]


def runtime(workers: Workers) -> Endpoint:
    """Return the endpoint of the script that draws charts."""

    async def answer(request: Request) -> Response:
        del request
        reply = await workers.once(RUNTIME)
        return Response(reply.body, media_type="text/javascript", headers={"Cache-Control": "max-age=3600"})

    return _or_why_not(answer, workers.limit_s)


def _endpoint(name: str, workers: Workers, kept: _Kept) -> Endpoint:
    async def answer(request: Request) -> Response:
        asked = (await _read(name, request))._replace(limit_s=workers.limit_s)
        if asked.live:
            return await _live(asked, request, workers, kept)
        return _response(await _unless_left(_answered(asked, _client(request), workers, kept), request))

    return _or_why_not(answer, workers.limit_s)


def _or_why_not(answer: Endpoint, limit_s: float) -> Endpoint:
    """Wrap an endpoint so that it says why there is no answer within a limit."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except ClientDisconnect:
            return Response(status_code=_OK)  # nobody reads it
        except tuple(_WHY_NOT) as error:
            return _response(_why_not(error, limit_s))

    return endpoint


_WHY_NOT: dict[type[Exception], tuple[int, str, str]] = {
    ValueError: (422, "the question is not UTF-8, or has too many fields", ""),
    TimeoutError: (408, "what is sent must arrive within {body_s:g} s", ""),
    BusyError: (503, "too much is being computed at once", "try again in a moment"),
    TooSlowError: (
        422,
        "this takes longer than {limit_s:g} s",
        "a larger --seconds-per-question of kvcalc explore allows it; other commands have no limit",
    ),
    ChildEndedError: (500, "computing this ended its process: it may have run out of memory", ""),
}


def _why_not(error: Exception, limit_s: float) -> Reply:
    """Reply with the reason for there being no answer."""
    status, what, hint = next(told for kind, told in _WHY_NOT.items() if isinstance(error, kind))
    return Reply(
        status, mistake(what.format(body_s=_BODY_S, limit_s=limit_s), hint, again=not isinstance(error, ValueError))
    )


async def _live(asked: Asked, request: Request, workers: Workers, kept: _Kept) -> Response:
    """Respond with a line for each interim result and one for the answer, or with the answer where it comes first."""
    told: asyncio.Queue[bytes | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def tell(line: bytes) -> None:
        loop.call_soon_threadsafe(told.put_nowait, line)

    answering = asyncio.create_task(_answered(asked, _client(request), workers, kept, tell))
    answering.add_done_callback(lambda _: told.put_nowait(None))
    try:
        first = await _unless_left(told.get(), request)
    except BaseException:
        answering.cancel()
        raise
    if first is None:
        return _response(answering.result())
    return StreamingResponse(_lines(first, told, answering, request, asked), media_type=_LINES)


async def _lines(
    line: bytes | None,
    told: asyncio.Queue[bytes | None],
    answering: asyncio.Task[Reply],
    request: Request,
    asked: Asked,
) -> AsyncIterator[bytes]:
    """Yield lines as they are told; when whoever asked leaves, the answer is given up."""
    try:
        while line is not None:
            yield line + b"\n"
            line = await _unless_left(told.get(), request)
        yield answering.result().body + b"\n"
    except ClientDisconnect:
        return
    except tuple(_WHY_NOT) as error:
        yield _why_not(error, asked.limit_s).body + b"\n"
    finally:
        answering.cancel()


async def _read(name: str, request: Request) -> Asked:
    """Read a question from a request.

    Raises:
        ValueError: it is not UTF-8, or has too many fields.
        TimeoutError: its body is sent too slowly.
        ClientDisconnect: whoever asked has left.
    """
    text = None
    if request.method == "POST":
        async with asyncio.timeout(_BODY_S):
            text = (await request.body()).decode("utf-8-sig")
    fields = parse_qsl(request.url.query, keep_blank_values=True, max_num_fields=64, errors="strict")
    return Asked(name, tuple(fields), text, live=_LINES in request.headers.get("accept", ""))


def _client(request: Request) -> str:
    return request.client.host if request.client else "unknown"


async def _answered(asked: Asked, client: str, workers: Workers, kept: _Kept, tell: Tell | None = None) -> Reply:
    """Return the answer that was given last to the same question, while no profile has changed, or a new one."""
    given = asked._replace(text=asked.text and sha256(asked.text.encode()).hexdigest(), live=False)
    stamp = await asyncio.to_thread(api.catalogue_stamp)
    reply = kept.get((stamp, given))
    if reply is None:
        asker = SERVER if asked.name == "catalogue" else client  # its answer is the same for all clients
        reply = await workers.answer(asked, client=asker, pace=_pace(asked), tell=tell)
        if reply.fault:
            tell_fault(reply.fault)
        if stamp == await asyncio.to_thread(api.catalogue_stamp):
            kept.put((stamp, given), reply)
    return reply


def _pace(asked: Asked) -> Pace:
    if asked.name == "catalogue" or (asked.name in QUESTIONS and QUESTIONS[asked.name].slow):
        return "slow"
    return "quick" if asked.text is None else "pasted"


async def _unless_left(awaited: Coroutine[Any, Any, _T], request: Request) -> _T:
    """Await a result, which is given up when whoever asked leaves.

    Raises:
        ClientDisconnect: whoever asked has left.
    """
    answer = asyncio.create_task(awaited)
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            leaving.result()
            raise ClientDisconnect
        return answer.result()
    finally:
        for task in (answer, leaving):
            if not task.cancel() and not task.cancelled():
                task.exception()  # seen, whichever is told


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _response(reply: Reply) -> Response:
    return Response(reply.body, status_code=reply.status, media_type="application/json")
