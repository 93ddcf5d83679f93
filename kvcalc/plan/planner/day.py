"""A day of traffic: replicas by the hour, and what autoscaling saves with replicas that take time to start."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.reports.plan import DayHour, DaySavings
from kvcalc.core.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["day_savings"]

_DAY_S = 86_400.0


def day_savings(
    slices: Sequence[tuple[float, float]], *, capacity_per_s: float, gpus: int, spare: int, cold_start_s: float
) -> DaySavings:
    """Return the replicas of each slice of a day, and what they save against the peak's all day.

    A replica is started as long before its slice as it takes, and paid for from then on.

    Args:
        slices: when each begins, in seconds, and its requests a second; the last ends with the day.
        capacity_per_s: requests a second that one replica may be loaded to.
        gpus: accelerators of a replica.
        spare: replicas that may fail.
        cold_start_s: time that a replica takes to start.

    Raises:
        InputError: a cold start below 0.

    >>> day = day_savings([(0, 1.0), (43200, 4.0)], capacity_per_s=1.0, gpus=2, spare=0, cold_start_s=3600)
    >>> [row.gpus for row in day.rows], day.gpu_hours, day.fixed_gpu_hours
    ([2, 8], 126.0, 192.0)
    """
    if not 0 <= cold_start_s < _DAY_S:
        raise InputError(f"a cold start takes from 0 s to a day, not {cold_start_s:g} s", parameter="cold-start")
    ends = [start for start, _ in slices[1:]] + [max(_DAY_S, slices[-1][0] + SECONDS_PER_HOUR)]
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
        rows=tuple(rows),
        peak_gpus=peak,
        valley_gpus=min(row.gpus for row in rows),
        gpu_hours=seconds / SECONDS_PER_HOUR,
        fixed_gpu_hours=fixed / SECONDS_PER_HOUR,
        saved_share=1 - seconds / fixed,
    )


def _replicas(rate: float, capacity_per_s: float, spare: int) -> int:
    return max(1, math.ceil(rate / capacity_per_s)) + spare
