"""The local server: the page's files, the JSON addresses, and the runtime that draws charts."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from threading import Thread
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from kvcalc import api
from kvcalc.core.errors import InputError
from kvcalc.explore.endpoints import Turns, routes
from kvcalc.explore.security import Guard, is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

__all__ = ["Place", "application", "serve"]

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_RUNTIME = "vega.js"
_MOST_CONNECTIONS = 200
_MOST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the page is served.

    Args:
        host: the address to listen on.
        port: the port; 0 for any that is free.
    """

    host: str = "127.0.0.1"
    port: int = 8977

    def __post_init__(self) -> None:
        if not 0 <= self.port <= _MOST_PORT:
            raise InputError(f"port must be from 0 to {_MOST_PORT:,}, not {self.port}")


def application(place: Place | None = None) -> Starlette:
    """Return the server's application.

    Args:
        place: where it is served, for the addresses that it answers to.
    """
    loopback = place is None or is_loopback(place.host)
    names = () if loopback else (socket.gethostname().lower(),)
    pages = _files()
    listed = [Route("/", _page(pages["index.html"], ".html"))]
    listed += [Route(f"/static/{name}", _page(body, f".{name.rpartition('.')[2]}")) for name, body in pages.items()]
    listed += [Route(f"/static/{_RUNTIME}", _runtime_page)]
    return Starlette(
        routes=[*listed, Mount("/api", routes=routes(Turns()))],
        middleware=[Middleware(Guard, loopback=loopback, names=names)],
        exception_handlers={404: _missing, 405: _missing, 500: _failed},
    )


def serve(place: Place, *, ready: Callable[[str], None]) -> None:
    """Serve the page until interrupted.

    Args:
        place: where.
        ready: is told the page's address when it can be opened.

    Raises:
        InputError: an address that cannot be listened on.
    """
    import uvicorn

    listening = _listen(place)
    port = listening.getsockname()[1]
    shown = f"[{place.host}]" if ":" in place.host else place.host
    config = uvicorn.Config(
        application(place), log_level="error", access_log=False, limit_concurrency=_MOST_CONNECTIONS,
        server_header=False, date_header=False, timeout_graceful_shutdown=1, ws="none",
    )  # fmt: skip
    Thread(target=_runtime, daemon=True).start()
    ready(f"http://{shown}:{port}/")
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def _listen(place: Place) -> socket.socket:
    listening = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_MOST_CONNECTIONS)
    except (OSError, UnicodeError) as error:
        if listening is not None:
            listening.close()
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot listen on {place.host}:{place.port}: {why}", hint="try --port 0") from error
    return listening


@cache
def _files() -> dict[str, bytes]:
    """Return the page's files by their paths below ``static``."""
    found: dict[str, bytes] = {}

    def collect(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                collect(entry, f"{prefix}{entry.name}/")
            elif f".{entry.name.rpartition('.')[2]}" in _KINDS:
                found[prefix + entry.name] = entry.read_bytes()

    collect(files("kvcalc.explore") / "static", "")
    return found


@cache
def _runtime() -> bytes:
    return api.chart_runtime().encode()


def _page(body: bytes, suffix: str) -> Any:
    async def page(request: Request) -> Response:
        del request
        return Response(body, headers={"Content-Type": _KINDS[suffix], "Cache-Control": "no-cache"})

    return page


def _runtime_page(request: Request) -> Response:
    del request
    return Response(_runtime(), headers={"Content-Type": _KINDS[".js"], "Cache-Control": "max-age=3600"})


async def _missing(request: Request, error: Any) -> Response:
    del request
    what = "nothing can be asked for here" if error.status_code == HTTPStatus.NOT_FOUND else "this is asked otherwise"
    return JSONResponse({"error": {"what": what, "hint": "", "field": ""}}, status_code=error.status_code)


async def _failed(request: Request, error: Exception) -> Response:
    del request, error
    what = "kvcalc failed to answer; this is a fault of kvcalc's"
    return JSONResponse({"error": {"what": what, "hint": "", "field": ""}}, status_code=500)
