"""The chosen placement against all placements of small models."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from kvcalc.plan.local.choice import Choice, Memories, Unit, chosen


def _small(rng: random.Random) -> tuple[list[Unit], Memories]:
    """A model of a few layers with experts of two sizes, on one to three devices of unlike rates, and a host."""
    devices = rng.choice([1, 2, 2, 3])
    rates = [rng.choice([0.4, 0.6, 1.0, 1.8]) for _ in range(devices)] + [rng.choice([0.05, 0.1])]
    sizes = [rng.randint(60, 120), rng.randint(60, 120)]
    moved = rng.choice([0.0, 5.0])
    units = []
    for _ in range(rng.randint(3, 6)):
        plain, experts = rng.randint(8, 20), rng.choice([0, *sizes, *sizes])
        on_device = tuple(experts / 8 / rate for rate in rates)
        units.append(
            Unit(
                bytes=plain,
                seconds=tuple(plain / rate for rate in rates),
                expert_bytes=experts,
                expert_seconds=(*on_device[:-1], on_device[-1] + moved) if experts else (),
                whole_host_seconds=on_device[-1] if experts else 0.0,
            )
        )
    units.append(Unit(bytes=rng.randint(5, 30), seconds=tuple(10 / rate for rate in rates)))
    capacity = tuple(rng.randint(20, 500) for _ in range(devices))
    return units, Memories(capacity_bytes=capacity, fixed_bytes=(10,) * devices)


def _seconds(units: list[Unit], memories: Memories, placed: Choice) -> float | None:
    """The time of a placement, unit by unit; none where a device does not hold it."""
    total = sum(unit.seconds[-1] + unit.whole_host_seconds for unit in units[: placed.host_units])
    first = placed.host_units
    for device, count in enumerate(placed.device_units):
        used = memories.fixed_bytes[device] if count else 0
        for layer in range(first, first + count):
            unit = units[layer]
            total += unit.seconds[device]
            used += unit.bytes
            if layer in placed.host_experts:
                total += unit.expert_seconds[-1]
            elif unit.expert_bytes:
                total += unit.expert_seconds[device]
                used += unit.expert_bytes
        if used > memories.capacity_bytes[device]:
            return None
        first += count
    return total


def _every(units: list[Unit], memories: Memories) -> float:
    """The least time over all placements, tried one by one."""
    end, devices = len(units), len(memories.capacity_bytes)
    best = float("inf")
    for host in range(end + 1):
        for cuts in combinations(range(host, end + devices - 1), devices - 1):
            edges = [host, *(cut - index for index, cut in enumerate(cuts)), end]
            runs = tuple(after - before for before, after in pairwise(edges))
            layers = [layer for layer in range(host, end) if units[layer].expert_bytes]
            for count in range(len(layers) + 1):
                for moved in combinations(layers, count):
                    each = Choice(host_units=host, device_units=runs, host_experts=moved, seconds=0)
                    seconds = _seconds(units, memories, each)
                    best = best if seconds is None else min(best, seconds)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_the_choice_is_the_best_of_all_placements_and_fits(seed):
    units, memories = _small(random.Random(seed))  # noqa: S311  small cases, not secrets
    placed = chosen(units, memories)
    seconds = _seconds(units, memories, placed)
    assert seconds is not None
    assert seconds == pytest.approx(placed.seconds)
    assert _every(units, memories) / seconds > 0.99


def test_large_models_on_three_devices_are_placed_at_once():
    layer = Unit(
        bytes=100, seconds=(1.0, 2.0, 3.0, 20.0), expert_bytes=3000, expert_seconds=(1.0, 2.0, 3.0, 15.0),
        whole_host_seconds=14.0,
    )  # fmt: skip
    units = [layer] * 94 + [Unit(bytes=400, seconds=(4.0, 8.0, 12.0, 80.0))]
    memories = Memories(capacity_bytes=(80_000, 60_000, 40_000), fixed_bytes=(2000, 1000, 1000))
    placed = chosen(units, memories)
    assert placed.host_units == 0
    assert sum(placed.device_units) == len(units)
    assert _seconds(units, memories, placed) == pytest.approx(placed.seconds)
