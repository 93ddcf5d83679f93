"""Turns: clients are answered one after another, and no question is so long that others wait for it."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Protocol

from anyio import to_thread

from kvcalc.child import ChildEndedError
from kvcalc.explore.answers import LIMIT_S, WARM_UP

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.explore.answers import Asked, Reply

    Pace = Literal["quick", "pasted", "slow"]
    Tell = Callable[[bytes], object]

__all__ = ["SERVER", "BusyError", "Lane", "TooSlowError", "Worker", "Workers"]

# For what the server needs to start, and for what is the same for all clients.
_OWN_LIMIT_S = 60.0
# The client of such questions.
SERVER = ""
# From here on a question counts as a slow one.
_QUICK_S = 1.0
# As often it is looked whether there is room among the slow ones, each time after that long.
_TRIES = 3
# An answer that nobody waits for any more may take that long: the next ones need what its process remembers.
_GRACE_S = 0.5
_MAX_SLOW = 3
_MAX_SLOW_PER_CLIENT = 2
_MAX_WAITING = 256
_MAX_WAITING_PER_CLIENT = 64


class BusyError(Exception):
    """Too much is being asked at once, or the server is about to end."""


class TooSlowError(Exception):
    """An answer that took longer than it may."""


class Worker(Protocol):
    """Computes answers, one after the other, and can be ended meanwhile: a `kvcalc.child.Child`."""

    def ask(self, question: Asked, tell: Tell | None = None) -> Reply:
        """Return the answer, and tell what is known before it; may block."""

    def kill(self) -> None:
        """End it: `ask` then raises `ChildEndedError`."""


class Lane:
    """Lets a few questions run at once: the clients take turns, and each client's own run in order of arrival.

    Args:
        size: questions that run at once.
        per_client: of one client.
    """

    def __init__(self, size: int, per_client: int) -> None:
        self.size, self._per_client = size, per_client
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the client whose turn is next comes first

    def enter_now(self, client: str) -> bool:
        """Say whether a question can run without waiting, and count it as running if so."""
        if self._running.total() >= self.size or self._running[client] >= self._per_client:
            return False
        self._running[client] += 1
        return True

    async def enter(self, client: str) -> None:
        """Wait until a question can run.

        Raises:
            BusyError: too many are waiting already.
        """
        if client not in self._waiting and self.enter_now(client):
            return
        if len(self._waiting.get(client, ())) >= _MAX_WAITING_PER_CLIENT:
            raise BusyError
        if sum(map(len, self._waiting.values())) >= _MAX_WAITING:
            raise BusyError
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._drop(client, turn)
            else:
                self.leave(client)
            raise

    def leave(self, client: str) -> None:
        """Count one less as running, and let the next one run."""
        self._running[client] -= 1
        self._running += Counter()  # keeps those above zero
        for other in list(self._waiting):
            turn = next((turn for turn in self._waiting[other] if not turn.done()), None)
            if turn is not None and self.enter_now(other):
                turn.set_result(None)
                self._waiting[other] = self._waiting.pop(other)  # its next one after those of all others
                self._drop(other, turn)

    def _drop(self, client: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting[client]
        turns.remove(turn)
        if not turns:
            del self._waiting[client]


class _Turn:
    """A client's question that runs in a lane."""

    def __init__(self, client: str, lane: Lane) -> None:
        self.client, self.lane = client, lane

    def change(self, lane: Lane) -> bool:
        """Go over to another lane, unless it is full; say whether it was not."""
        if not lane.enter_now(self.client):
            return False
        self.lane.leave(self.client)
        self.lane = lane
        return True

    def end(self) -> None:
        """Let the next one run."""
        self.lane.leave(self.client)


