"""Records read from a log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BreakdownLine", "Builder", "CacheLine", "Engine", "Option", "Printed", "RefusalKind", "RefusalLine", "StartUp",
    "StateLine",
]  # fmt: skip

Engine = Literal["vllm", "sglang", "llama.cpp"]
Option = str | int | float | bool
RefusalKind = Literal[
    "out_of_memory",
    "no_cache_memory",
    "request_too_long",
    "memory_in_use",
    "too_many_sequences",
    "beyond_model",
    "uneven_heads",
]

# Ranks and caches of one start-up: more than any machine has.
_MAX_VALUES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A number as an engine printed it.

    Args:
        value: the number, in the unit it was printed in.
        half_step: half of its last printed digit (0 for a count).
        line: line of the log, from 1.
    """

    value: float
    half_step: float
    line: int

    @property
    def least(self) -> float:
        """The smallest value that is printed like this."""
        return self.value - self.half_step

    @property
    def most(self) -> float:
        """The largest value that is printed like this."""
        return self.value + self.half_step


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLine:
    """One KV cache of llama.cpp, as printed in MiB.

    Args:
        total: keys and values.
        keys: keys, where printed apart.
        values: values, where printed apart.
        cells: cells of each stream, where printed.
        layers: layers, where printed.
        key_type: type of keys.
        value_type: type of values; none where no values are kept.
        windowed: whether it is the cache of layers with a window, where that is said.
    """

    total: Printed
    keys: Printed | None = None
    values: Printed | None = None
    cells: int | None = None
    layers: int | None = None
    key_type: str | None = None
    value_type: str | None = None
    windowed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLine:
    """The recurrent states of llama.cpp, as printed in MiB."""

    total: Printed
    cells: int | None = None
    layers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownLine:
    """A device of llama.cpp's table of memory, each number rounded down to whole MiB.

    Args:
        device: ``CUDA0``, ``Host`` and the like.
        title: the device's name; empty for the host.
        model_mib: weights.
        context_mib: KV cache and recurrent states.
        compute_mib: compute buffers.
        self_mib: these three together.
        total_mib: memory of the device; none for the host.
        free_mib: what was free of it.
        unaccounted_mib: the rest: below 0 where nothing had been allocated yet.
        line: line of the log, from 1.
    """

    device: str
    title: str
    model_mib: int
    context_mib: int
    compute_mib: int
    self_mib: int
    total_mib: int | None = None
    free_mib: int | None = None
    unaccounted_mib: int | None = None
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalLine:
    """The line with which an engine says that it does not start.

    Args:
        kind: what it lacks.
        line: line of the log, from 1.
        stage: what it was doing.
        device: the GPU, where one is named.
        sizes: printed sizes by what they are, in GiB; counts as they are.
    """

    kind: RefusalKind
    line: int
    stage: str = ""
    device: str = ""
    sizes: Mapping[str, Printed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """One start of an engine.

    Args:
        engine: the engine.
        line: the first line that told of it.
        version: its version as printed.
        model: the model's id, path or name as printed.
        options: options by the engine's own names.
        printed: numbers by quantity; several where several ranks printed one.
        caches: the caches of llama.cpp.
        states: the recurrent states of llama.cpp.
        breakdown: the last table of memory that llama.cpp printed once its buffers were there.
        events: what the engine said it does, as short fixed words.
        refusal: why it did not start, where it did not.
        source: the service whose lines these are, where the lines have its name in front, as docker compose writes it.
        replica: the data-parallel replica, where several print.
    """

    engine: Engine
    line: int
    version: str | None = None
    model: str | None = None
    options: Mapping[str, Option] = field(default_factory=dict)
    printed: Mapping[str, tuple[Printed, ...]] = field(default_factory=dict)
    caches: tuple[CacheLine, ...] = ()
    states: tuple[StateLine, ...] = ()
    breakdown: tuple[BreakdownLine, ...] = ()
    events: frozenset[str] = frozenset()
    refusal: RefusalLine | None = None
    source: str = ""
    replica: str | None = None

    def first(self, quantity: str) -> Printed | None:
        """Return the first number printed for a quantity."""
        return next(iter(self.printed.get(quantity, ())), None)

    def smallest(self, quantity: str) -> Printed | None:
        """Return the smallest number printed for a quantity: the rank that decides."""
        return min(self.printed.get(quantity, ()), key=lambda printed: printed.value, default=None)

    def count(self, *names: str) -> int | None:
        """Return an option that is a whole number of 1 or more, by the first of its names that was printed."""
        for name in names:
            value = self.options.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None

    def flag(self, name: str) -> bool | None:
        """Return an option that is on or off."""
        value = self.options.get(name)
        return value if isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        """Return an option that is a word."""
        value = self.options.get(name)
        return value if isinstance(value, str) else None


@dataclass(slots=True, kw_only=True)
class Builder:
    """A start-up while it is being read."""

    engine: Engine
    line: int
    version: str | None = None
    model: str | None = None
    options: dict[str, Option] = field(default_factory=dict)
    printed: dict[str, list[Printed]] = field(default_factory=dict)
    caches: list[CacheLine] = field(default_factory=list)
    states: list[StateLine] = field(default_factory=list)
    breakdown: list[BreakdownLine] = field(default_factory=list)
    events: set[str] = field(default_factory=set)
    refusal: RefusalLine | None = None
    source: str = ""
    replica: str | None = None
    next_cache_windowed: bool | None = None
    cache_parts: list[Printed] = field(default_factory=list)

    @property
    def has_numbers(self) -> bool:
        """Whether anything was printed that can be held against a prediction, or that it did not start."""
        return bool(self.printed or self.has_cache or self.states or self.breakdown or self.refusal)

    @property
    def has_size(self) -> bool:
        """Whether the size of the cache was printed, with which a start-up is as good as over, or that it failed."""
        return bool(
            self.refusal or self.has_cache or self.printed.keys() & {"kv_cache_tokens", "gpu_blocks", "needed_kv_gib"}
        )

    @property
    def has_cache(self) -> bool:
        """Whether a cache of llama.cpp was printed, or its part on a device."""
        return bool(self.caches or self.cache_parts)

    def again(self, line: int) -> Builder:
        """Return a start-up with the same engine, model and options, and nothing printed yet."""
        return Builder(
            engine=self.engine,
            line=line,
            version=self.version,
            model=self.model,
            options=dict(self.options),
            events=set(self.events),
            source=self.source,
            replica=self.replica,
        )

    def put(self, quantity: str, printed: Printed) -> None:
        """Add a number."""
        values = self.printed.setdefault(quantity, [])
        if len(values) < _MAX_VALUES:
            values.append(printed)

    def add_cache(self, cache: CacheLine) -> None:
        """Add a cache of llama.cpp; its parts on the devices, printed before it, are the same memory."""
        self.cache_parts.clear()
        if len(self.caches) < _MAX_VALUES:
            self.caches.append(cache)

    def add_cache_part(self, part: Printed) -> None:
        """Add the part of a cache of llama.cpp that stands on one device."""
        if len(self.cache_parts) < _MAX_VALUES:
            self.cache_parts.append(part)

    def end_cache(self) -> None:
        """Add the cache whose parts alone were printed, as their sum."""
        parts = list(self.cache_parts)
        if parts:
            whole = Printed(
                value=sum(part.value for part in parts),
                half_step=sum(part.half_step for part in parts),
                line=parts[0].line,
            )
            self.add_cache(CacheLine(total=whole, windowed=self.next_cache_windowed))
            self.next_cache_windowed = None

    def refuse(
        self,
        kind: RefusalKind,
        line: int,
        *,
        stage: str = "",
        device: str = "",
        sizes: Mapping[str, Printed] | None = None,
    ) -> None:
        """Keep why it does not start: of several lines, as those of its ranks, the first."""
        if self.refusal is None:
            self.refusal = RefusalLine(kind=kind, line=line, stage=stage, device=device, sizes=sizes or {})

    def build(self) -> StartUp:
        """Return the finished start-up."""
        self.end_cache()
        return StartUp(
            engine=self.engine,
            line=self.line,
            version=self.version,
            model=self.model,
            options=dict(self.options),
            printed={name: tuple(values) for name, values in self.printed.items()},
            caches=tuple(self.caches),
            states=tuple(self.states),
            breakdown=tuple(self.breakdown),
            events=frozenset(self.events),
            refusal=self.refusal,
            source=self.source,
            replica=self.replica if "replicas" in self.events else None,
        )
