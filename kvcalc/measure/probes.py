"""Micro-benchmarks as they are asked for, before they are timed, and with their times."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.units import ceil_div
from kvcalc.measure.clock import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvcalc.core.cost_types import OpCost

__all__ = ["Case", "Plan", "Probe", "joined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Thoroughness of a machine's measurement.

    Args:
        formats: number formats.
        stream_rounds: probes of each way to stream through memory, of peaks and of overheads.
        rounds: repetitions of everything else.
        small_sets: whether working sets that caches may hold are measured as well.
    """

    formats: tuple[str, ...]
    stream_rounds: int = 20
    rounds: int = 7
    small_sets: bool = False

    @classmethod
    def asked(cls, formats: Iterable[str], rounds: int, *, small_sets: bool = False) -> Plan:
        """Return the plan for so many rounds: what ceilings stand on in each of them, the many shapes in a third."""
        names = tuple(dict.fromkeys(formats))
        return cls(formats=names, stream_rounds=rounds, rounds=ceil_div(rounds, 3), small_sets=small_sets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One micro-benchmark and its times.

    Args:
        kind: ``read``, ``write``, ``copy``, ``matrix``, ``attention``, ``call``, ``layer`` or ``step``.
        name: its shape, in words.
        format: number format.
        op: what one call costs.
        timing: times of one call.
        working_set_bytes: what is passed through before anything is touched again.
        batch: sequences, where it has any.
        context: tokens attended, for attention.
        allocated_kv_bytes: bytes of the cache that a call reads, as allocated.
    """

    kind: str
    name: str
    format: str
    op: OpCost
    timing: Timing
    working_set_bytes: int = 0
    batch: int | None = None
    context: int | None = None
    allocated_kv_bytes: int | None = None

    @property
    def key(self) -> tuple[str, str, str, int | None, int | None]:
        """Return the key that tells it from others."""
        return (self.kind, self.name, self.format, self.batch, self.context)


@dataclass(slots=True, kw_only=True)
class Case:
    """A benchmark before it is timed.

    Args:
        probe: makes the result of the times of one call.
        call: does the work ``times`` times.
        times: how often.
        keep: what must not be freed meanwhile.
    """

    probe: Callable[[Timing], Probe]
    call: Callable[[], object]
    times: int = 1
    keep: list[Any] = field(default_factory=list)


def joined(before: Sequence[Probe], after: Sequence[Probe]) -> list[Probe]:
    """Return probes with the times of both runs."""
    later = {probe.key: probe for probe in after}
    return [
        replace(probe, timing=probe.timing.joined(later[probe.key].timing)) if probe.key in later else probe
        for probe in before
    ]
