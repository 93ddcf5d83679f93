"""Several replicas: who gets a request, and prefill and decode on replicas of their own.

Replicas know nothing of each other. A cluster keeps them in step: a request is dealt out when every replica has run all
steps that begin before it arrives, so that the load that decides is the load at that moment. Steps of which nobody
sees anything are put off: a heap holds the tick at which each replica does something that others may see, and a replica
costs nothing while its sequences only go on.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.simulate.observers import Observer
from kvcalc.simulate.scheduler import check_waiting
from kvcalc.simulate.timer import NEVER, ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvcalc.core.requests import Request
    from kvcalc.simulate.observers import Run, Served
    from kvcalc.simulate.serving import Replica
    from kvcalc.simulate.workload import FollowUps

__all__ = ["ROUTINGS", "Cluster", "Disaggregated", "Pending", "Routing", "Server", "Transfer", "serve"]

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
        least = min(self._loads)
        if self._routing == "least-loaded":
            return self._loads.index(least)
        return self._with_prefix(request, least + _MAX_UNEQUAL)

    def _with_prefix(self, request: Request, most: int) -> int:
        """Return the number of the replica with the most of a prompt in its cache, among those not busier than a load.

        Of equals the least loaded, and of those the first.
        """
        end = ticks(request.arrival_s)
        for number, replica in enumerate(self.replicas):
            if self._loads[number] <= most:
                replica.catch_up(end)
                self._note(number)
        allowed = [number for number, load in enumerate(self._loads) if load <= most]
        return max(allowed, key=lambda number: (self.replicas[number].prefix_hit(request), -self._loads[number]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The way of a prompt's cache from a prefill to a decode replica.

    Args:
        bytes_for: bytes that the fullest rank sends for a prompt of so many tokens.
        bytes_per_s: rate of its link, which sends one prompt after another.
        latency_s: time of the shortest message.
    """

    bytes_for: Callable[[int], int]
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.bytes_per_s > 0 and 0 <= self.latency_s < math.inf):
            raise InputError("a transfer needs a rate above 0 and a latency of 0 or more")


class Disaggregated:
    """Prefill on some replicas, decode on others.

    A prefill replica gives the first token and sends the prompt's cache; a decode replica gives the other tokens. The
    blocks of a prefill replica are free when it has given the token, not when they have been sent.

    Args:
        make: makes the replica of a number, told by the observer it is given; those that prefill come first.
        prefills: replicas that prefill.
        decodes: replicas that decode.
        routing: how requests are dealt among either.
        transfer: how the cache gets from one to the other.
        observer: who is told, of whole requests.
    """

    def __init__(
        self,
        make: Callable[[int, Observer], Replica],
        *,
        prefills: int,
        decodes: int,
        routing: Routing,
        transfer: Transfer,
        observer: Observer,
    ) -> None:
        self._transfer, self._observer = transfer, observer
        self._first: dict[str, Served] = {}
        self._whole: dict[str, Request] = {}
        self._arriving: list[tuple[int, int, Request]] = []
        self._sent = 0
        self._link_free_s = [0.0] * prefills
        relays = [_Relay(observer, partial(self._prefilled, number)) for number in range(prefills)]
        self.prefill = Cluster([make(number, relay) for number, relay in enumerate(relays)], routing=routing)
        relay = _Relay(observer, self._decoded, self._refused)
        self.decode = Cluster([make(prefills + number, relay) for number in range(decodes)], routing=routing)

    @property
    def next_tick(self) -> int:
        """The tick at which the next cache arrives, or a step begins that others may see something of."""
        return min(self.prefill.next_tick, self.decode.next_tick, self._next_cache)

    @property
    def _next_cache(self) -> int:
        return self._arriving[0][0] if self._arriving else NEVER

    def submit(self, request: Request) -> None:
        """Send a request to prefill, after all steps that begin before it arrives."""
        if request.name in self._whole or request.name in self._first:
            raise InputError(f"two requests named {request.name} are under way at once", hint="names are unique")
        arrival = ticks(request.arrival_s)
        self.prefill.advance(arrival)
        self._deliver(arrival)
        self._whole[request.name] = request
        self.prefill.submit(request._replace(output_tokens=1))

    def step(self) -> None:
        """Let the next cache arrive, or run the step that begins next and that others may see something of."""
        prefill, decode = self.prefill.next_tick, self.decode.next_tick
        if self._next_cache <= min(prefill, decode):
            self._deliver(self._next_cache)
        elif prefill <= decode:
            self.prefill.step()
        else:
            self.decode.step()

    def drain(self) -> None:
        """Run until everything that was submitted has finished."""
        self.prefill.drain()
        self._deliver(NEVER)
        self.decode.drain()

    def _deliver(self, until: int) -> None:
        """Hand over the caches that arrive up to a tick; later ones may still be overtaken."""
        while self._next_cache <= until and self._arriving:
            _, _, request = heapq.heappop(self._arriving)
            self.decode.submit(request, computed_tokens=request.prompt_tokens - 1)

    def _prefilled(self, replica: int, served: Served) -> None:
        request = self._whole.pop(served.request.name)
        longest = self.prefill.replicas[replica].limits.max_model_len
        if request.output_tokens == served.output_tokens or request.prompt_tokens + served.output_tokens >= longest:
            self._observer.finished(served._replace(request=request))
            return
        tokens = request.prompt_tokens
        starts_s = max(self._link_free_s[replica], served.finish_s)
        self._link_free_s[replica] = starts_s + self._transfer.bytes_for(tokens) / self._transfer.bytes_per_s
        arrives_s = self._link_free_s[replica] + self._transfer.latency_s
        self._first[request.name] = served._replace(request=request)
        following = request._replace(
            arrival_s=arrives_s, prompt_tokens=tokens + 1, output_tokens=request.output_tokens - 1, prompt=()
        )
        self._sent += 1
        heapq.heappush(self._arriving, (ticks(arrives_s), self._sent, following))
        check_waiting(len(self._arriving), self.prefill.replicas[replica].limits)

    def _refused(self, request: Request, at_s: float, reason: str) -> None:
        self._observer.refused(self._first.pop(request.name).request, at_s, reason)

    def _decoded(self, served: Served) -> None:
        first = self._first.pop(served.request.name)
        self._observer.gap(first.request, served.first_token_s - first.first_token_s)
        self._observer.finished(
            first._replace(
                finish_s=served.finish_s,
                output_tokens=first.output_tokens + served.output_tokens,
                preemptions=first.preemptions + served.preemptions,
            )
        )


class _Relay(Observer):
    """Passes on what a cluster tells, but hands the requests that have finished, or were refused, to somebody else."""

    def __init__(
        self,
        observer: Observer,
        finished: Callable[[Served], None],
        refused: Callable[[Request, float, str], None] | None = None,
    ) -> None:
        self._observer, self._finished, self._refused = observer, finished, refused or observer.refused

    def runs(self, runs: Sequence[Run]) -> None:
        self._observer.runs(runs)

    def admitted(self, request: Request, at_s: float, cached_tokens: int) -> None:
        self._observer.admitted(request, at_s, cached_tokens)

    def preempted(self, request: Request, at_s: float) -> None:
        self._observer.preempted(request, at_s)

    def gap(self, request: Request, seconds: float) -> None:
        self._observer.gap(request, seconds)

    def finished(self, served: Served) -> None:
        self._finished(served)

    def refused(self, request: Request, at_s: float, reason: str) -> None:
        self._refused(request, at_s, reason)


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
