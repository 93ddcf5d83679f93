"""What happened when, as Chrome's trace-event JSON, which ui.perfetto.dev and chrome://tracing show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kvcalc.core.errors import InputError
from kvcalc.core.units import microseconds
from kvcalc.render.files import beside

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["TraceFile"]


class TraceFile:
    """A trace that is written event by event, and stands in its place when it is closed without an error.

    Source: Google, "Trace Event Format": complete events (X), counters (C), asynchronous spans (b, e); times in
    microseconds.

    Args:
        path: a ``.json`` file.

    Raises:
        InputError: another ending.
        OSError: a folder that cannot be written to.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if self._path.suffix.lower() != ".json":
            raise InputError(f"{path}: a trace is written as .json")
        self._part = beside(self._path)
        self._file = self._part.open("w", encoding="utf-8")
        self._file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        self._first = True

    def process(self, process: int, name: str) -> None:
        """Name a group of tracks."""
        self._write({"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}})

    def work(self, process: int, name: str, start_s: float, end_s: float, told: Mapping[str, Any]) -> None:
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
                "args": told,
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
        self._file.write(("\n" if self._first else ",\n") + json.dumps(event))
        self._first = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._file.write("\n]}\n")
        self._file.close()
        if kind is None:
            self._part.replace(self._path)
        else:
            self._part.unlink(missing_ok=True)
