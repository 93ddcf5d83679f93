"""Times of calls: repeated, in turn, on the device's own clock; on a GPU recorded once as a graph and replayed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from kvcalc.core.units import MILLISECOND
from kvcalc.measure.library import require_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.measure.library import Device

__all__ = ["Stopped", "Timing", "back_to_back_s", "in_turn", "recorded", "side_stream", "wall_s"]

T = TypeVar("T")

_LOW_SHARE = 0.1
_WARM_UPS = 3
# Clock cycles that a GPU is kept busy for, some tenths of a millisecond, while the host queues what is timed.
_QUEUEING_CYCLES = 800_000
# Replays in a row last at least so long, and are at most so many.
_ROW_S, _ROW_CALLS = 0.005, 500


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
        """Return the distance of the middle time from the undisturbed one, as a share of it."""
        return self.median_s / self.low_s - 1

    def joined(self, other: Timing) -> Timing:
        """Return the measurements of both."""
        return Timing(samples_s=self.samples_s + other.samples_s)


class Stopped(KeyboardInterrupt):
    """An interruption, with the times of every call so far."""

    def __init__(self, timings: list[Timing]) -> None:
        super().__init__()
        self.timings = timings


def wall_s(call: Callable[[], T]) -> tuple[float, T]:
    """Time a call that ends with the host reading its result, in seconds, and give the result back."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def in_turn(
    calls: Sequence[Callable[[], object]],
    *,
    rounds: int,
    device: Device,
    warm_up: int = 1,
    reset: Callable[[], object] = lambda: None,
) -> list[Timing]:
    """Return the times of calls that are made in turn, so that a disturbance meets all of them alike.

    Args:
        calls: what is timed.
        rounds: how often each is.
        device: whose clock counts: events on a GPU, the monotonic clock on a CPU.
        warm_up: untimed calls of each beforehand.
        reset: undoes what calls move on, in time that does not count.

    Raises:
        Stopped: interrupted after the first round.
        KeyboardInterrupt: interrupted before.
    """
    for call in calls:
        for _ in range(warm_up):
            reset()
            call()
    device.wait()
    clock = _event_clock if device.kind == "cuda" else _monotonic_clock
    samples: list[list[float]] = [[] for _ in calls]
    try:
        for _ in range(rounds):
            for index, call in enumerate(calls):
                reset()
                samples[index].append(clock(call))
    except KeyboardInterrupt:
        if not all(samples):
            raise
        raise Stopped([Timing(samples_s=tuple(taken)) for taken in samples]) from None
    return [Timing(samples_s=tuple(taken)) for taken in samples]


def _monotonic_clock(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _event_clock(call: Callable[[], object], times: int = 1) -> float:
    """Time a call on the GPU alone: it is queued behind a wait, so that the host's launch is over when it begins."""
    torch = require_torch()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(_QUEUEING_CYCLES)  # noqa: SLF001  no public name
    start.record()
    for _ in range(times):
        call()
    end.record()
    torch.cuda.synchronize()
    elapsed: float = start.elapsed_time(end) * MILLISECOND
    return elapsed


def back_to_back_s(call: Callable[[], object], device: Device) -> float | None:
    """Time of a call among many in a row, in seconds; None on a CPU, where nothing is queued.

    Args:
        call: the call, warmed up.
        device: where it runs.
    """
    if device.kind != "cuda":
        return None
    single = max(_event_clock(call), _ROW_S / _ROW_CALLS)
    times = max(2, math.ceil(_ROW_S / single))
    return _event_clock(call, times) / times


def recorded(
    call: Callable[[], object], device: Device, *, reset: Callable[[], object] = lambda: None
) -> tuple[Callable[[], Any], bool]:
    """Turn a call into a replay of its graph; also say whether it is one.

    A replay runs the same kernels on the same memory, without the host's time between them. On a CPU, and where the
    call waits for the host in its middle, it is the call itself. A capture that fails is an error: it leaves torch's
    stream and allocator as no later measurement should find them.

    Args:
        call: the call; its last result is what a replay returns.
        device: where it runs.
        reset: undoes what a call moves on, before each.

    Raises:
        RuntimeError: the capture failed, or the call itself.

    Source: PyTorch, notes on CUDA semantics, "CUDA Graphs": warm up on a side stream, then capture.
    """
    if device.kind != "cuda":
        return call, False
    torch = require_torch()
    side = side_stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            reset()
            call()
        reset()
        waits = _waits_for_host(call)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    reset()
    if waits:
        return call, False
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        result = call()
    return partial(_replay, graph, call, result), True


@cache
def side_stream() -> Any:
    """The one stream of all warm-ups and captures: torch keeps a workspace of cuBLAS for every stream there is."""
    return require_torch().cuda.Stream()


def _waits_for_host(call: Callable[[], object]) -> bool:
    """Whether a call waits for the GPU in its middle: then no graph can hold it."""
    torch = require_torch()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def _replay(graph: Any, call: Callable[[], object], result: Any) -> Any:
    """Replay a graph; the call keeps what its kernels read alive."""
    del call
    graph.replay()
    return result
