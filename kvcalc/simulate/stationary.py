"""The stationary part of a run: how long a run must be, which requests of it count, and what they break.

A run begins with an empty server, so its first requests see less of a queue than those that follow: they are left out.
What is left is long enough where it holds thousands of requests and several times those that are in the server at once,
and stationary where the queue does not grow from its first half to its second.

Source: Law 2015, Simulation Modeling and Analysis, 5th ed., 9.5.1 (deletion of the warm-up) and 9.5.3 (batch means);
Whitt 1989, Planning queueing simulations, doi 10.1287/mnsc.35.11.1341 (lengths); Little 1961 (requests in the server).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.reports.simulate import QUANTILES, SERVED_RATE, limit_text
from kvcalc.simulate.metrics import OF_REQUEST, latencies
from kvcalc.simulate.observers import Observer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.reports.simulate import Capacity
    from kvcalc.simulate.metrics import Limit, Metrics
    from kvcalc.simulate.observers import Served

__all__ = ["BrokenOffError", "Measured", "RunLength", "StationaryPart", "capacity_notes", "run_length"]

# Requests that count: with 5,000 independent ones, 95 % of the values of a p95 lie within its p94.4 to p95.6.
_MIN_MEASURED = 5_000
_MAX_MEASURED = 40_000
# Requests in the server at once, so many times: residence times that a run and its warm-up last.
_RESIDENCES = 5
_WARM_UP_RESIDENCES = 2
_WARM_UP_SHARE = 0.2
# Share of the arrivals that may pile up, beyond what chance piles up of so many.
_MAX_PILED = 0.01
# A run in which so large a share piles up is broken off halfway, once it has lasted several times a request's service.
_SURELY_PILED = 0.3
_SETTLED_SERVICES = 3
# A run is broken off in its warm-up, which sees less of a queue than what follows, where of so many requests at least
# half break a limit, and many more than may; in a short run, of a third of its warm-up.
_EARLY, _EARLY_SHARE = 200, 1 / 3
_BATCHES = 10
# Of Student's t with nine degrees of freedom, 5 % lie above.
_DEVIATES = 1.833


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength:
    """Requests of a run.

    Args:
        warm_up: the first of them, which do not count.
        measured: those that count.
    """

    warm_up: int
    measured: int

    @property
    def requests(self) -> int:
        """All of them."""
        return self.warm_up + self.measured


def run_length(running: float = 0.0, *, factor: float = 1.0) -> RunLength:
    """Return the length of a run that ends up stationary, where so many requests are in the server at once.

    Args:
        running: requests in all replicas at once, mean; 0 where it is not known yet.
        factor: times the usual number of requests.

    >>> run_length(100)
    RunLength(warm_up=1000, measured=5000)
    >>> run_length(2_000)
    RunLength(warm_up=4000, measured=10000)
    """
    measured = min(_MAX_MEASURED, max(round(_MIN_MEASURED * factor), math.ceil(_RESIDENCES * running)))
    return RunLength(
        warm_up=max(math.ceil(_WARM_UP_SHARE * measured), min(measured, math.ceil(_WARM_UP_RESIDENCES * running))),
        measured=measured,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of the requests that count.

    Args:
        requests: their number.
        latencies_s: ``p50``, ``p90``, ``p95``, ``p99`` and ``mean`` by latency.
        running: requests in the server when one comes, mean.
        piled_share: share of the arrivals by which the queue grows.
        pressure: the largest statistic over its limit: at most 1 where all limits hold.
        likely_pressure: the same at the upper end of what chance makes of the statistics.
        tightest: the limit that comes closest to breaking, chance included; `SERVED_RATE` where the queue grows.
        broken: limits that broke, and `SERVED_RATE` where the queue grows.
    """

    requests: int
    latencies_s: dict[str, dict[str, float]]
    running: float
    piled_share: float
    pressure: float
    likely_pressure: float
    tightest: str
    broken: tuple[str, ...]


class BrokenOffError(Exception):
    """A run that is ended early: what it still brings cannot mend the limit that broke.

    Args:
        broken: the limit.
    """

    def __init__(self, broken: str) -> None:
        super().__init__(f"{broken} is broken")
        self.broken = broken


