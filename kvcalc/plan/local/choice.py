"""The fastest placement within the memories: runs of layers on devices, and experts moved to the host.

Layers stay in order: the first ones on the host, then a run of them on each device, the output last. A layer on a
device may leave its routed experts on the host. The best runs are found by dynamic programming over devices; within a
run, experts come in few sizes, of which the most that the room holds stay.
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Choice", "Memories", "Unit", "chosen"]

_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A layer, or the output: what it takes and how long a step spends on it, by place.

    Args:
        bytes: weights without routed experts, cache and states on a device.
        seconds: time of these on each device, and last on the host.
        expert_bytes: weights of its routed experts.
        expert_seconds: time of these on each device, and last on the host, from a device and back.
        whole_host_seconds: time of its experts where the layer itself is the host's.
    """

    bytes: int
    seconds: tuple[float, ...]
    expert_bytes: int = 0
    expert_seconds: tuple[float, ...] = ()
    whole_host_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """Bytes that each device has for layers, and those that it takes besides as soon as it holds one."""

    capacity_bytes: tuple[int, ...]
    fixed_bytes: tuple[int, ...]

    @property
    def room_bytes(self) -> list[int]:
        """Bytes of each device for layers."""
        return [whole - fixed for whole, fixed in zip(self.capacity_bytes, self.fixed_bytes, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A placement.

    Args:
        host_units: units that the host holds, the first ones.
        device_units: units of each device in order; the output is the last unit.
        host_experts: layers on devices whose experts are the host's.
        seconds: time of a step by the units' times.
    """

    host_units: int
    device_units: tuple[int, ...]
    host_experts: tuple[int, ...]
    seconds: float


def chosen(units: Sequence[Unit], memories: Memories) -> Choice:
    """Return the fastest placement that the devices hold; the host is taken to hold the rest.

    Args:
        units: layers in order, the output last.
        memories: rooms of the devices, in llama.cpp's order.

    Raises:
        InputError: no units.

    >>> layer = Unit(bytes=10, seconds=(1.0, 5.0), expert_bytes=90, expert_seconds=(2.0, 6.0), whole_host_seconds=6.0)
    >>> chosen([layer] * 4 + [Unit(bytes=5, seconds=(1.0, 5.0))], Memories(capacity_bytes=(250,), fixed_bytes=(10,)))
    Choice(host_units=0, device_units=(5,), host_experts=(0, 1), seconds=21.0)
    """
    if not units:
        raise InputError("a model without layers has no placement")
    return _Search(units, memories.room_bytes).best()


class _Search:
    """Prefix sums over units, and the best runs of units for each device."""

    def __init__(self, units: Sequence[Unit], rooms: Sequence[int]) -> None:
        self.units, self.rooms, self.devices = units, rooms, len(rooms)
        self.end = len(units)
        self.bytes = [0, *accumulate(unit.bytes for unit in units)]
        self.seconds = [
            [0.0, *accumulate(unit.seconds[device] for unit in units)] for device in range(self.devices + 1)
        ]
        self.sizes = sorted({unit.expert_bytes for unit in units if unit.expert_bytes}, reverse=True)
        self.counts = {size: [0, *accumulate(unit.expert_bytes == size for unit in units)] for size in self.sizes}

    @cached_property
    def kinds(self) -> dict[int, Unit]:
        """For each size of experts, a unit with such experts."""
        return {unit.expert_bytes: unit for unit in self.units if unit.expert_bytes}

    @cached_property
    def least_saved(self) -> list[float]:
        """For each device, the least time that a byte of experts costs on the host instead; 0 where one costs none."""
        saved = [[self.saved(device, size) / size for size in self.sizes] for device in range(self.devices)]
        return [max(0.0, min(each, default=0.0)) for each in saved]

    def best(self) -> Choice:
        """Return the best placement over all numbers of host layers."""
        host = [0.0, *accumulate(unit.seconds[-1] + unit.whole_host_seconds for unit in self.units)]
        ends = self.device_runs()
        start = min(range(self.end + 1), key=lambda index: (host[index] + ends[0][index][0], index))
        seconds = host[start] + ends[0][start][0]
        runs, experts, at = [], [], start
        for device in range(self.devices):
            after = ends[device][at][1]
            runs.append(after - at)
            experts += self.host_experts(device, at, after)
            at = after
        return Choice(host_units=start, device_units=tuple(runs), host_experts=tuple(experts), seconds=seconds)

    def device_runs(self) -> list[list[tuple[float, int]]]:
        """Return for each device and first unit: the least time of all units from there, and where the run ends."""
        ends = [[(_NEVER, self.end)] * self.end + [(0.0, self.end)] for _ in range(self.devices + 1)]
        for device in reversed(range(self.devices)):
            following = ends[device + 1]
            for first in range(self.end):
                ends[device][first] = self.best_run(device, first, following)
        return ends

    def best_run(self, device: int, first: int, following: list[tuple[float, int]]) -> tuple[float, int]:
        """Return the least time of all units from one on, the first run of them on a device, and where that ends.

        Runs are looked at in the order of the least they could take, until none of the rest can be better.
        """
        best = (following[first][0], first)
        for shortest_s, after, room in sorted(self.runs(device, first, following)):
            if shortest_s >= best[0]:
                break
            plain = self.seconds[device][after] - self.seconds[device][first]
            seconds = plain + self.expert_time(device, first, after, room) + following[after][0]
            best = min(best, (seconds, after))
        return best

    def runs(self, device: int, first: int, following: list[tuple[float, int]]) -> Iterator[tuple[float, int, int]]:
        """Yield the runs that a device holds from a unit on: the least they could take, their end, room for experts."""
        ends = range(first + 1, self.end + 1) if device < self.devices - 1 else (self.end,)
        for after in ends:
            room = self.rooms[device] - (self.bytes[after] - self.bytes[first])
            if room < 0:
                return
            seconds = self.seconds[device][after] - self.seconds[device][first] + following[after][0]
            counts = {size: self.counts[size][after] - self.counts[size][first] for size in self.sizes}
            over = sum(size * count for size, count in counts.items()) - room
            for size, count in counts.items():
                times = self.kinds[size].expert_seconds
                seconds += count * min(times[device], times[-1])
            yield seconds + max(0, over) * self.least_saved[device], after, room

    def expert_time(self, device: int, first: int, after: int, room: int) -> float:
        """Return the time of a run's experts, as many of them on the device as the room holds."""
        total = 0.0
        stay = self.staying(device, first, after, room)
        for size in self.sizes:
            there = self.counts[size][after] - self.counts[size][first]
            if there:
                times = self.kinds[size].expert_seconds
                total += stay[size] * times[device] + (there - stay[size]) * times[-1]
        return total

    def staying(self, device: int, first: int, after: int, room: int) -> dict[int, int]:
        """Return the numbers of experts of each size that stay on the device: the choice that saves most time."""
        there = {size: self.counts[size][after] - self.counts[size][first] for size in self.sizes}
        if sum(size * count for size, count in there.items()) <= room:
            return {size: count if self.saved(device, size) > 0 else 0 for size, count in there.items()}
        return self.most_saved(device, [(size, count) for size, count in there.items() if count], room)[1]

    def saved(self, device: int, size: int) -> float:
        """Return the time that experts of a size save on a device."""
        times = self.kinds[size].expert_seconds
        return times[-1] - times[device]

    def most_saved(self, device: int, left: list[tuple[int, int]], room: int) -> tuple[float, dict[int, int]]:
        """Return the time saved by the best numbers of experts of each size, and these numbers."""
        none = dict.fromkeys(self.sizes, 0)
        if not left:
            return 0.0, none
        (size, count), *rest = left
        saved = self.saved(device, size)
        max_count = min(count, room // size) if saved > 0 else 0
        if not rest:
            return max_count * saved, none | {size: max_count}
        # fewer than the most only make room for one more of another size
        options = []
        for taken in range(max(0, max_count - self.span(size, rest)), max_count + 1):
            time, others = self.most_saved(device, rest, room - taken * size)
            options.append((time + taken * saved, others | {size: taken}))
        return max(options, key=lambda option: option[0])

    @staticmethod
    def span(size: int, rest: list[tuple[int, int]]) -> int:
        """Count the fewer of a size that can be worth it: all that smaller ones could replace, but no more than 16."""
        return min(16, sum(other * count for other, count in rest) // size + 1)

    def host_experts(self, device: int, first: int, after: int) -> list[int]:
        """Return the layers of a run whose experts are the host's: of each size the first ones."""
        if first == after:
            return []
        stay = self.staying(device, first, after, self.rooms[device] - (self.bytes[after] - self.bytes[first]))
        left = {size: self.counts[size][after] - self.counts[size][first] - stay[size] for size in self.sizes}
        moved = []
        for layer in range(first, after):
            size = self.units[layer].expert_bytes
            if size and left[size]:
                moved.append(layer)
                left[size] -= 1
        return moved
