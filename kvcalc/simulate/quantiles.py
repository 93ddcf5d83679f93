"""Quantiles of a stream: exact as long as it is short, within a stated relative error beyond."""

from __future__ import annotations

import math
from array import array
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["RELATIVE_ERROR", "Quantiles"]

# Of a quantile of a long stream.
RELATIVE_ERROR = 0.002
_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH = math.log(_GROWTH)
# Below this a duration counts as none.
_LEAST_S = 1e-12
_MOST_EXACT = 100_000


class Quantiles:
    """Durations with whole weights.

    The quantile p is the smallest value that at least a share p of the weight does not exceed. Up to ``most_exact``
    values are kept and the quantile is exact; after that they are counted in buckets whose limits grow by a factor, and
    it is within `RELATIVE_ERROR` of the exact one.

    Source: Masson, Rim and Lee 2019, DDSketch, arXiv 1908.10693 (buckets between powers of (1 + a) / (1 - a)).

    >>> waits = Quantiles()
    >>> for wait_s in (0.0, 1.0, 2.0, 3.0):
    ...     waits.add(wait_s)
    >>> waits.quantile(0.5), waits.quantile(0.75), waits.quantile(0.99), waits.mean
    (1.0, 2.0, 3.0, 1.5)
    """

    def __init__(self, *, most_exact: int = _MOST_EXACT) -> None:
        self._most_exact = most_exact
        self._values = array("d")
        self._weights = array("q")
        self._buckets: dict[int, int] = {}
        self._none = 0
        self._exact = True
        self._total = 0.0
        self.count = 0

    @property
    def exact(self) -> bool:
        """Whether every value is still known."""
        return self._exact

    @property
    def mean(self) -> float:
        """The mean; NaN of nothing."""
        return self._total / self.count if self.count else math.nan

    def add(self, value: float, weight: int = 1) -> None:
        """Take in a value of 0 or more."""
        self.count += weight
        self._total += weight * value
        if self._exact:
            self._values.append(value)
            self._weights.append(weight)
            if len(self._values) > self._most_exact:
                self._fill_buckets()
        else:
            self._put(value, weight)

    def add_line(self, first: float, last: float, steps: int, weight: int) -> None:
        """Take in ``steps`` values at equal distances from ``first`` to ``last``, each with a weight."""
        if not weight:
            return
        self.count += steps * weight
        self._total += steps * weight * (first + last) / 2
        if self._exact:
            apart = (last - first) / (steps - 1) if steps > 1 else 0.0
            self._values.extend([first + place * apart for place in range(steps)])
            self._weights.extend(repeat(weight, steps))
            if len(self._values) > self._most_exact:
                self._fill_buckets()
        else:
            self._put_line(min(first, last), max(first, last), steps, weight)

    def quantile(self, share: float) -> float:
        """Return the smallest value that at least this share of the weight does not exceed; NaN of nothing."""
        return self.quantiles((share,))[0]

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return the quantile of each share, in rising order of the shares."""
        if not self.count:
            return [math.nan] * len(shares)
        # a share such as 0.95 is not a binary fraction: 0.95 of 20 values are 19, not 19.000000000000004
        wanted = [max(1, math.ceil(share * self.count * (1 - 1e-12))) for share in shares]
        found: list[float] = []
        seen = 0
        for value, weight in self._rising():
            seen += weight
            while seen >= wanted[len(found)]:
                found.append(value)
                if len(found) == len(wanted):
                    return found
        raise AssertionError

    def _rising(self) -> Iterator[tuple[float, int]]:
        """Yield values with their weights in rising order; of a bucket, the value in the middle of its error."""
        if self._exact:
            yield from sorted(zip(self._values, self._weights, strict=True))
            return
        if self._none:
            yield 0.0, self._none
        for bucket in sorted(self._buckets):
            yield 2 * _GROWTH**bucket / (_GROWTH + 1), self._buckets[bucket]

    def _fill_buckets(self) -> None:
        self._exact = False
        for value, weight in zip(self._values, self._weights, strict=True):
            self._put(value, weight)
        del self._values[:], self._weights[:]

    def _put(self, value: float, weight: int) -> None:
        if value < _LEAST_S:
            self._none += weight
            return
        bucket = math.ceil(math.log(value) / _LOG_GROWTH)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + weight

    def _put_line(self, low: float, high: float, steps: int, weight: int) -> None:
        low = max(low, _LEAST_S)
        first = math.ceil(math.log(low) / _LOG_GROWTH)
        last = math.ceil(math.log(max(high, low)) / _LOG_GROWTH)
        if first == last:
            self._buckets[first] = self._buckets.get(first, 0) + steps * weight
            return
        apart = (high - low) / (steps - 1)
        placed = 0
        for bucket in range(first, last + 1):
            below = steps if bucket == last else min(steps, int((_GROWTH**bucket - low) / apart) + 1)
            if below > placed:
                self._buckets[bucket] = self._buckets.get(bucket, 0) + (below - placed) * weight
                placed = below
