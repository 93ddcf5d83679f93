"""A day of traffic: replicas by the hour, and what autoscaling saves with replicas that take time to start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.reports.plan import DayHour, DaySavings
from kvcalc.core.units import SECONDS_PER_DAY, SECONDS_PER_HOUR

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DayLoad", "counted_by_hour", "day_savings"]

# An hour at either end of a trace is joined to the one beside it where the trace has less than this share of it: the
# rate of a few minutes is that of chance.
_LEAST_OF_HOUR = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DayLoad:
    """The load of a day.

    Args:
        slices: when each begins, in seconds after midnight, and its requests a second.
        end_s: when the last one ends.
        busiest_s: of a trace, when the slice with the highest rate begins and ends, after its first request; none
            where the rates were given as such.
        trace_s: time between the first and the last request of the trace.
    """

    slices: tuple[tuple[float, float], ...]
    end_s: float
    busiest_s: tuple[float, float] | None = None
    trace_s: float = 0.0

    @property
    def peak_per_s(self) -> float:
        """Requests a second of the busiest slice."""
        return max(rate for _, rate in self.slices)

    @property
    def peak_requests(self) -> int:
        """Requests of a trace in its busiest slice; 0 where rates were given as such."""
        begin_s, end_s = self.busiest_s or (0.0, 0.0)
        return round(self.peak_per_s * (end_s - begin_s))


def counted_by_hour(arrivals_s: Iterable[float]) -> DayLoad:
    """Count requests by the hour; of a trace longer than a day, in the day that has its busiest hour.

    Hours are those of the clock. The first and the last of a trace are as long as it has of them.

    Args:
        arrivals_s: when each request comes, in seconds after the first one's midnight, in their order.

    Raises:
        InputError: no requests, or all at once.

    >>> day = counted_by_hour([4000.0, 5000.0, 7200, 8000, 9000, 10_800])
    >>> day.slices, day.end_s, day.busiest_s
    (((4000.0, 0.000625), (7200.0, 0.0011111111111111111)), 10800.0, (3200.0, 6800.0))
    """
    counts: dict[int, int] = {}
    first_s = last_s = None
    for last_s in arrivals_s:
        first_s = last_s if first_s is None else first_s
        hour = int(last_s // SECONDS_PER_HOUR)
        counts[hour] = counts.get(hour, 0) + 1
    if first_s is None or last_s is None or first_s == last_s:
        raise InputError("all requests come at once: they make no day", hint="give --day with start,rate")
    hours = _whole_hours(counts, first_s, last_s)
    busiest = max(hours, key=lambda hour: hour[2] / (hour[1] - hour[0]))
    if last_s - first_s > SECONDS_PER_DAY:
        hours = _day_of(busiest, hours)
    midnight_s = hours[0][0] // SECONDS_PER_DAY * SECONDS_PER_DAY
    return DayLoad(
        slices=tuple((begin_s - midnight_s, count / (end_s - begin_s)) for begin_s, end_s, count in hours),
        end_s=hours[-1][1] - midnight_s,
        busiest_s=(busiest[0] - first_s, busiest[1] - first_s),
        trace_s=last_s - first_s,
    )


_Hour = tuple[float, float, int]


def _whole_hours(counts: dict[int, int], first_s: float, last_s: float) -> list[_Hour]:
    """Return beginning, end and requests of each hour of a trace, with scraps at the ends joined."""
    numbers = range(min(counts), max(counts) + 1)
    bounds = [first_s, *(number * SECONDS_PER_HOUR for number in numbers[1:]), last_s]
    spans = zip(numbers, pairwise(bounds), strict=True)
    hours = [(begin_s, end_s, counts.get(number, 0)) for number, (begin_s, end_s) in spans]
    least_s = _LEAST_OF_HOUR * SECONDS_PER_HOUR
    if len(hours) > 1 and hours[0][1] - hours[0][0] < least_s:
        hours[:2] = [_joined(*hours[:2])]
    if len(hours) > 1 and hours[-1][1] - hours[-1][0] < least_s:
        hours[-2:] = [_joined(*hours[-2:])]
    return hours


def _joined(one: _Hour, other: _Hour) -> _Hour:
    return one[0], other[1], one[2] + other[2]


def _day_of(busiest: _Hour, hours: list[_Hour]) -> list[_Hour]:
    """Return the hours of the clock's day that one lies in, or those of the trace's last day where it ends before."""
    begin_s = min(
        busiest[0] // SECONDS_PER_DAY * SECONDS_PER_DAY,
        math.ceil(hours[-1][1] / SECONDS_PER_HOUR) * SECONDS_PER_HOUR - SECONDS_PER_DAY,
    )
    return [hour for hour in hours if begin_s <= hour[0] < begin_s + SECONDS_PER_DAY]


def day_savings(day: DayLoad, *, capacity_per_s: float, gpus: int, spare: int, cold_start_s: float) -> DaySavings:
    """Return the replicas of each slice of a day, and what they save against the peak's all day.

    A replica is started as long before its slice as it takes, and paid for from then on.

    Args:
        day: its load.
        capacity_per_s: requests a second that one replica may be loaded to.
        gpus: accelerators of a replica.
        spare: replicas that may fail.
        cold_start_s: time that a replica takes to start.

    Raises:
        InputError: a cold start below 0.

    >>> load = DayLoad(slices=((0, 1.0), (43200, 4.0)), end_s=86400)
    >>> day = day_savings(load, capacity_per_s=1.0, gpus=2, spare=0, cold_start_s=3600)
    >>> [row.gpus for row in day.rows], day.gpu_hours, day.fixed_gpu_hours
    ([2, 8], 126.0, 192.0)
    """
    if not 0 <= cold_start_s < SECONDS_PER_DAY:
        raise InputError(f"a cold start takes from 0 s to a day, not {cold_start_s:g} s", parameter="cold-start")
    slices = day.slices
    ends = [start for start, _ in slices[1:]] + [day.end_s]
    rows, seconds = [], 0.0
    before = _replicas(slices[-1][1], capacity_per_s, spare)
    for (start, rate), end in zip(slices, ends, strict=True):
        replicas = _replicas(rate, capacity_per_s, spare)
        seconds += gpus * (replicas * (end - start) + max(0, replicas - before) * cold_start_s)
        rows.append(DayHour(start_s=start, requests_per_s=rate, replicas=replicas, gpus=gpus * replicas))
        before = replicas
    peak = max(row.gpus for row in rows)
    fixed = peak * (ends[-1] - slices[0][0])
    return DaySavings(
        cold_start_s=cold_start_s,
        end_s=day.end_s,
        rows=tuple(rows),
        peak_gpus=peak,
        valley_gpus=min(row.gpus for row in rows),
        gpu_hours=seconds / SECONDS_PER_HOUR,
        fixed_gpu_hours=fixed / SECONDS_PER_HOUR,
        saved_share=1 - seconds / fixed,
    )


def _replicas(rate: float, capacity_per_s: float, spare: int) -> int:
    return max(1, math.ceil(rate / capacity_per_s)) + spare
