"""Refusals of a local server: other hosts' names, other sites' pages, bodies too large; and a page's permissions."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["MAX_BODY_BYTES", "Guard", "is_loopback"]

# Of a pasted config or log; the largest config known has 2.8 MB.
MAX_BODY_BYTES = 8 * 2**20

_HEADERS = {
    # Nothing but this server's own files: no inline script or style, no eval, no frame around it.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def is_loopback(host: str) -> bool:
    """Say whether an address or name reaches this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return host == "localhost" or (_address(host) is not None and ipaddress.ip_address(host.strip("[]")).is_loopback)


def _address(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return None


def _split(host: str) -> tuple[str, str]:
    """Return the name and the port of a ``Host`` header."""
    name, _, port = host.rpartition(":")
    return (name.lower(), port) if name and port.isdigit() and not host.endswith("]") else (host.lower(), "")


class Guard:
    """Middleware that answers only questions put to this server by its own page, or by no page.

    A name that points here today can be made to point elsewhere tomorrow (DNS rebinding), so that the ``Host`` must be
    a loopback address or ``localhost``; where other addresses are served too, any address, but no other name.

    Args:
        app: what is guarded.
        loopback: whether loopback addresses alone are served.
        names: other names that are this server's own.
    """

    def __init__(self, app: ASGIApp, *, loopback: bool = True, names: tuple[str, ...] = ()) -> None:
        self.app = app
        self.loopback = loopback
        self.names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with why not."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        send = _with_headers(send)
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        wrong = self._wrong(headers)
        if wrong is not None:
            status, why = wrong
            refusal = JSONResponse({"error": {"what": why, "hint": "", "field": ""}}, status_code=status)
            await refusal(scope, receive, send)
            return
        await _Bounded(self.app, receive).answer(scope, send)

    def _wrong(self, headers: list[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        sent: dict[str, list[str]] = {}
        for name, value in headers:
            sent.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts = sent.get("host", [])
        if len(hosts) != 1 or not self._mine(hosts[0]):
            return 421, "this server answers to its own address only"
        origins = sent.get("origin", [])
        if any(origin != f"http://{hosts[0]}" for origin in origins):
            return 403, "other sites may not ask here"
        if any(site not in ("same-origin", "none") for site in sent.get("sec-fetch-site", [])) and not _visit(sent):
            return 403, "other sites may not ask here"
        lengths = sent.get("content-length", [])
        if any(not re.fullmatch("[0-9]{1,12}", length) or int(length) > MAX_BODY_BYTES for length in lengths):
            return 413, f"what is pasted may have at most {MAX_BODY_BYTES:,} bytes"
        return None

    def _mine(self, host: str) -> bool:
        name, _ = _split(host)
        if is_loopback(name) or name in self.names:
            return True
        return not self.loopback and _address(name) is not None


def _visit(headers: MutableMapping[str, list[str]]) -> bool:
    """Say whether a request is a person following a link to the page, from wherever it stands."""
    return headers.get("sec-fetch-mode") == ["navigate"] and headers.get("sec-fetch-dest") == ["document"]


class _Bounded:
    """A request whose body ends where it gets too large, whatever it says of its length."""

    def __init__(self, app: ASGIApp, receive: Receive) -> None:
        self.app = app
        self.receive = receive
        self.seen = 0
        self.started = False

    async def answer(self, scope: Scope, send: Send) -> None:
        async def watched(message: Message) -> None:
            self.started = True
            await send(message)

        try:
            await self.app(scope, self._counted, watched)
        except _TooLargeError:
            if not self.started:
                what = f"what is pasted may have at most {MAX_BODY_BYTES:,} bytes"
                refusal = JSONResponse({"error": {"what": what, "hint": "", "field": ""}}, status_code=413)
                await refusal(scope, self.receive, send)

    async def _counted(self) -> Message:
        message = await self.receive()
        self.seen += len(message.get("body", b""))
        if self.seen > MAX_BODY_BYTES:
            raise _TooLargeError
        return message


class _TooLargeError(Exception):
    pass


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message.get("headers", [])}
            added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
            kept = [] if b"cache-control" in given else [(b"cache-control", b"no-store")]
            message = {**message, "headers": [*message.get("headers", []), *added, *kept]}
        await send(message)

    return sent
