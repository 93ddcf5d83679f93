"""One JSON address for each question: read, looked up among the answers given last, else computed in its turn."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from kvcalc import api
from kvcalc.child import ChildEndedError
from kvcalc.explore.answers import NAMES, RUNTIME, Asked, Reply, mistake
from kvcalc.explore.questions import QUESTIONS
from kvcalc.explore.turns import LIMIT_S, BusyError, TooSlowError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.requests import Request

    from kvcalc.explore.turns import Pace, Workers

    Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

__all__ = ["routes", "runtime", "tell_fault"]

_OK = 200
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

    return _or_why_not(answer)


def _endpoint(name: str, workers: Workers, kept: _Kept) -> Endpoint:
    async def answer(request: Request) -> Response:
        asked = await _read(name, request)
        return _response(await _unless_left(_answered(asked, _client(request), workers, kept), request))

    return _or_why_not(answer)


def _or_why_not(answer: Endpoint) -> Endpoint:
    """Wrap an endpoint so that it says why there is no answer."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except ValueError:
            return _refused(422, "the question is not UTF-8, or has too many fields")
        except TimeoutError:
            return _refused(408, f"what is sent must arrive within {_BODY_S:g} s")
        except BusyError:
            return _refused(503, "too much is being computed at once", "try again in a moment")
        except TooSlowError:
            return _refused(
                422, f"this takes longer than {LIMIT_S:g} s", "kvcalc on the command line has no such limit"
            )
        except ChildEndedError:
            return _refused(500, "computing this ended its process: it may have run out of memory")
        except ClientDisconnect:
            return Response(status_code=_OK)  # nobody reads it

    return endpoint


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
    return Asked(name, tuple(fields), text)


def _client(request: Request) -> str:
    return request.client.host if request.client else "unknown"


async def _answered(asked: Asked, client: str, workers: Workers, kept: _Kept) -> Reply:
    """Return the answer that was given last to the same question, while no profile has changed, or a new one."""
    given = asked if asked.text is None else asked._replace(text=sha256(asked.text.encode()).hexdigest())
    stamp = await asyncio.to_thread(api.catalogue_stamp)
    reply = kept.get((stamp, given))
    if reply is None:
        reply = await workers.answer(asked, client=client, pace=_pace(asked))
        if reply.fault:
            tell_fault(reply.fault)
        if stamp == await asyncio.to_thread(api.catalogue_stamp):
            kept.put((stamp, given), reply)
    return reply


def _pace(asked: Asked) -> Pace:
    if asked.name == "catalogue" or (asked.name in QUESTIONS and QUESTIONS[asked.name].slow):
        return "slow"
    return "quick" if asked.text is None else "pasted"


async def _unless_left(answering: Coroutine[Any, Any, Reply], request: Request) -> Reply:
    """Return an answer, which is given up when whoever asked leaves.

    Raises:
        ClientDisconnect: whoever asked has left.
    """
    answer = asyncio.create_task(answering)
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


def _refused(status: int, what: str, hint: str = "") -> Response:
    return _response(Reply(status, mistake(what, hint)))
