"""From the text of a log to the start-ups in it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kvcalc.engines.logs import llama_cpp, sglang, vllm
from kvcalc.engines.logs.lines import marked_lines
from kvcalc.engines.logs.records import Builder
from kvcalc.engines.logs.refusals import TORCH_OUT_OF_MEMORY
from kvcalc.engines.logs.text import plain_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcalc.engines.logs.lines import Line
    from kvcalc.engines.logs.records import Engine, StartUp

__all__ = ["read_log"]


_Key: TypeAlias = "tuple[Engine, str]"


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
_COMMON = frozenset(
    {
        "build: ",
        "build_info: ",
        " buffer size",
        "kv_size = ",
        "max_num_batched_tokens=",
        "failed to allocate ",
        "layers to GPU",
        "using device ",
        "server is listening on",
        "Application startup complete",
        TORCH_OUT_OF_MEMORY,
    }
)
# A line, and a number that was printed before it: then the engine was started again with the same options.
_AGAIN = (
    ("To serve at least one request", "kv_cache_tokens"),
    ("Available KV cache memory", "needed_kv_gib"),
    ("Available KV cache memory", "kv_cache_tokens"),
)
_MAX_START_UPS = 1024
# Lines that are printed before an engine's first line, or before the first of its next start; so many are kept.
_EARLY = frozenset(
    {
        "build: ",
        "build_info: ",
        "using device ",
        "max_num_batched_tokens=",
        "Asynchronous scheduling is enabled",
        "Defaulting max_num_batched_tokens to",
        "Defaulting max_num_seqs to",
    }
)
_MAX_EARLY = 16
# The name of a service in front of a line, as docker compose and ``kubectl logs --prefix`` write it; other programs
# put the level of a message there.
_SOURCE = re.compile(r"\s{0,8}(?:([A-Za-z][\w.-]{0,80}) {0,40}\| ?|\[pod/([\w./-]{1,160})\] )")
_LEVELS = frozenset({"TRACE", "DEBUG", "INFO", "SUCCESS", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"})
_MARKERS = frozenset(marker for words in _ENGINES.values() for marker in words.markers)


def read_log(text: str, *, engine: Engine | None = None) -> tuple[StartUp, ...]:
    """Return the start-ups that a log tells of, in order; those that printed no number and no refusal are left out.

    An engine that starts again begins a new one. Lines of several engines may alternate: each goes to its own.

    Args:
        text: the log.
        engine: the engine whose log it is, where its lines may not say so, as those of PyTorch do not.

    >>> log = "INFO [gpu_worker.py:1] Available KV cache memory: 3.5 GiB"
    >>> [(found.engine, found.first("available_kv_gib").value) for found in read_log(log)]
    [('vllm', 3.5)]
    """
    reader = _Reader(engine)
    for line in marked_lines(plain_text(text), sorted(_MARKERS)):
        reader.read(line)
    return tuple(builder.build() for builder in reader.completed())


class _Reader:
    """Sorts lines into start-ups: of each engine and service one at a time, beside it those of its replicas."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine
        self.found: list[Builder] = []
        self.current: dict[_Key, Builder] = {}
        self.replicas: dict[_Key, dict[str, Builder]] = {}
        self.early: dict[_Key, list[tuple[str, Line]]] = {}
        self.lost = False

    def read(self, line: Line) -> None:
        """Give a line to each engine that knows a word of it."""
        line, source = _without_source(line)
        text = line.text
        for engine, words in _ENGINES.items():
            hits = [marker for marker in words.markers if marker in text]
            key = engine, source
            if not hits:
                continue
            if _EARLY.issuperset(hits) and (key not in self.current or self.current[key].has_size):
                kept = self.early.setdefault(key, [])
                self.early[key] = [*kept[1 - _MAX_EARLY :], *((marker, line) for marker in hits)]
            elif key in self.current or engine == self.engine or not _COMMON.issuperset(hits):
                builder = self._builder_of(line, key, hits, words.replica_of(line))
                for marker in hits:
                    words.markers[marker](line, builder)

    def _builder_of(self, line: Line, key: _Key, hits: list[str], replica: str | None) -> Builder:
        """Return the start-up that a line belongs to: a current one, or a new one."""
        engine, source = key
        first = self.current.get(key)
        if first is None:
            return self._begun(key, Builder(engine=engine, line=line.number, source=source, replica=replica))
        first.replica = first.replica or replica
        builder = first if replica in (None, first.replica) else self.replicas.get(key, {}).get(replica)
        if builder is None:
            first.events.add("replicas")
            return self._begun(key, first.again(line.number), replica)
        beside = None if builder is first else replica
        if builder.has_numbers and any(marker in _ENGINES[engine].starts for marker in hits):
            return self._begun(key, Builder(engine=engine, line=line.number, source=source, replica=replica), beside)
        if any(marker in hits and quantity in builder.printed for marker, quantity in _AGAIN) and _is_whole(builder):
            return self._begun(key, builder.again(line.number), beside)
        return builder

    def _begun(self, key: _Key, builder: Builder, beside: str | None = None) -> Builder:
        """Add a start-up: of a replica beside the first, or the first, with the lines that came before it."""
        if beside is not None:
            builder.replica = beside
            builder.events.add("replicas")
            self.replicas.setdefault(key, {})[beside] = builder
        else:
            self.current[key] = builder
            if builder.replica is None:
                self.replicas.pop(key, None)
            elif key in self.replicas:
                builder.events.add("replicas")
            for marker, line in self.early.pop(key, ()):
                _ENGINES[key[0]].markers[marker](line, builder)
        self.found.append(builder)
        if len(self.found) > _MAX_START_UPS:
            self.lost = self.lost or self.found[0].has_numbers
            del self.found[0]
        return builder

    def completed(self) -> list[Builder]:
        """Return the start-ups that printed numbers; one without a model takes it from a configuration pasted below."""
        for key, lines in self.early.items():
            self._add_late(key, lines)
        for index, builder in enumerate(self.found):
            name = builder.engine, builder.source
            after = next((later for later in self.found[index + 1 :] if (later.engine, later.source) == name), None)
            if builder.model is None and after is not None and after.model and not after.has_numbers:
                builder.model, builder.version = after.model, builder.version or after.version
                builder.options = {**after.options, **builder.options}
                builder.events |= after.events
        with_numbers = [builder for builder in self.found if builder.has_numbers]
        if self.lost and with_numbers:
            with_numbers[0].events.add("earlier")
        return with_numbers

    def _add_late(self, key: _Key, lines: list[tuple[str, Line]]) -> None:
        """Give lines that no start-up followed to the one before them, as far as it does not say otherwise."""
        builder = self.current.get(key)
        if builder is not None:
            late = Builder(engine=builder.engine, line=builder.line)
            for marker, line in lines:
                _ENGINES[key[0]].markers[marker](line, late)
            builder.options, builder.version = {**late.options, **builder.options}, builder.version or late.version


def _without_source(line: Line) -> tuple[Line, str]:
    """Return a line without the name of a service in front, and the name."""
    match = _SOURCE.match(line.text)
    if match is None or (match[1] or "").upper() in _LEVELS:
        return line, ""
    return replace(line, text=line.text[match.end() :]), match[1] or match[2]


def _is_whole(builder: Builder) -> bool:
    """Whether every rank has printed its memory: ranks' lines may come late."""
    sizes = [builder.options.get(name) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    ranks = math.prod(size for size in sizes if isinstance(size, int))
    return "needed_kv_gib" in builder.printed or len(builder.printed.get("available_kv_gib", ())) >= ranks
