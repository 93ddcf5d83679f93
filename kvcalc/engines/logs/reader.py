"""From the text of a log to the start-ups in it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.engines.logs import llama_cpp, sglang, vllm
from kvcalc.engines.logs.lines import marked_lines, plain_text
from kvcalc.engines.logs.records import Builder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcalc.engines.logs.lines import Line
    from kvcalc.engines.logs.records import Engine, StartUp

__all__ = ["read_log"]


class _Words(NamedTuple):
    """The words of one engine."""

    markers: Mapping[str, Callable[[Line, Builder], None]]
    starts: tuple[str, ...]
    replica_of: Callable[[Line], str | None]


_ENGINES: dict[Engine, _Words] = {
    "vllm": _Words(vllm.MARKERS, vllm.STARTS, vllm.replica_of),
    "sglang": _Words(sglang.MARKERS, sglang.STARTS, sglang.replica_of),
    "llama.cpp": _Words(llama_cpp.MARKERS, llama_cpp.STARTS, llama_cpp.replica_of),
}
# Words that other programs use too: they tell of an engine only where it has been seen already.
_COMMON = frozenset({"build: ", "build_info: ", " buffer size", "kv_size = ", "max_num_batched_tokens="})
# A line, and a number that was printed before it: then the engine was started again with the same options.
_AGAIN = (
    ("To serve at least one request", "kv_cache_tokens"),
    ("Available KV cache memory", "needed_kv_gib"),
    ("Available KV cache memory", "kv_cache_tokens"),
)
_MOST_START_UPS = 64
_MARKERS = frozenset(marker for words in _ENGINES.values() for marker in words.markers)


def read_log(text: str) -> tuple[StartUp, ...]:
    """Return the start-ups that a log tells of, in order; those that printed no number are left out.

    An engine that starts again begins a new one. Lines of several engines may alternate: each goes to its own.

    >>> log = "INFO [gpu_worker.py:1] Available KV cache memory: 3.5 GiB"
    >>> [(found.engine, found.first("available_kv_gib").value) for found in read_log(log)]
    [('vllm', 3.5)]
    """
    reader = _Reader()
    for line in marked_lines(plain_text(text), sorted(_MARKERS)):
        reader.read(line)
    return tuple(builder.build() for builder in reader.completed())


class _Reader:
    """Sorts lines into start-ups."""

    def __init__(self) -> None:
        self.found: list[Builder] = []
        self.current: dict[Engine, Builder] = {}

    def read(self, line: Line) -> None:
        """Give a line to each engine that knows a word of it."""
        for engine, words in _ENGINES.items():
            hits = [marker for marker in words.markers if marker in line.text]
            if hits and (engine in self.current or not _COMMON.issuperset(hits)):
                self._read(line, engine, words, hits)

    def _read(self, line: Line, engine: Engine, words: _Words, hits: list[str]) -> None:
        replica = words.replica_of(line)
        builder = self._builder_of(line, engine, hits, replica)
        if builder is not self.current.get(engine):
            self.current[engine] = builder
            self.found = [*self.found[1 - _MOST_START_UPS :], builder]
        if replica is not None:
            builder.replica = builder.replica or replica
            if replica != builder.replica:
                builder.events.add("replicas")
                return
        for marker in hits:
            words.markers[marker](line, builder)

    def _builder_of(self, line: Line, engine: Engine, hits: list[str], replica: str | None) -> Builder:
        """Return the start-up that a line belongs to: the current one, or a new one."""
        builder = self.current.get(engine)
        if builder is None:
            return Builder(engine=engine, line=line.number)
        if replica not in (None, builder.replica):
            return builder
        if builder.has_numbers and any(marker in _ENGINES[engine].starts for marker in hits):
            return Builder(engine=engine, line=line.number)
        if any(marker in hits and quantity in builder.printed for marker, quantity in _AGAIN) and _is_whole(builder):
            return builder.again(line.number)
        return builder

    def completed(self) -> list[Builder]:
        """Return the start-ups that printed numbers; one without a model takes it from a configuration pasted below."""
        for place, builder in enumerate(self.found):
            after = next((later for later in self.found[place + 1 :] if later.engine == builder.engine), None)
            if builder.model is None and after is not None and after.model and not after.has_numbers:
                builder.model, builder.version = after.model, builder.version or after.version
                builder.options = {**after.options, **builder.options}
                builder.events |= after.events
        return [builder for builder in self.found if builder.has_numbers]


def _is_whole(builder: Builder) -> bool:
    """Whether every rank has printed its memory: ranks' lines may come late."""
    sizes = [builder.options.get(name) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    ranks = math.prod(size for size in sizes if isinstance(size, int))
    return "needed_kv_gib" in builder.printed or len(builder.printed.get("available_kv_gib", ())) >= ranks
