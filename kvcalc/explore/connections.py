"""Limits on connections: idle time, and their number, so that none keeps others out."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection", "Connections"]

if TYPE_CHECKING:
    _Waits = Literal["request", "answer", "reading"]

_MAX_OPEN = 192
_MAX_OPEN_PER_CLIENT = 64
_CHECK_S = 1.0
# For a whole request line and its headers, and for the answer to be read; computing has a limit of its own.
_LIMITS_S: dict[_Waits, float] = {"request": 10.0, "answer": float("inf"), "reading": 60.0}
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Connections:
    """The connections that are open: the slow are closed, and where there are too many, the one that was idle longest.

    A connection is idle until a request has come whole, and again when its answer was read: a browser's spare one, or
    one that is there to keep others out. A client's new connections close its own idle ones; where all of them are
    busy, the new one is refused.
    """

    def __init__(self) -> None:
        self._open: set[Connection] = set()

    def add(self, new: Connection) -> None:
        """Count a connection, and close one where that makes too many."""
        self._open.add(new)
        counts = Counter(each.host for each in self._open)
        if counts[new.host] > _MAX_OPEN_PER_CLIENT:
            self._make_room(new, new.host)
        elif len(self._open) > _MAX_OPEN:
            self._make_room(new, max(counts, key=counts.__getitem__))

    def _make_room(self, new: Connection, host: str) -> None:
        idle = (each for each in self._open if each.host == host and each.waits_for() == "request")
        closed = min(idle, key=lambda each: each.since_s, default=new)
        if closed is new:
            new.transport.write(_REFUSAL)
        closed.transport.close()
        self._open.discard(closed)

    def remove(self, lost: Connection) -> None:
        """Count a connection no more."""
        self._open.discard(lost)

    async def watch(self) -> None:
        """Close slow connections, as long as this runs."""
        while True:
            await asyncio.sleep(_CHECK_S)
            for each in list(self._open):
                each.check()


class Connection(H11Protocol):
    """uvicorn's connection, counted and watched.

    Args:
        connections: those it is counted among.
        given: as uvicorn gives it.

    Attributes:
        host: the client's address.
        since_s: when it began to wait for what it waits for, on the loop's clock.
    """

    def __init__(self, *, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._connections = connections
        self._waited: tuple[object, _Waits] = (None, "request")
        self.host = ""
        self.since_s = self.loop.time()

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        super().connection_made(transport)
        self.host = self.client[0] if self.client else ""
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._connections.remove(self)
        super().connection_lost(exc)

    def waits_for(self) -> _Waits:
        """Return whether the client is to send a request, this server to answer, or the client to read the answer."""
        if self.transport.get_write_buffer_size():
            return "reading"
        return "request" if self.cycle is None or self.cycle.response_complete else "answer"

    def check(self) -> None:
        """Close the connection where it has waited for too long."""
        waits_for = self.waits_for()
        if self._waited != (self.cycle, waits_for):
            self._waited, self.since_s = (self.cycle, waits_for), self.loop.time()
        elif self.loop.time() - self.since_s > _LIMITS_S[waits_for]:
            self.transport.abort()
