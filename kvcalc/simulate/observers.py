"""Observers of a serving run, which take in its runs of steps and what became of each request.

A run is a stretch of steps in which the same sequences run and each step takes a constant longer than the one before.
An observer gets them as they happen, so that a simulation of a million requests needs no list of its steps.
"""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.requests import Request

__all__ = ["CompositeObserver", "Observer", "Progress", "Refusals", "Run", "Served", "TimeLimit", "Waits", "Watch"]

# Requests after which progress is reported.
_REPORTED_EVERY = 256


class Run(NamedTuple):
    """Steps that follow each other.

    Step i of the run (from 0) takes ``first_s + i * slope_s`` seconds, so the run takes
    ``steps * first_s + slope_s * steps * (steps - 1) / 2``.

    Args:
        start_s: when the first step begins.
        end_s: when the last step ends.
        steps: how many.
        first_s: duration of the first step.
        slope_s: how much longer each step takes than the one before.
        decodes: sequences that get their next token in each step, having got one in the step before: the duration of
            a step is that many inter-token latencies.
        prefill_tokens: tokens of prompts (and of recomputed outputs) in each step.
        output_tokens: tokens generated in each step; with speculation those of the run's only step.
        running: sequences in the running list.
        waiting: requests in the queue when the run begins.
        blocks: blocks with an owner when the first step has taken its own.
        end_blocks: blocks with an owner when the last step has taken its own, before finished sequences return theirs.
        held_tokens: tokens in the cache after the first step, for what is wasted in blocks half full; the last step's
            are ``held_tokens + decodes * (steps - 1)``.
        limiter: ``memory``, ``compute`` or ``interconnect``; empty where the timer does not tell.
    """

    start_s: float
    end_s: float
    steps: int
    first_s: float
    slope_s: float
    decodes: int
    prefill_tokens: int
    output_tokens: int
    running: int
    waiting: int
    blocks: int
    end_blocks: int
    held_tokens: int
    limiter: str


class Served(NamedTuple):
    """A request that has finished.

    Args:
        request: the request.
        admitted_s: when the step began that admitted it first.
        first_token_s: when the step ended that gave its first token.
        finish_s: when the step ended that gave its last.
        output_tokens: tokens it got: fewer than asked for where the engine's longest length cut it.
        preemptions: how often it lost its blocks.
        cached_tokens: tokens of the prompt that its first admission found in the cache.
    """

    request: Request
    admitted_s: float
    first_token_s: float
    finish_s: float
    output_tokens: int
    preemptions: int
    cached_tokens: int


class Observer:
    """Takes in what the engine tells, in the order of time; every method may be overridden, and none does anything."""

    def runs(self, runs: Sequence[Run]) -> None:
        """Take in some runs of steps. They come in batches, each after the requests that finished in them."""

    def admitted(self, request: Request, at_s: float, cached_tokens: int) -> None:
        """Take in that the step that begins now admits a request, for the first time or again."""

    def preempted(self, request: Request, at_s: float) -> None:
        """Take in that the step that begins now takes a request's blocks away."""

    def gap(self, request: Request, seconds: float) -> None:
        """Take in the time between two tokens of a request that was preempted between them; no run counts it."""

    def finished(self, served: Served) -> None:
        """Take in that a request has finished."""

    def refused(self, request: Request, at_s: float, reason: str) -> None:
        """Take in that a request can never run."""

    def engine(self, number: int) -> Observer | None:
        """Return the observer of one of the engines; none where they need not be told apart."""


class Waits(Observer):
    """Takes in each time in the queue: from arrival, or from a preemption, to the start of the step that admits."""

    def __init__(self) -> None:
        self._lost: dict[str, float] = {}

    def preempted(self, request: Request, at_s: float) -> None:
        """Note since when a request waits again."""
        self._lost[request.name] = at_s

    def admitted(self, request: Request, at_s: float, cached_tokens: int) -> None:
        """Note the waiting time of a request."""
        del cached_tokens
        self.waited(self._lost.pop(request.name, request.arrival_s) if self._lost else request.arrival_s, at_s)

    def waited(self, start_s: float, end_s: float) -> None:
        """Take in a time in the queue."""


class CompositeObserver(Observer):
    """Several observers as one; what none of them takes in costs nothing."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.parts: list[Observer] = []
        for each in observers:
            self.parts += each.parts if isinstance(each, CompositeObserver) else [each]
        for name in ("runs", "admitted", "preempted", "gap", "finished", "refused"):
            methods = [getattr(each, name) for each in self.parts]
            overridden = [each for each in methods if getattr(each, "__func__", None) is not getattr(Observer, name)]
            setattr(self, name, overridden[0] if len(overridden) == 1 else partial(_call_all, overridden))


def _call_all(methods: Sequence[Callable[..., None]], *arguments: Any) -> None:
    for method in methods:
        method(*arguments)


class Refusals(Observer):
    """Keeps the first request that can never run, and counts the others."""

    def __init__(self) -> None:
        self._first, self._count = "", 0

    def refused(self, request: Request, at_s: float, reason: str) -> None:
        """Take in a request that can never run."""
        del at_s
        self._count += 1
        self._first = self._first or f"{request.name} can never run: {reason}"

    def notes(self) -> tuple[str, ...]:
        """Return notes for the user."""
        if not self._count:
            return ()
        several = f"; {self._count:,} requests cannot" if self._count > 1 else ""
        return (f"request {self._first}{several}",)


class Progress(Observer):
    """Reports now and then how many requests have finished."""

    def __init__(self, report: Callable[[int, int], None], of: int) -> None:
        self._report, self._of, self._done = report, of, 0

    def finished(self, served: Served) -> None:
        """Count a request."""
        del served
        self._done += 1
        if not self._done % _REPORTED_EVERY:
            self._report(self._done, self._of)


class Watch(Observer):
    """Tells of the requests that have finished, at intervals of the clock on the wall.

    Args:
        tell: is told how many have finished.
        every_s: at most this often.
    """

    def __init__(self, tell: Callable[[int], None], every_s: float) -> None:
        self._tell, self._every_s = tell, every_s
        self._next_s, self._done = monotonic() + every_s, 0

    def runs(self, runs: Sequence[Run]) -> None:
        """Look at the clock when runs are handed on, which is seldom."""
        del runs
        if monotonic() >= self._next_s:
            self._tell(self._done)
            self._next_s = monotonic() + self._every_s

    def finished(self, served: Served) -> None:
        """Count a request."""
        del served
        self._done += 1


class TimeLimit(Observer):
    """Ends a simulation that takes longer than it may."""

    def __init__(self, within_s: float) -> None:
        self._within_s, self._end_s = within_s, monotonic() + within_s

    def runs(self, runs: Sequence[Run]) -> None:
        """Look at the clock when runs are handed on, which is seldom."""
        del runs
        self._look()

    def admitted(self, request: Request, at_s: float, cached_tokens: int) -> None:
        """Look at the clock at each admission."""
        del request, at_s, cached_tokens
        self._look()

    def preempted(self, request: Request, at_s: float) -> None:
        """Look at the clock at each preemption."""
        del request, at_s
        self._look()

    def _look(self) -> None:
        """Look at the clock.

        Raises:
            InputError: it is late.
        """
        if monotonic() > self._end_s:
            raise InputError(
                f"the simulation takes longer than {self._within_s:g} s", hint="ask for fewer requests or tokens"
            )