class StationaryPart(Observer):
    """Keeps the latencies of a run's requests, for those of its stationary part.

    Args:
        limits: what must hold.
        length: of the run; none for a load with a length of its own, which counts whole.
        rate_per_s: of arrivals that come independently of the answers, to break off a run that cannot end well.
    """

    def __init__(
        self, limits: Sequence[Limit], *, length: RunLength | None = None, rate_per_s: float | None = None
    ) -> None:
        self._limits, self._length = limits, length
        self._rows = array("d")  # arrival, end and the four latencies of each request
        self._served = self._counted = 0
        self._service_s = 0.0
        self._since_s, self._rate = math.inf, rate_per_s or 0.0
        self._watched: list[tuple[int, float, str, float]] = []
        if length is not None and rate_per_s is not None:
            self._since_s = (length.warm_up + 3 * math.sqrt(length.warm_up)) / rate_per_s
            self._watched = [
                (OF_REQUEST.index(each.latency), each.most_s, str(each), self._most_above(each.statistic, length))
                for each in limits
                if each.latency in OF_REQUEST and each.statistic in QUANTILES
            ]
        self._above = [0] * len(self._watched)
        self._enough = _EARLY if length is None else min(_EARLY, _EARLY_SHARE * length.warm_up)
        self._early = 0
        self._early_above = [0] * len(self._watched)

    @staticmethod
    def _most_above(statistic: str, length: RunLength) -> float:
        """Return the requests that may lie above a limit while the statistic of all is below it."""
        return (1 - QUANTILES[statistic]) * (length.measured + 3 * math.sqrt(length.warm_up)) + 1

    def finished(self, served: Served) -> None:
        """Take in a request that was answered.

        Raises:
            BrokenOffError: a limit that is sure to break.
        """
        arrival_s, values = served.request.arrival_s, latencies(served)
        self._rows.extend((arrival_s, served.finish_s, *values))
        self._service_s += served.finish_s - arrival_s - values[-1]
        if arrival_s < self._since_s:
            self._served += served.finish_s < self._since_s
            if 2 * arrival_s > self._since_s:
                self._warming_up(values)
            return
        self._counted += 1
        for index, (column, most_s, name, allowed) in enumerate(self._watched):
            if values[column] > most_s:
                self._above[index] += 1
                if self._above[index] > allowed:
                    raise BrokenOffError(name)
        self._look(served.finish_s)

    def _warming_up(self, values: Sequence[float]) -> None:
        """Break off a run most of whose first requests break a limit."""
        self._early += 1
        for index, (column, most_s, name, allowed) in enumerate(self._watched):
            self._early_above[index] += values[column] > most_s
            share = min(0.95, 0.5 + allowed / (self._length.requests if self._length else 1))
            if self._early >= self._enough and self._early_above[index] > share * self._early:
                raise BrokenOffError(name)

    def _look(self, now_s: float) -> None:
        """Break off a run halfway through whose requests pile up fast, beside those that are being served."""
        length = self._length
        if length is None or self._counted % 64:
            return
        all_rows = len(self._rows) // (2 + len(OF_REQUEST))
        arrived = min(length.measured, self._rate * (now_s - self._since_s))
        finished, service_s = all_rows - self._served, self._service_s / all_rows
        if arrived <= length.measured / 2 or now_s < _SETTLED_SERVICES * service_s:
            return
        if arrived - finished - self._rate * service_s > _SURELY_PILED * arrived:
            raise BrokenOffError(SERVED_RATE)

    def measured(self, metrics: Metrics) -> Measured:
        """Return the figures of the requests that count.

        Args:
            metrics: of the whole run, for times between single tokens.
        """
        width = 2 + len(OF_REQUEST)
        rows = sorted(zip(*(self._rows[column::width] for column in range(width)), strict=True))
        first = 0 if self._length is None else min(self._length.warm_up, len(rows) // 2)
        counted = rows[first:]
        latencies = {name: _statistics([row[2 + column] for row in counted]) for column, name in enumerate(OF_REQUEST)}
        if any(each.latency == "inter_token" for each in self._limits):
            latencies["inter_token"] = metrics.statistics("inter_token")
        running, piled = _inside(rows, first)
        pressures = {str(each): latencies[each.latency][each.statistic] / each.most_s for each in self._limits}
        likely = {str(each): _upper(counted, each, latencies) / each.most_s for each in self._limits}
        broken = [name for name, pressure in pressures.items() if pressure > 1]
        if piled > max(_MAX_PILED, 1 / math.sqrt(max(1, len(counted)))):
            broken.append(SERVED_RATE)
        return Measured(
            requests=len(counted),
            latencies_s=latencies,
            running=running,
            piled_share=piled,
            pressure=math.inf if SERVED_RATE in broken else max(pressures.values(), default=0.0),
            likely_pressure=math.inf if SERVED_RATE in broken else max(likely.values(), default=0.0),
            tightest=SERVED_RATE if SERVED_RATE in broken else max(likely, key=lambda name: likely[name], default=""),
            broken=tuple(broken),
        )


def _statistics(values: list[float]) -> dict[str, float]:
    """Return quantiles and mean; a quantile p is the smallest value that at least a share p does not exceed."""
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return dict.fromkeys((*QUANTILES, "mean"), 0.0)
    figures = {name: _quantile(known, share) for name, share in QUANTILES.items()}
    return figures | {"mean": math.fsum(known) / len(known)}


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered), max(1, math.ceil(share * len(ordered) - 1e-9))) - 1]


