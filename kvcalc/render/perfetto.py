"""Events of a run as Chrome's trace-event JSON, which ui.perfetto.dev and chrome://tracing show."""

from __future__ import annotations

import io
import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from kvcalc.core.errors import InputError
from kvcalc.core.units import microseconds
from kvcalc.files import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["TraceFile", "open_trace"]


@contextmanager
def open_trace(path: str | Path) -> Iterator[TraceFile]:
    """Give a trace that is written event by event, and stands in its place when the block ends without an error.

    Args:
        path: a ``.json`` file.

    Raises:
        InputError: another ending.
        OSError: a file that cannot be written.
    """
    if Path(path).suffix.lower() != ".json":
        raise InputError(f"{path}: a trace is written as .json")
    with whole_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8")
        text.write('{"displayTimeUnit": "ms", "traceEvents": [')
        yield TraceFile(text)
        text.write("\n]}\n")
        text.detach()


class TraceFile:
    """The events of a trace.

    Source: Google, "Trace Event Format": complete events (X), counters (C), asynchronous spans (b, e); times in
    microseconds.

    Args:
        text: takes the events.
    """

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self._first = True

    def process(self, process: int, name: str) -> None:
        """Name a group of tracks."""
        self._write({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})

    def work(self, process: int, name: str, start_s: float, end_s: float, details: Mapping[str, Any]) -> None:
        """Put a stretch of work on the track of a process."""
        duration = microseconds(end_s - start_s)
        self._write(
            {
                "ph": "X",
                "name": name,
                "pid": process,
                "tid": 0,
                "ts": microseconds(start_s),
                "dur": duration,
                "args": details,
            }
        )

    def count(self, process: int, name: str, at_s: float, values: Mapping[str, float]) -> None:
        """Put down the value of counters."""
        self._write({"ph": "C", "name": name, "pid": process, "ts": microseconds(at_s), "args": values})

    def span(self, process: int, track: str, name: str, start_s: float, end_s: float) -> None:
        """Put a stretch of a request on a track of its own."""
        shared = {"cat": "request", "id": track, "name": name, "pid": process, "tid": 0}
        self._write({"ph": "b", "ts": microseconds(start_s), **shared})
        self._write({"ph": "e", "ts": microseconds(end_s), **shared})

    def _write(self, event: Mapping[str, Any]) -> None:
        self._text.write(("\n" if self._first else ",\n") + json.dumps(event))
        self._first = False
