"""Several replicas, and who gets a request.

Replicas know nothing of each other. A cluster keeps them in step: a request is dealt out when every replica has run all
steps that begin before it arrives, so that the load that decides is the load at that moment. Steps of which nobody
sees anything are put off: a heap holds the tick at which each replica does something that others may see, and a replica
costs nothing while its sequences only go on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol

from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.simulate.observers import Observer
from kvcalc.simulate.scheduler import check_waiting
from kvcalc.simulate.ticks import NEVER, ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.core.requests import Request
    from kvcalc.simulate.observers import Served
    from kvcalc.simulate.serving import Replica
    from kvcalc.simulate.workload import FollowUps

__all__ = ["ROUTINGS", "Cluster", "Pending", "Routing", "Server", "serve"]

Routing = Literal["round-robin", "least-loaded", "prefix-aware"]
ROUTINGS = ("round-robin", "least-loaded", "prefix-aware")

# Requests that a replica with a longer cached prefix may have more than the least loaded one and still be chosen:
# without such a bound a system prompt that all share would send everything to one replica.
_MAX_UNEQUAL = 8


class Server(Protocol):
    """A destination of requests: a cluster, or prefill and decode apart."""

    @property
    def next_tick(self) -> int:
        """The tick at which the next thing happens that others may see; `NEVER` where there is nothing to do."""

    def submit(self, request: Request) -> None:
        """Take a request, after all steps that begin before it arrives."""

    def step(self) -> None:
        """Let the next thing happen that others may see."""

    def drain(self) -> None:
        """Run until everything that was submitted has finished."""


class Cluster:
    """Replicas that requests are dealt to.

    Args:
        replicas: one or more.
        routing: ``round-robin``; ``least-loaded``: the fewest requests waiting and running; ``prefix-aware``: the most
            prompt tokens in its cache, among replicas that do not have many more requests than the least loaded.
    """

    def __init__(self, replicas: Sequence[Replica], *, routing: Routing = "round-robin") -> None:
        if routing not in ROUTINGS:
            hint = did_you_mean(routing, ROUTINGS) or f"routings: {', '.join(ROUTINGS)}"
            raise InputError(f"routing {routing!r} is not known", hint=hint)
        self.replicas = tuple(replicas)
        self._routing = routing
        self._dealt = 0
        self._loads = [0] * len(self.replicas)
        # when each replica does something that others may see, and a heap of them; outdated entries of it count for
        # nothing
        self._ticks = [NEVER] * len(self.replicas)
        self._events: list[tuple[int, int]] = []

    @property
    def next_tick(self) -> int:
        """The tick at which a step begins that others may see something of; `NEVER` where there is nothing to do."""
        events = self._events
        while events and events[0][0] != self._ticks[events[0][1]]:
            heapq.heappop(events)
        return events[0][0] if events else NEVER

    def submit(self, request: Request, *, computed_tokens: int = 0) -> None:
        """Deal a request, after all steps that begin before it arrives.

        Raises:
            InputError: more wait than may.
        """
        self.advance(ticks(request.arrival_s))
        number = self._chosen(request)
        chosen = self.replicas[number]
        chosen.submit(request, computed_tokens=computed_tokens)
        self._note(number)
        self._dealt += 1
        waiting = self._loads[number] - len(chosen.running)
        if waiting > chosen.limits.max_waiting:
            check_waiting(waiting, chosen.limits)

    def advance(self, end: int) -> None:
        """Run the steps that begin before a tick, in the order of time; what nobody sees may be put off."""
        events, current, replicas, loads = self._events, self._ticks, self.replicas, self._loads
        while events:
            tick, number = events[0]
            if tick != current[number]:
                heapq.heappop(events)
                continue
            if tick >= end:
                return
            heapq.heappop(events)
            replica = replicas[number]
            # as long as no other replica has its turn, but one step at least
            until = events[0][0] if events and events[0][0] < end else end
            replica.advance(until if until > tick else tick + 1)
            loads[number] = replica.outstanding
            tick = current[number] = replica.next_tick
            if tick < NEVER:
                heapq.heappush(events, (tick, number))

    def step(self) -> None:
        """Run the step that begins next and that others may see something of."""
        self.advance(self.next_tick + 1)

    def drain(self) -> None:
        """Run until everything that was submitted has finished."""
        self.advance(NEVER)
        for replica in self.replicas:
            replica.drain()

    def _note(self, number: int) -> None:
        """Note the load of a replica, and when others may see something of it."""
        replica = self.replicas[number]
        self._loads[number] = replica.outstanding
        tick = self._ticks[number] = replica.next_tick
        if tick < NEVER:
            heapq.heappush(self._events, (tick, number))

    def _chosen(self, request: Request) -> int:
        """Return the number of the replica that a request is dealt to."""
        if self._routing == "round-robin":
            return self._dealt % len(self.replicas)
        lowest_load = min(self._loads)
        if self._routing == "least-loaded":
            return self._loads.index(lowest_load)
        return self._with_prefix(request, lowest_load + _MAX_UNEQUAL)

    def _with_prefix(self, request: Request, max_load: int) -> int:
        """Return the number of the replica with the most of a prompt in its cache, among those not busier than a load.

        Of equals the least loaded, and of those the first.
        """
        end = ticks(request.arrival_s)
        for number, replica in enumerate(self.replicas):
            if self._loads[number] <= max_load:
                replica.catch_up(end)
                self._note(number)
        allowed = [number for number, load in enumerate(self._loads) if load <= max_load]
        return max(allowed, key=lambda number: (self.replicas[number].prefix_hit(request), -self._loads[number]))


class Pending(Observer):
    """Requests that have not been submitted: those that wait for nobody, in order, and those that follow an answer.

    Args:
        source: the requests, or a source some of whose requests follow others; of either, one is taken ahead.

    Raises:
        InputError: a request that comes before the one ahead of it.
    """

    def __init__(self, source: Iterable[Request] | FollowUps) -> None:
        self._source = None if isinstance(source, Iterable) else source
        self._starts = iter(source) if isinstance(source, Iterable) else source.starts()
        self._coming: list[tuple[float, int, bool, Request]] = []
        self._number = 0
        self._last_s = 0.0
        self._take_start()

    @property
    def follows(self) -> bool:
        """Whether requests may follow answers."""
        return self._source is not None

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests, where none follows an answer."""
        if self._coming:
            yield self._coming.pop()[-1]
        for request in self._starts:
            self._check_order(request)
            yield request

    @property
    def due(self) -> int:
        """The tick of the next known request; `NEVER` where there is none."""
        return ticks(self._coming[0][0]) if self._coming else NEVER

    def take(self) -> Request:
        """Return the next request."""
        _, _, is_start, request = heapq.heappop(self._coming)
        if is_start:
            self._take_start()
        return request

    def finished(self, served: Served) -> None:
        """Ask for the request that follows."""
        following = None if self._source is None else self._source.follow(served.request, served.finish_s)
        if following is not None:
            self._put(following, is_start=False)

    def _take_start(self) -> None:
        request = next(self._starts, None)
        if request is not None:
            self._check_order(request)
            self._put(request, is_start=True)

    def _check_order(self, request: Request) -> None:
        if not request.arrival_s >= self._last_s:
            raise InputError(
                f"request {request.name} comes at {request.arrival_s} s, before the one ahead of it",
                hint="requests are served in the order of their arrival, from 0 s on",
            )
        self._last_s = request.arrival_s

    def _put(self, request: Request, *, is_start: bool) -> None:
        self._number += 1
        heapq.heappush(self._coming, (request.arrival_s, self._number, is_start, request))


def serve(server: Server, pending: Pending) -> None:
    """Serve requests until all have finished.

    Args:
        server: who serves them.
        pending: the requests; where they follow answers, it must be among the observers of the server.
    """
    if not pending.follows:
        for request in pending:
            server.submit(request)
        server.drain()
        return
    # a request that follows may come before any other replica's next step: no replica may run ahead
    while min(pending.due, server.next_tick) < NEVER:
        if pending.due <= server.next_tick:
            server.submit(pending.take())
        else:
            server.step()
    server.drain()
