"""Requests in a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.simulate.sequences import ServedSequence
from kvcalc.simulate.timer import ticks

if TYPE_CHECKING:
    from random import Random

    from kvcalc.core.requests import Request, Segment
    from kvcalc.simulate.stretches import Stretch

__all__ = ["Job"]


class Job(ServedSequence):
    """A request in a replica, with the ticks at which things happened to it.

    Attributes:
        decoding: whether it got a token since it was admitted last.
        end: tokens it has when it finishes.
        base: where a replica that jumps keeps its computed tokens: less the clock.
        place: its place in the running list there; another one each time it is admitted, and negative when it left.
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
        "place",
        "random",
        "request",
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
        self.base = self.place = self.joined = 0
        self.left: Stretch | None = None
        self.random: Random | None = None
