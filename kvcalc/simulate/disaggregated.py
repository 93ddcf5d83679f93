"""Prefill and decode on replicas of their own, and the way of a prompt's cache from one to the other."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.simulate.cluster import Cluster
from kvcalc.simulate.observers import Observer
from kvcalc.simulate.scheduler import check_waiting
from kvcalc.simulate.ticks import NEVER, ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.requests import Request
    from kvcalc.simulate.cluster import Routing
    from kvcalc.simulate.observers import Run, Served
    from kvcalc.simulate.serving import Replica

__all__ = ["Disaggregated", "Transfer"]


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