def _inside(rows: Sequence[tuple[float, ...]], first: int) -> tuple[float, float]:
    """Return the requests in the server when one comes, mean, and the share of arrivals by which the queue grows.

    The means of the two halves lie half of the arrivals apart.
    """
    ends = sorted(row[1] for row in rows)
    starts = sorted(row[0] + row[-1] for row in rows)
    places = range(first, len(rows))
    inside = math.fsum(index - bisect_left(ends, rows[index][0]) for index in places)
    queued = [index - bisect_left(starts, rows[index][0]) for index in places]
    half = len(queued) // 2
    if not half:
        return inside, 0.0
    early, late = math.fsum(queued[:half]) / half, math.fsum(queued[half : 2 * half]) / half
    return inside / len(places), (late - early) / half


def _upper(rows: Sequence[tuple[float, ...]], limit: Limit, statistics: dict[str, dict[str, float]]) -> float:
    """Return the upper end of a statistic: in 19 of 20 runs the true one lies below.

    Requests that follow each other resemble each other, so that the spread is that of batches of them: of the shares
    above the statistic for a quantile, of the means for a mean.
    """
    value = statistics[limit.latency][limit.statistic]
    if limit.latency not in OF_REQUEST:
        return value
    column = 2 + OF_REQUEST.index(limit.latency)
    # answers of one token have no time per token
    values = [row[column] for row in rows if not math.isnan(row[column])]
    size = len(values) // _BATCHES
    if size < _BATCHES:
        return value
    batches = [values[index * size : (index + 1) * size] for index in range(_BATCHES)]
    share = QUANTILES.get(limit.statistic)
    if share is None:
        return value + _DEVIATES * _error([math.fsum(each) / max(1, len(each)) for each in batches])
    above = [sum(one > value for one in each) / max(1, len(each)) for each in batches]
    return _quantile(sorted(values), min(1.0, share + _DEVIATES * _error(above)))


def _error(means: Sequence[float]) -> float:
    """Return the standard error of the mean of batches."""
    mean = math.fsum(means) / len(means)
    return math.sqrt(math.fsum((each - mean) ** 2 for each in means) / (len(means) - 1) / len(means))


def capacity_notes(capacity: Capacity, metrics: Metrics) -> tuple[str, ...]:
    """Note the basis of a search's result.

    Args:
        capacity: the result.
        metrics: of the run at its rate.
    """
    if not capacity.requests_per_s:
        return (f"no load keeps {limit_text(capacity.broken)}: requests served one at a time break it",)
    if capacity.above_requests_per_s is None:
        return ("the limits held at every rate tried: the load is too short to find where they break",)
    notes = ["a limit that breaks at one rate is taken to break at every higher one"]
    if capacity.requests is not None:
        notes.append(
            f"each run has {capacity.requests:,} requests, the first of which fill the server and do not count"
        )
    elif metrics.requests < run_length().requests:
        short = (
            f"{metrics.requests:,} requests are too few for a stationary run, and a longer one breaks limits earlier"
        )
        notes.append(f"{short}: --requests {run_length().requests}, or none")
    return tuple(notes)
