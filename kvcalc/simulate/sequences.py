"""Sequences on their way through a scheduler, and the queues they wait in."""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from kvcalc.simulate.blocks import block_keys
from kvcalc.simulate.prefixes import content_runs
from kvcalc.simulate.ticks import ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

    from kvcalc.core.requests import Request, Segment
    from kvcalc.simulate.prefixes import ContentRun

__all__ = ["FifoQueue", "Job", "PriorityQueue", "PrivateBlocks", "Queue", "S", "ServedSequence"]


class ServedSequence:
    """A request on its way through the engine.

    Args:
        name: its name.
        order: place in the order of arrival.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens it generates at most.
        priority: lower values go first, where the policy asks for it.
        content: what prompt and output are made of, for prefix caching; nothing where nothing is shared.

    Attributes:
        known: tokens that are known: the prompt and what was generated.
        computed: tokens whose keys and values are in the cache, or will be when the scheduled steps have run.
        drafts: draft tokens that the next step shall verify.
        in_flight: tokens that scheduled steps will generate.
        swapped: tokens whose keys and values are in host memory.
        running: whether it is in the running list.
        preemptions: how often it lost its blocks.
    """

    __slots__ = (
        "_keys", "computed", "content", "drafts", "in_flight", "known", "name", "order", "output_tokens",
        "preemptions", "priority", "prompt_tokens", "running", "swapped",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        order: int,
        prompt_tokens: int,
        output_tokens: int,
        priority: int = 0,
        content: tuple[Segment, ...] = (),
    ) -> None:
        self.name = name
        self.order = order
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.known = prompt_tokens
        self.computed = self.drafts = self.in_flight = self.swapped = self.preemptions = 0
        self.running = False
        self.content = content
        self._keys: list[int] | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Its place where the policy goes by priority."""
        return self.priority, self.order

    @property
    def last_known(self) -> int:
        """Tokens it has when it has generated all it may."""
        return self.prompt_tokens + self.output_tokens

    def keys(self, full: int, block_size: int) -> Sequence[int]:
        """Return the keys of its first ``full`` blocks."""
        if self._keys is None:
            self._keys = block_keys(self.content, block_size=block_size)
        return self._keys[:full]


class PrivateBlocks:
    """Blocks without an owner that only one sequence could ask for; the last of them is taken first."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks


class Job(ServedSequence):
    """A request in a replica, with the ticks at which things happened to it.

    Attributes:
        decoding: whether it got a token since it was admitted last.
        end: tokens it has when it finishes.
        base: where a replica that jumps keeps its computed tokens: less the clock.
        position: in the running list there; another one each time it is admitted, and negative when it left.
        joined: the clock when it got its first token there.
        left: the blocks of its own that it left when it lost them, there.
    """

    __slots__ = (
        "admitted",
        "arrival",
        "base",
        "cached",
        "decoding",
        "end",
        "first_token",
        "joined",
        "last_token",
        "left",
        "position",
        "random",
        "request",
        "runs_of_blocks",
    )  # fmt: skip

    def __init__(self, request: Request, *, order: int, content: tuple[Segment, ...]) -> None:
        prompt, output = request.prompt_tokens, request.output_tokens
        super().__init__(request.name, order, prompt, output, request.priority, content)
        self.request = request
        self.arrival = ticks(request.arrival_s)
        self.admitted: int | None = None
        self.first_token: int | None = None
        self.last_token = 0
        self.cached = 0
        self.decoding = False
        self.end = 0
        self.base = self.position = self.joined = 0
        self.left: PrivateBlocks | None = None
        self.random: Random | None = None
        self.runs_of_blocks: tuple[ContentRun, ...] | None = None

    def runs(self, block_size: int) -> tuple[ContentRun, ...]:
        """Return the runs of full blocks that it consists of."""
        if self.runs_of_blocks is None:
            self.runs_of_blocks = content_runs(self.content, block_size=block_size)
        return self.runs_of_blocks

    def findable(self, block_size: int) -> int:
        """Return the number of these blocks."""
        return sum([run.blocks for run in self.runs(block_size)])


S = TypeVar("S", bound=ServedSequence)


class Queue(Protocol[S]):
    """Sequences that wait, in the order of the policy."""

    @property
    def head(self) -> S:
        """The next in line."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[S]: ...

    def add(self, sequence: S) -> None:
        """Put in a new request."""

    def put_back(self, sequence: S) -> None:
        """Put in a sequence that lost its blocks."""

    def remove_head(self) -> S:
        """Take out who is next."""

    def remove(self, sequence: S) -> None:
        """Take out a sequence."""


class FifoQueue(deque[S]):
    """First come, first served; who lost its blocks goes to the front."""

    @property
    def head(self) -> S:
        """The next in line."""
        return self[0]

    add = deque.append
    put_back = deque.appendleft
    remove_head = deque.popleft


class PriorityQueue(Generic[S]):
    """Lower priority values first, then earlier arrivals."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, S]] = []

    @property
    def head(self) -> S:
        """The next in line."""
        return self._heap[0][2]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[S]:
        return (entry[2] for entry in self._heap)

    def add(self, sequence: S) -> None:
        """Put in a new request."""
        heapq.heappush(self._heap, (*sequence.rank, sequence))

    put_back = add

    def remove_head(self) -> S:
        """Take out who is next."""
        return heapq.heappop(self._heap)[2]

    def remove(self, sequence: S) -> None:
        """Take out a sequence."""
        self._heap.remove((*sequence.rank, sequence))
        heapq.heapify(self._heap)
