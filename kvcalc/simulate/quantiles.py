"""Quantiles of a stream: exact as long as it is short, within a stated relative error beyond."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RELATIVE_ERROR", "Quantiles"]

# Of a quantile of a long stream.
RELATIVE_ERROR = 0.002
_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GROWTH = math.log(_GROWTH)
# Below this a duration counts as none.
_MIN_S = 1e-12
_MAX_EXACT = 100_000


class Quantiles:
    """Durations with whole weights.

    The quantile p is the smallest value that at least a share p of the weight does not exceed. Up to ``most_exact``
    values are kept and the quantile is exact; after that they are counted in buckets whose limits grow by a factor, and
    it is within `RELATIVE_ERROR` of the exact one. The mean is exact always.

    Source: Masson, Rim and Lee 2019, DDSketch, arXiv 1908.10693 (buckets between powers of (1 + a) / (1 - a)).

    >>> waits = Quantiles()
    >>> for wait_s in (0.0, 1.0, 2.0, 3.0):
    ...     waits.add(wait_s)
    >>> waits.quantile(0.5), waits.quantile(0.75), waits.quantile(0.99), waits.mean
    (1.0, 2.0, 3.0, 1.5)
    """

    def __init__(self, *, most_exact: int = _MAX_EXACT) -> None:
        self._most_exact = most_exact
        self._values = array("d")
        self._lines: list[tuple[float, float, int, int]] = []
        self._steps = 0
        # what is in buckets: their weights, the weight of no time at all, and the sums of both
        self._buckets: dict[int, int] = {}
        self._none = 0
        self._bucket_count = 0
        self._bucket_total = 0.0

    @property
    def exact(self) -> bool:
        """Whether every value is still known."""
        return not self._bucket_count

    @property
    def count(self) -> int:
        """The sum of the weights."""
        return self._bucket_count + len(self._values) + sum([line[2] * line[3] for line in self._lines])

    @property
    def mean(self) -> float:
        """The mean; NaN of nothing."""
        count = self.count
        return self._sum() / count if count else math.nan

    def add(self, value: float) -> None:
        """Take in a value of 0 or more."""
        self._values.append(value)
        self.settle()

    @property
    def adder(self) -> Callable[[float], None]:
        """The function that takes in a value of 0 or more, and nothing else: `settle` is to be called now and then."""
        return self._values.append

    def settle(self) -> None:
        """Count values in buckets where they have become too many."""
        if len(self._values) > self._most_exact:
            self._fill_buckets()

    def add_lines(self, lines: Sequence[tuple[float, float, int, int]]) -> None:
        """Take in lines of values: the first and the last, how many at equal distances, and the weight of each."""
        self._lines += lines
        self._steps += sum([line[2] for line in lines])
        if self._steps > self._most_exact:
            self._fill_buckets()

    def quantile(self, share: float) -> float:
        """Return the smallest value that at least this share of the weight does not exceed; NaN of nothing."""
        return self.quantiles((share,))[0]

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return the quantile of each share, in rising order of the shares."""
        count = self.count
        # a share such as 0.95 is not a binary fraction: 0.95 of 20 values are 19, not 19.000000000000004
        wanted = [max(1, math.ceil(share * count * (1 - 1e-12))) for share in shares]
        if not count:
            return [math.nan] * len(shares)
        if self.exact and not self._lines:
            rising = sorted(self._values)
            return [rising[index - 1] for index in wanted]
        values, ends = self._rising()
        return [values[bisect_left(ends, index)] for index in wanted]

    def _rising(self) -> tuple[list[float], list[int]]:
        """Return values in rising order, and for each the weight up to it; of a bucket, the middle of its error."""
        if self.exact:
            weighted = [(value, 1) for value in self._values]
            for first, last, steps, weight in self._lines:
                apart = (last - first) / (steps - 1) if steps > 1 else 0.0
                weighted += [(first + index * apart, weight) for index in range(steps)]
            weighted.sort()
        else:
            self._fill_buckets()
            weighted = [(0.0, self._none)] if self._none else []
            weighted += [(2 * _GROWTH**index / (_GROWTH + 1), self._buckets[index]) for index in sorted(self._buckets)]
        values, weights = zip(*weighted, strict=True)
        return list(values), list(accumulate(weights))

    def _fill_buckets(self) -> None:
        """Count what is known value by value in buckets from now on."""
        self._bucket_count, self._bucket_total = self.count, self._sum()
        for value in self._values:
            self._put(value, value, 1, 1)
        for first, last, steps, weight in self._lines:
            self._put(first, last, steps, weight)
        del self._values[:], self._lines[:]
        self._steps = 0

    def _sum(self) -> float:
        """Return the sum of all values with their weights."""
        lines = [steps * weight * (first + last) for first, last, steps, weight in self._lines]
        return self._bucket_total + math.fsum(self._values) + math.fsum(lines) / 2

    def _put(self, first: float, last: float, steps: int, weight: int) -> None:
        buckets = self._buckets
        low, high = (first, last) if first <= last else (last, first)
        if low < _MIN_S:
            self._put_none(high, steps, weight)
            return
        bottom = math.ceil(math.log(low) / _LOG_GROWTH)
        top = bottom if steps == 1 else math.ceil(math.log(high) / _LOG_GROWTH)
        if bottom == top:
            buckets[bottom] = buckets.get(bottom, 0) + steps * weight
            return
        apart = (high - low) / (steps - 1)
        placed = 0
        for index in range(bottom, top + 1):
            below = steps if index == top else min(steps, int((_GROWTH**index - low) / apart) + 1)
            if below > placed:
                buckets[index] = buckets.get(index, 0) + (below - placed) * weight
                placed = below

    def _put_none(self, high: float, steps: int, weight: int) -> None:
        """Count a line that begins at no time at all: its first value as none, the others as they are."""
        apart = high / (steps - 1) if steps > 1 else 0.0
        self._none += weight
        for index in range(1, steps):
            if index * apart < _MIN_S:
                self._none += weight
            else:
                self._put(index * apart, index * apart, 1, weight)
