"""Times of calls: repeated, in turn, on the device's own clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.units import MILLISECOND
from kvcalc.measure.library import require_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.measure.library import Device

__all__ = ["Stopped", "Timing", "in_turn"]

_LOW_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Repeated measurements of one call, in seconds, in the order they were made."""

    samples_s: tuple[float, ...]

    @property
    def least_s(self) -> float:
        """The fastest."""
        return min(self.samples_s)

    @property
    def low_s(self) -> float:
        """The one that a tenth stay below: what the call takes when nothing else disturbs it."""
        return sorted(self.samples_s)[int(_LOW_SHARE * len(self.samples_s))]

    @property
    def median_s(self) -> float:
        """The middle one."""
        return sorted(self.samples_s)[len(self.samples_s) // 2]

    @property
    def spread(self) -> float:
        """How far the middle one lies above the undisturbed, as a share of it."""
        return self.median_s / self.low_s - 1

    def joined(self, other: Timing) -> Timing:
        """Return the measurements of both."""
        return Timing(samples_s=self.samples_s + other.samples_s)


class Stopped(KeyboardInterrupt):
    """An interruption, with the times of every call so far."""

    def __init__(self, timings: list[Timing]) -> None:
        super().__init__()
        self.timings = timings


def in_turn(calls: Sequence[Callable[[], object]], *, rounds: int, device: Device, warm_up: int = 1) -> list[Timing]:
    """Return the times of calls that are made in turn, so that a disturbance meets all of them alike.

    Args:
        calls: what is timed.
        rounds: how often each is.
        device: whose clock counts: events on a GPU, the monotonic clock on a CPU.
        warm_up: untimed calls of each beforehand.

    Raises:
        Stopped: interrupted after the first round.
        KeyboardInterrupt: interrupted before.
    """
    for call in calls:
        for _ in range(warm_up):
            call()
    device.wait()
    clock = _event_clock if device.kind == "cuda" else _monotonic_clock
    samples: list[list[float]] = [[] for _ in calls]
    try:
        for _ in range(rounds):
            for place, call in enumerate(calls):
                samples[place].append(clock(call))
    except KeyboardInterrupt:
        if not all(samples):
            raise
        raise Stopped([Timing(samples_s=tuple(found)) for found in samples]) from None
    return [Timing(samples_s=tuple(found)) for found in samples]


def _monotonic_clock(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _event_clock(call: Callable[[], object]) -> float:
    torch = require_torch()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    elapsed: float = start.elapsed_time(end) * MILLISECOND
    return elapsed
