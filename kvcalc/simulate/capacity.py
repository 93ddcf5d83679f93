"""The highest load at which limits hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HighestRate", "highest_rate"]

# A load at which requests come so far apart that each is served alone.
_LEAST_RATE = 1e-6
# Doublings after which a load that still holds is taken to hold always: the whole trace comes at once.
_MOST_DOUBLINGS = 24
_LEAST_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class HighestRate:
    """What a search found.

    Args:
        rate_per_s: the highest rate that held; 0 where even requests served alone broke a limit.
        above_rate_per_s: the lowest rate that did not hold; none where all held.
        tried: rates tried.
    """

    rate_per_s: float
    above_rate_per_s: float | None
    tried: int


def highest_rate(holds: Callable[[float], bool], *, start_per_s: float, tolerance: float) -> HighestRate:
    """Search for the highest rate at which something holds that holds at all lower rates.

    Doubles or halves from a first guess until one rate holds and the next does not, then halves the ratio between them
    until it is within the tolerance.

    Args:
        holds: whether it holds at a rate.
        start_per_s: the first guess.
        tolerance: how much higher, as a share, the lowest rate that breaks may be than the highest that holds.

    Raises:
        InputError: a tolerance below a hundredth of a percent, or a guess that is no rate.

    >>> highest_rate(lambda rate: rate <= 5, start_per_s=1, tolerance=0.5)
    HighestRate(rate_per_s=4.0, above_rate_per_s=5.65685424949238, tried=5)
    """
    if not _LEAST_TOLERANCE <= tolerance < math.inf:
        raise InputError(f"a tolerance of {tolerance:g}", hint=f"a share of {_LEAST_TOLERANCE:g} or more")
    if not 0 < start_per_s < math.inf:
        raise InputError(f"a search cannot start at {start_per_s:g} requests a second")
    tried = 0

    def tell(rate: float) -> bool:
        nonlocal tried
        tried += 1
        return holds(rate)

    low, high = 0.0, math.inf
    rate = start_per_s
    for _ in range(_MOST_DOUBLINGS):
        if tell(rate):
            low = rate
            if high < math.inf:
                break
            rate *= 2
        else:
            if high == math.inf and not low and not tell(_LEAST_RATE):
                return HighestRate(rate_per_s=0.0, above_rate_per_s=_LEAST_RATE, tried=tried)
            high = rate
            if low:
                break
            rate /= 2
    if high == math.inf:
        return HighestRate(rate_per_s=low, above_rate_per_s=None, tried=tried)
    low = low or _LEAST_RATE
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        if tell(middle):
            low = middle
        else:
            high = middle
    return HighestRate(rate_per_s=low, above_rate_per_s=high, tried=tried)
