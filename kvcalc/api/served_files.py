"""Observers of a serving run that write down what happens: a row for each request, and a trace for Perfetto."""

from __future__ import annotations

import math
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.render.perfetto import TraceFile, open_trace
from kvcalc.render.row_file import row_file
from kvcalc.simulate.metrics import latencies
from kvcalc.simulate.runs import Observer, Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kvcalc.core.requests import Request
    from kvcalc.simulate.runs import Run, Served

__all__ = ["Progress", "TimeLimit", "requests_file", "trace_file"]

_COLUMNS: dict[str, type] = {
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
_TOLD_EVERY = 256
# The process of a trace that holds the requests; the engines come after it.
_REQUESTS = 0


@contextmanager
def requests_file(path: str | Path) -> Iterator[Observer]:
    """Give an observer that writes a row for each request to a ``.csv`` or ``.parquet`` file.

    Raises:
        InputError: another ending, or Parquet without pyarrow.
        OSError: a folder that cannot be written to.
    """
    with row_file(path, _COLUMNS) as add:
        yield _Rows(add)


@contextmanager
def trace_file(path: str | Path) -> Iterator[Observer]:
    """Give an observer that writes a trace for Perfetto to a ``.json`` file.

    Raises:
        InputError: another ending.
        OSError: a folder that cannot be written to.
    """
    with open_trace(path) as file:
        trace = _Trace(file)
        yield trace
        trace.end()


class _Rows(Observer):
    """Writes a row for each request when it has finished or was refused."""

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


class _Trace(Waits):
    """Writes the stretches of each request and the length of all queues, and has each engine's steps written."""

    def __init__(self, file: TraceFile) -> None:
        super().__init__()
        self._file = file
        self._changes: list[tuple[float, int]] = []
        file.process(_REQUESTS, "requests")

    def engine(self, number: int) -> Observer:
        """Return who writes the steps of an engine."""
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

    def __init__(self, file: TraceFile, number: int) -> None:
        self._file, self._process = file, _REQUESTS + 1 + number
        file.process(self._process, f"engine {number}")

    def runs(self, runs: Sequence[Run]) -> None:
        """Write runs of steps."""
        for run in runs:
            told = {"steps": run.steps, "prefill_tokens": run.prefill_tokens, "limiter": run.limiter}
            name = f"{run.running} running"
            self._file.work(self._process, name, run.start_s, run.end_s, told)
            self._file.count(self._process, "requests", run.start_s, {"running": run.running})
            self._file.count(self._process, "blocks", run.start_s, {"used": run.blocks})


class Progress(Observer):
    """Tells now and then how many requests have finished."""

    def __init__(self, tell: Callable[[int, int], None], of: int) -> None:
        self._tell, self._of, self._done = tell, of, 0

    def finished(self, served: Served) -> None:
        """Count a request."""
        del served
        self._done += 1
        if not self._done % _TOLD_EVERY:
            self._tell(self._done, self._of)


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
