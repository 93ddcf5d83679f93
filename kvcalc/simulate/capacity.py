"""The highest load at which limits hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.reports.simulate import SERVED_RATE, Capacity
from kvcalc.simulate.metrics import parse_slo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvcalc.simulate.load import Load
    from kvcalc.simulate.metrics import Limit, Metrics
    from kvcalc.simulate.run import ServingRun

__all__ = ["HighestRate", "broken_by", "find_capacity", "highest_rate"]

# The share of the offered rate that a server must keep up with.
_KEPT_UP = 0.97

# A load at which requests come so far apart that each is served alone.
_MIN_RATE = 1e-6
# A load that still holds here is taken to hold always: the whole trace comes at once.
_MAX_RATE = 1e9
_MIN_TOLERANCE = 1e-4
_DOUBLING = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestRate:
    """The result of a search.

    Args:
        rate_per_s: the highest rate that held; 0 where even requests served alone broke a limit.
        above_rate_per_s: the lowest rate that did not hold; none where all held.
        tried: rates tried.
    """

    rate_per_s: float
    above_rate_per_s: float | None
    tried: int


def highest_rate(
    holds: Callable[[float], bool], *, start_per_s: float, tolerance: float, factor: float = 2.0
) -> HighestRate:
    """Search for the highest rate at which something holds that holds at all lower rates.

    Doubles or halves from a first guess until one rate holds and the next does not, then halves the ratio between them
    until it is within the tolerance. From a good guess a smaller factor, which squares itself, finds them sooner.

    Args:
        holds: whether it holds at a rate.
        start_per_s: the first guess.
        tolerance: how much higher, as a share, the lowest rate that breaks may be than the highest that holds.
        factor: what the guess is first multiplied or divided by; 2 at most.

    Raises:
        InputError: a tolerance below a hundredth of a percent, or a guess that is no rate.

    >>> highest_rate(lambda rate: rate <= 5, start_per_s=1.0, tolerance=0.5)
    HighestRate(rate_per_s=4.0, above_rate_per_s=5.656854249492381, tried=5)
    """
    if not _MIN_TOLERANCE <= tolerance < math.inf:
        raise InputError(f"a tolerance of {tolerance:g}", hint=f"a share of {_MIN_TOLERANCE:g} or more")
    if not 0 < start_per_s < math.inf:
        raise InputError(f"a search cannot start at {start_per_s:g} requests/s")
    tried = 0

    def tell(rate: float) -> bool:
        nonlocal tried
        tried += 1
        return holds(rate)

    low, high = _around(tell, start_per_s, factor)
    if not low:
        return HighestRate(rate_per_s=0.0, above_rate_per_s=_MIN_RATE, tried=tried)
    while low * (1 + tolerance) < high < math.inf:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if tell(middle) else (low, middle)
    return HighestRate(rate_per_s=low, above_rate_per_s=None if high == math.inf else high, tried=tried)


def _around(holds: Callable[[float], bool], start: float, factor: float) -> tuple[float, float]:
    """Return a rate that holds, 0 if none does, and one that does not, infinity if all do."""
    if holds(start):
        low = start
        while low * factor <= _MAX_RATE:
            if not holds(low * factor):
                return low, low * factor
            low, factor = low * factor, min(_DOUBLING, factor * factor)
        return low, math.inf
    high = start
    while factor < _DOUBLING:  # near a good guess: a load of next to nothing is tried only where this fails
        if holds(high / factor):
            return high / factor, high
        high, factor = high / factor, min(_DOUBLING, factor * factor)
    if not holds(_MIN_RATE):
        return 0.0, _MIN_RATE
    while high / factor > _MIN_RATE:
        if holds(high / factor):
            return high / factor, high
        high /= factor
    return _MIN_RATE, high


def broken_by(metrics: Metrics, limits: Iterable[Limit]) -> list[str]:
    """Name what a run broke: its limits, and `SERVED_RATE` where its queue grew as long as requests came.

    A queue grows where it takes in more than 1/0.97 of what is served. Of few requests, whose number in a time varies
    by its square root, only a growth beyond that is one.

    Args:
        metrics: of the run.
        limits: what must hold beside.
    """
    grows = metrics.queue_growth > max(1 / _KEPT_UP - 1, 1 / math.sqrt(max(1, metrics.requests)))
    return [str(limit) for limit in limits if not metrics.kept(limit)] + [SERVED_RATE] * grows


def find_capacity(
    make_run: Callable[[], ServingRun],
    load: Load,
    *,
    slo: str | None,
    tolerance: float,
    progress: Callable[[float, bool], None] | None = None,
) -> Capacity:
    """Search for the highest rate of a load at which all limits hold and requests are served as fast as they come.

    Args:
        make_run: makes a run that has served nothing.
        load: requests; the search starts at their rate.
        slo: the limits.
        tolerance: how far the rate may be below the lowest that breaks a limit, as a share.
        progress: takes each rate tried and whether it held.

    Raises:
        InputError: no limits, a closed loop, or a tolerance too small.
    """
    if slo is None:
        raise InputError("a search for the capacity needs limits", hint="give --slo ttft_p95=1s,tpot_p95=50ms")
    bodies = None if load.turns is not None else load.kept_bodies()
    limits, broken = parse_slo(slo), [""]

    def holds(rate: float) -> bool:
        run = make_run()
        run.serve(load.at_rate(rate).source(bodies), ())
        wrong = broken_by(run.metrics, limits)
        if wrong:
            broken.append(wrong[0])
        if progress is not None:
            progress(rate, not wrong)
        return not wrong

    highest = highest_rate(holds, start_per_s=load.rate or 1.0, tolerance=tolerance)
    return Capacity(
        slo=slo,
        requests_per_s=highest.rate_per_s,
        above_requests_per_s=highest.above_rate_per_s,
        tolerance_share=tolerance,
        runs=highest.tried,
        broken=broken[-1],
    )
