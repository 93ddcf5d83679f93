"""Several replicas: who gets a request, and prefill and decode on replicas of their own.

Replicas know nothing of each other. A cluster keeps them in step: a request is dealt out when every replica has run all
steps that begin before it arrives, so that the load that decides is the load at that moment.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.simulate.runs import Observer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvcalc.core.requests import Request
    from kvcalc.simulate.runs import Run, Served
    from kvcalc.simulate.serving import Replica
    from kvcalc.simulate.workload import FollowUps

__all__ = ["ROUTINGS", "Cluster", "Disaggregated", "Routing", "Server", "Transfer", "serve"]

Routing = Literal["round-robin", "least-loaded", "prefix-aware"]
ROUTINGS = ("round-robin", "least-loaded", "prefix-aware")

# Requests that a replica with a longer cached prefix may have more than the least loaded one and still be chosen: the
# default of SGLang's router (``--balance-abs-threshold``).
_MOST_UNEQUAL = 64


class Server(Protocol):
    """What requests are sent to: a cluster, or prefill and decode apart."""

    @property
    def next_s(self) -> float:
        """When the next step begins; infinite where there is nothing to do."""

    def submit(self, request: Request) -> None:
        """Take a request, after all steps that begin before it arrives."""

    def step(self) -> None:
        """Run the step that begins next."""

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

    @property
    def next_s(self) -> float:
        """When the next step begins; infinite where there is nothing to do."""
        return min((replica.next_s for replica in self.replicas), default=math.inf)

    def submit(self, request: Request, *, computed_tokens: int = 0) -> None:
        """Deal a request, after all steps that begin before it arrives."""
        if self._routing != "round-robin":
            self.advance(request.arrival_s)
        self._chosen(request).submit(request, computed_tokens=computed_tokens)
        self._dealt += 1

    def _chosen(self, request: Request) -> Replica:
        if self._routing == "round-robin":
            return self.replicas[self._dealt % len(self.replicas)]
        least = min(replica.outstanding for replica in self.replicas)
        if self._routing == "least-loaded":
            return next(replica for replica in self.replicas if replica.outstanding == least)
        allowed = [replica for replica in self.replicas if replica.outstanding <= least + _MOST_UNEQUAL]
        return max(allowed, key=lambda replica: (replica.prefix_hit(request), -replica.outstanding))

    def advance(self, until_s: float) -> None:
        """Run all steps that begin before a time."""
        for replica in self.replicas:
            replica.advance(until_s)

    def step(self) -> None:
        """Run the step that begins next."""
        replica = min(self.replicas, key=lambda replica: replica.next_s)
        replica.advance(math.nextafter(replica.next_s, math.inf))

    def drain(self) -> None:
        """Run until everything that was submitted has finished."""
        for replica in self.replicas:
            replica.drain()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How the cache of a prompt gets from a prefill to a decode replica.

    Args:
        bytes_for: bytes that the fullest rank sends for a prompt of so many tokens.
        bytes_per_s: rate of its link, which sends one prompt after another.
        latency_s: time of the shortest message.
    """

    bytes_for: Callable[[int], int]
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.bytes_per_s and 0 <= self.latency_s < math.inf):
            raise InputError("a transfer needs a rate above 0 and a latency of 0 or more")


class Disaggregated:
    """Prefill on some replicas, decode on others.

    A prefill replica gives the first token and sends the prompt's cache; a decode replica gives the other tokens. The
    blocks of a prefill replica are free when it has given the token, not when they have been sent.

    Args:
        make_prefill: makes the cluster that prefills, told by the observer it is given.
        make_decode: makes the cluster that decodes.
        transfer: how the cache gets from one to the other.
        observer: who is told, of whole requests.
    """

    def __init__(
        self,
        make_prefill: Callable[[Observer], Cluster],
        make_decode: Callable[[Observer], Cluster],
        *,
        transfer: Transfer,
        observer: Observer,
    ) -> None:
        self.prefill = make_prefill(_Relay(observer, self._prefilled))
        self.decode = make_decode(_Relay(observer, self._decoded))
        self._transfer, self._observer = transfer, observer
        self._whole: dict[str, Request] = {}
        self._first: dict[str, Served] = {}
        self._arriving: list[tuple[float, int, Request]] = []
        self._sent = 0
        self._link_free_s = 0.0

    @property
    def next_s(self) -> float:
        """When the next step begins or the next cache arrives."""
        arrives_s = self._arriving[0][0] if self._arriving else math.inf
        return min(self.prefill.next_s, self.decode.next_s, arrives_s)

    def submit(self, request: Request) -> None:
        """Send a request to prefill, after all steps that begin before it arrives."""
        self.prefill.advance(request.arrival_s)
        self._deliver(request.arrival_s)
        self._whole[request.name] = request
        self.prefill.submit(replace(request, output_tokens=1))

    def step(self) -> None:
        """Run the step that begins next."""
        self._deliver(min(self.prefill.next_s, self.decode.next_s))
        if self.prefill.next_s <= self.decode.next_s:
            self.prefill.step()
        else:
            self.decode.step()

    def drain(self) -> None:
        """Run until everything that was submitted has finished."""
        self.prefill.drain()
        self._deliver(math.inf)
        self.decode.drain()

    def _deliver(self, until_s: float) -> None:
        """Hand over the caches that arrive up to a time; later ones may still be overtaken."""
        while self._arriving and self._arriving[0][0] <= until_s:
            _, _, request = heapq.heappop(self._arriving)
            self.decode.submit(request, computed_tokens=request.prompt_tokens - 1)

    def _prefilled(self, served: Served) -> None:
        request = self._whole.pop(served.request.name)
        if request.output_tokens == served.output_tokens:
            self._observer.finished(served._replace(request=request))
            return
        tokens = request.prompt_tokens
        self._link_free_s = max(self._link_free_s, served.finish_s)
        self._link_free_s += self._transfer.bytes_for(tokens) / self._transfer.bytes_per_s
        arrives_s = self._link_free_s + self._transfer.latency_s
        self._first[request.name] = served._replace(request=request)
        following = replace(
            request, arrival_s=arrives_s, prompt_tokens=tokens + 1, output_tokens=request.output_tokens - 1, prompt=()
        )
        self._sent += 1
        heapq.heappush(self._arriving, (arrives_s, self._sent, following))

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
    """Passes on what a cluster tells, but takes the finished requests itself."""

    def __init__(self, observer: Observer, finished: Callable[[Served], None]) -> None:
        self._observer, self._finished = observer, finished

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
        self._observer.refused(request, at_s, reason)


class _Follower(Observer):
    """Asks for the request that follows each one that has finished."""

    def __init__(self, source: FollowUps) -> None:
        self._source = source
        self.coming: list[tuple[float, int, Request]] = []
        self._number = 0

    def finished(self, served: Served) -> None:
        following = self._source.follow(served.request, served.finish_s)
        if following is not None:
            self.put(following)

    def put(self, request: Request) -> None:
        self._number += 1
        heapq.heappush(self.coming, (request.arrival_s, self._number, request))
