"""The local server: the page's files, the JSON addresses, and the runtime that draws charts."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Mount, Route

from kvcalc.child import Child
from kvcalc.core.errors import InputError
from kvcalc.explore.access import TokenGate, new_token
from kvcalc.explore.answers import LIMIT_S, RUNTIME, WARM_UP, mistake, reply_to
from kvcalc.explore.connections import Connection, Connections
from kvcalc.explore.endpoints import routes, runtime, tell_fault
from kvcalc.explore.security import Guard, is_loopback
from kvcalc.explore.turns import Workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

__all__ = ["Place", "application", "serve"]

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_RUNTIME = "vega.js"
_MAX_PORT = 65_535
_MIN_LIMIT_S, _MAX_LIMIT_S = 1.0, 3600.0
_MAX_HEAD_BYTES = 32_768
_BACKLOG = 128
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{8,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Address of the page, and its readers.

    Args:
        host: the address to listen on.
        port: the port; 0 for any that is free.
        token: what others must bring; empty for nothing. Left out, a random one where others can reach it.
        limit_s: how long an answer may take.
    """

    host: str = "127.0.0.1"
    port: int = 8977
    token: str | None = None
    limit_s: float = LIMIT_S

    def __post_init__(self) -> None:
        if not 0 <= self.port <= _MAX_PORT:
            raise InputError(f"port must be from 0 to {_MAX_PORT:,}, not {self.port}")
        if not _MIN_LIMIT_S <= self.limit_s <= _MAX_LIMIT_S:
            what = f"seconds-per-question must be from {_MIN_LIMIT_S:g} to {_MAX_LIMIT_S:,g}, not {self.limit_s:g}"
            raise InputError(what, parameter="seconds-per-question")
        if self.token is None:
            object.__setattr__(self, "token", "" if is_loopback(self.host) else new_token())
        elif self.token and not _TOKEN.fullmatch(self.token):
            raise InputError("token must be 8 to 100 letters, digits and -._~", hint="leave it out for a random one")

    @property
    def warning(self) -> str:
        """Warn of readers beyond this machine; empty where there are none."""
        if is_loopback(self.host):
            return ""
        who = (
            "everyone who has its address with the token"
            if self.token
            else "everyone who can reach it: there is no authentication"
        )
        return f"{self.host} is open to the network: the page is for {who}, and nothing is encrypted"


def application(settings: Place | None = None, workers: Workers | None = None) -> Starlette:
    """Return the server's application.

    Args:
        settings: where it is served, for the addresses that it answers to.
        workers: compute the answers; processes, where left out.
    """
    settings = settings or Place()
    workers = workers or _processes(settings)
    loopback = is_loopback(settings.host)
    names = () if loopback else (socket.gethostname().lower(),)
    pages = _files()
    listed = [Route("/", _page(pages["index.html"], ".html"))]
    listed += [Route(f"/static/{name}", _page(body, f".{name.rpartition('.')[2]}")) for name, body in pages.items()]
    listed += [Route(f"/static/{_RUNTIME}", runtime(workers))]
    guards = [Middleware(Guard, loopback=loopback, names=names)]
    if settings.token:
        guards.append(Middleware(TokenGate, token=settings.token))
    return Starlette(
        routes=[*listed, Mount("/api", routes=routes(workers))],
        middleware=guards,
        exception_handlers={404: _missing, 405: _missing, 500: _failed},
    )


def _processes(settings: Place) -> Workers:
    return Workers(partial(Child, reply_to, tells=True), limit_s=settings.limit_s)


def serve(settings: Place, *, ready: Callable[[str], None]) -> None:
    """Serve the page until interrupted.

    Args:
        settings: where.
        ready: is told the page's address when it can be opened.

    Raises:
        InputError: an address that cannot be listened on.
    """
    listening = _listen(settings)
    port = listening.getsockname()[1]
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    workers, connections = _processes(settings), Connections()
    config = uvicorn.Config(
        application(settings, workers), http=cast("type[Connection]", partial(Connection, connections=connections)),
        lifespan="off", ws="none", log_level="critical", access_log=False, server_header=False, date_header=False,
        timeout_graceful_shutdown=1, backlog=_BACKLOG, h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
    )  # fmt: skip
    ready(f"http://{shown}:{port}/{f'?token={settings.token}' if settings.token else ''}")
    with listening:
        _Server(config, workers, connections).run(sockets=[listening])


class _Server(uvicorn.Server):
    """uvicorn's server, whose workers end when it does, whatever they compute."""

    def __init__(self, config: uvicorn.Config, workers: Workers, connections: Connections) -> None:
        super().__init__(config)
        self._workers, self._connections = workers, connections
        self._beside: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_fault)
        await super().startup(sockets)
        self._beside = asyncio.create_task(self._prepare_and_watch())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._beside:
            self._beside.cancel()
        self._workers.close()
        await super().shutdown(sockets)

    async def _prepare_and_watch(self) -> None:
        prepared = self._workers.answer(WARM_UP), self._workers.once(RUNTIME)
        await asyncio.gather(self._connections.watch(), *prepared, return_exceptions=True)


def _fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    del loop
    error = context.get("exception")
    tell_fault(f"{context['message']}{f': {type(error).__name__}: {error}' if error else ''}")


def _listen(settings: Place) -> socket.socket:
    listening = None
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM
        )
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:
        if listening is not None:
            listening.close()
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot listen on {settings.host}:{settings.port}: {why}", hint="try --port 0") from error
    return listening


@cache
def _files() -> dict[str, bytes]:
    """Return the page's files by their paths below ``static``."""
    content: dict[str, bytes] = {}

    def collect(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                collect(entry, f"{prefix}{entry.name}/")
            elif f".{entry.name.rpartition('.')[2]}" in _KINDS:
                content[prefix + entry.name] = entry.read_bytes()

    collect(files("kvcalc.explore") / "static", "")
    return content


def _page(body: bytes, suffix: str) -> Any:
    async def page(request: Request) -> Response:
        del request
        return Response(body, headers={"Content-Type": _KINDS[suffix], "Cache-Control": "no-cache"})

    return page


async def _missing(request: Request, error: Any) -> Response:
    del request
    what = "nothing can be asked for here" if error.status_code == HTTPStatus.NOT_FOUND else "this is asked otherwise"
    return Response(mistake(what), status_code=error.status_code, media_type="application/json")


async def _failed(request: Request, error: Exception) -> Response:
    tell_fault(f"{request.url.path}: {type(error).__name__}: {error}")
    return Response(mistake("kvcalc failed to answer; this is a fault of kvcalc's"), 500, media_type="application/json")