class Workers:
    """Answers questions on workers that are made when they are needed and ended when they take too long.

    Quick questions run one at a time, those about pasted models beside them one at a time, and slow ones beside both, a
    few at once. One that turns out to be slow goes over to these, so that the next quick one need not wait for it.

    Args:
        make: makes a worker.
        limit_s: how long an answer may take.
    """

    def __init__(self, make: Callable[[], Worker], *, limit_s: float = LIMIT_S) -> None:
        self._make, self.limit_s = make, limit_s
        self._slow = Lane(_MAX_SLOW, _MAX_SLOW_PER_CLIENT)
        self._lanes: dict[Pace, Lane] = {"quick": Lane(1, 1), "pasted": Lane(1, 1), "slow": self._slow}
        self._idle: dict[Lane, list[Worker]] = {lane: [] for lane in self._lanes.values()}
        self._all: set[Worker] = set()
        self._running: set[asyncio.Task[Reply]] = set()
        self._answered: dict[Asked, Reply] = {}
        self._answering = asyncio.Lock()
        self._closed = False

    async def once(self, asked: Asked) -> Reply:
        """Return the answer to a question of the server's own, which is computed once; errors as `answer`."""
        async with self._answering:
            if asked not in self._answered:
                self._answered[asked] = await self.answer(asked, pace="slow")
        return self._answered[asked]

    async def answer(
        self, asked: Asked, *, client: str = SERVER, pace: Pace = "quick", tell: Tell | None = None
    ) -> Reply:
        """Return the answer to a client's question, or the server's own; one that is cancelled is given up.

        Args:
            asked: the question.
            client: who asks.
            pace: the lane where it begins.
            tell: is told what is known before the answer, on a thread of its own.

        Raises:
            BusyError: too many are waiting, or the server ends.
            TooSlowError: it took too long.
            ChildEndedError: its process ended.
        """
        lane = self._lanes[pace]
        await lane.enter(client)
        run = asyncio.create_task(self._run(asked, _Turn(client, lane), tell))
        self._running.add(run)
        run.add_done_callback(self._ended)
        try:
            return await asyncio.shield(run)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(_GRACE_S, run.cancel)
            raise

    def _ended(self, run: asyncio.Task[Reply]) -> None:
        self._running.discard(run)
        if not run.cancelled():
            run.exception()  # seen: whoever asked may have left

    async def _run(self, asked: Asked, turn: _Turn, tell: Tell | None) -> Reply:
        worker, lane = None, turn.lane
        try:
            worker = await self._ready(lane)
            reply = await self._computed(self._asked(worker, asked, tell), turn)
        except BaseException:
            self._end(worker)
            raise
        else:
            self._keep(worker, lane)
            return reply
        finally:
            turn.end()

    async def _computed(self, computing: asyncio.Task[Reply | None], turn: _Turn) -> Reply:
        if turn.lane is not self._slow:
            await self._quick_or_passed_on(computing, turn)
        if not await _done(computing, self.limit_s if turn.client != SERVER else _OWN_LIMIT_S):
            raise TooSlowError
        reply = computing.result()
        if reply is None:
            raise BusyError if self._closed else ChildEndedError
        return reply

    async def _quick_or_passed_on(self, computing: asyncio.Task[Reply | None], turn: _Turn) -> None:
        """Wait for a quick answer. One that is slow is counted among the slow ones, once there is room for it.

        Raises:
            BusyError: there is none for too long.
        """
        for _ in range(_TRIES):
            if await _done(computing, _QUICK_S) or turn.change(self._slow):
                return
        raise BusyError

    async def _ready(self, lane: Lane) -> Worker:
        """Return the lane's idle worker that was used last, or a new one that has loaded what it needs."""
        if self._closed:
            raise BusyError
        if self._idle[lane]:
            return self._idle[lane].pop()
        worker = self._make()
        self._all.add(worker)
        try:
            if not await _done(self._asked(worker, WARM_UP), _OWN_LIMIT_S):
                raise TooSlowError  # noqa: TRY301  ended as whatever else goes wrong
        except BaseException:
            self._end(worker)
            raise
        return worker

    def _asked(self, worker: Worker, asked: Asked, tell: Tell | None = None) -> asyncio.Task[Reply | None]:
        """Ask a worker; nothing where it ends."""

        def ask() -> Reply | None:
            with suppress(ChildEndedError):
                return worker.ask(asked) if tell is None else worker.ask(asked, tell)
            return None

        return asyncio.create_task(to_thread.run_sync(ask))  # on threads of their own: short work has the loop's

    def _keep(self, worker: Worker, lane: Lane) -> None:
        """Keep a worker for the next question of where it began: it remembers what that needs, more than others do."""
        self._idle[lane].append(worker)
        if len(self._idle[lane]) > lane.size:
            self._end(self._idle[lane].pop(0))

    def _end(self, worker: Worker | None) -> None:
        if worker is not None:
            self._all.discard(worker)
            asyncio.get_running_loop().run_in_executor(None, worker.kill)

    def close(self) -> None:
        """End all workers; what is being computed or waits is answered as busy."""
        self._closed = True
        for worker in self._all:
            worker.kill()


async def _done(computing: asyncio.Task[Reply | None], within_s: float) -> bool:
    done, _ = await asyncio.wait({computing}, timeout=within_s)
    return bool(done)
