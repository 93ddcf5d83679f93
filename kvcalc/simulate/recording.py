"""Observers of a serving run that record it: a row for each request, and spans and counters on a timeline."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from kvcalc.simulate.metrics import latencies
from kvcalc.simulate.observers import Observer, Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.core.requests import Request
    from kvcalc.simulate.observers import Run, Served

__all__ = ["REQUEST_COLUMNS", "RequestRows", "TimelineRecorder"]

REQUEST_COLUMNS: dict[str, type] = {
    "request": str,
    "arrival_s": float,
    "admitted_s": float,
    "first_token_s": float,
    "finish_s": float,
    "prompt_tokens": int,
    "output_tokens": int,
    "cached_tokens": int,
    "preemptions": int,
    "queue_s": float,
    "ttft_s": float,
    "tpot_s": float,
    "e2e_s": float,
    "refused": str,
}
# The process of a trace that holds the requests; the engines come after it.
_REQUESTS = 0


class Timeline(Protocol):
    """Takes spans and counters; a trace for Perfetto, for one."""

    def process(self, process: int, name: str) -> None:
        """Name a group of tracks."""

    def span(self, process: int, track: str, name: str, start_s: float, end_s: float) -> None:
        """Add a span to a track that may hold several at once."""

    def work(self, process: int, name: str, start_s: float, end_s: float, details: Mapping[str, Any]) -> None:
        """Add a span to the track of work, with details."""

    def count(self, process: int, name: str, at_s: float, values: Mapping[str, float]) -> None:
        """Add the values that a counter has from now on."""


class RequestRows(Observer):
    """Hands on a row of `REQUEST_COLUMNS` for each request when it has finished or was refused."""

    def __init__(self, add: Callable[[Sequence[Any]], None]) -> None:
        self._add = add

    def finished(self, served: Served) -> None:
        """Write a request that has finished."""
        request = served.request
        ttft_s, tpot_s, e2e_s, queue_s = latencies(served)
        self._add(
            (
                request.name,
                request.arrival_s,
                served.admitted_s,
                served.first_token_s,
                served.finish_s,
                request.prompt_tokens,
                served.output_tokens,
                served.cached_tokens,
                served.preemptions,
                queue_s,
                ttft_s,
                None if math.isnan(tpot_s) else tpot_s,
                e2e_s,
                None,
            )
        )

    def refused(self, request: Request, at_s: float, reason: str) -> None:
        """Write a request that can never run."""
        del at_s
        unknown = (None,) * 4
        self._add((request.name, request.arrival_s, *unknown[:3], request.prompt_tokens, 0, 0, 0, *unknown, reason))


class TimelineRecorder(Waits):
    """Writes the stretches of each request and the length of all queues, and has each engine's steps written."""

    def __init__(self, file: Timeline) -> None:
        super().__init__()
        self._file = file
        self._changes: list[tuple[float, int]] = []
        file.process(_REQUESTS, "requests")

    def engine(self, number: int) -> Observer:
        """Return the writer of an engine's steps."""
        return _Engine(self._file, number)

    def finished(self, served: Served) -> None:
        """Write the stretches of a request."""
        request = served.request
        steps = (("queue", request.arrival_s, served.admitted_s), ("prefill", served.admitted_s, served.first_token_s),
                 ("decode", served.first_token_s, served.finish_s))  # fmt: skip
        for name, start_s, end_s in steps:
            if end_s > start_s:
                self._file.span(_REQUESTS, request.name, name, start_s, end_s)

    def waited(self, start_s: float, end_s: float) -> None:
        """Keep when the queue grew and shrank: a request that comes first may be admitted last."""
        if end_s > start_s:
            self._changes += ((start_s, 1), (end_s, -1))

    def end(self) -> None:
        """Write the length of the queue over time."""
        waiting = 0
        for at_s, change in sorted(self._changes):
            waiting += change
            self._file.count(_REQUESTS, "queue", at_s, {"waiting": waiting})


class _Engine(Observer):
    """Writes an engine's runs of steps and counters, on tracks of its own."""

    def __init__(self, file: Timeline, number: int) -> None:
        self._file, self._process = file, _REQUESTS + 1 + number
        file.process(self._process, f"engine {number}")

    def runs(self, runs: Sequence[Run]) -> None:
        """Write runs of steps."""
        for run in runs:
            details = {"steps": run.steps, "prefill_tokens": run.prefill_tokens, "limiter": run.limiter}
            name = f"{run.running} running"
            self._file.work(self._process, name, run.start_s, run.end_s, details)
            self._file.count(self._process, "requests", run.start_s, {"running": run.running})
            self._file.count(self._process, "blocks", run.start_s, {"used": run.blocks})
