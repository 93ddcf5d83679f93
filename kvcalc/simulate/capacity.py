"""The highest load at which limits hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.reports.simulate import Capacity
from kvcalc.simulate.metrics import parse_slo
from kvcalc.simulate.stationary import BrokenOffError, RunLength, StationaryPart, run_length

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.requests import Request
    from kvcalc.simulate.load import Load
    from kvcalc.simulate.metrics import Limit
    from kvcalc.simulate.run import ServingRun
    from kvcalc.simulate.stationary import Measured

__all__ = ["HighestRate", "StationaryRuns", "find_capacity", "highest_rate"]

# A load at which requests come so far apart that each is served alone.
_MIN_RATE = 1e-6
# A load that still holds here is taken to hold always: the whole trace comes at once.
_MAX_RATE = 1e9
_MIN_TOLERANCE = 1e-4
_DOUBLING = 2.0
# Times the usual requests of a run where a capacity is all that is asked for.
_THOROUGH = 2.0
# A run of so large a share of the requests is enough where all statistics are below this share of their limits.
_SHORT = 0.3
_FAR = 0.5
# A run that is so little too short is not made again.
_NEARLY = 1.05
# How far into a bracket, as a share of its width, a rate is tried at least.
_INSIDE = 0.15


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
    pressure: Callable[[float], float], *, start_per_s: float, tolerance: float, factor: float = 2.0
) -> HighestRate:
    """Search for the highest rate at which something holds that holds at all lower rates.

    Goes up or down from a first guess until one rate holds and the next does not, then halves the ratio between them
    until it is within the tolerance. Where the pressure of two rates is known, a straight line through their logarithms
    says where it is 1.

    Args:
        pressure: how near something is to breaking at a rate: at most 1 where it holds; 0 and infinity where nothing
            else is known.
        start_per_s: the first guess.
        tolerance: how much higher, as a share, the lowest rate that breaks may be than the highest that holds.
        factor: what the guess is first multiplied or divided by; 2 at most.

    Raises:
        InputError: a tolerance below a hundredth of a percent, or a guess that is no rate.

    >>> highest_rate(lambda rate: 0 if rate <= 5 else math.inf, start_per_s=1.0, tolerance=0.5)
    HighestRate(rate_per_s=4.0, above_rate_per_s=5.656854249492381, tried=5)
    >>> highest_rate(lambda rate: (rate / 5) ** 2, start_per_s=4.0, tolerance=0.01).tried
    6
    """
    if not _MIN_TOLERANCE <= tolerance < math.inf:
        raise InputError(f"a tolerance of {tolerance:g}", hint=f"a share of {_MIN_TOLERANCE:g} or more")
    if not 0 < start_per_s < math.inf:
        raise InputError(f"a search cannot start at {start_per_s:g} requests/s")
    search = _Search(pressure, tolerance)
    search.bracket(start_per_s, factor)
    if not search.low:
        return HighestRate(rate_per_s=0.0, above_rate_per_s=_MIN_RATE, tried=search.tried)
    while search.low * (1 + tolerance) < search.high < math.inf:
        search.holds(search.between())
    above = None if search.high == math.inf else search.high
    return HighestRate(rate_per_s=search.low, above_rate_per_s=above, tried=search.tried)


class _Search:
    """Rates tried, the highest that held and the lowest that did not.

    Args:
        pressure: see `highest_rate`.
        tolerance: likewise.
    """

    def __init__(self, pressure: Callable[[float], float], tolerance: float) -> None:
        self._pressure, self._tolerance = pressure, tolerance
        self.low, self.high, self.tried = 0.0, math.inf, 0
        self._known: dict[float, float] = {}  # logarithms of pressures by those of rates
        self._row = 0  # rates tried one after the other that all held (above 0) or all broke

    def holds(self, rate: float) -> bool:
        """Try a rate."""
        self.tried += 1
        pressure = self._pressure(rate)
        if 0 < pressure < math.inf:
            self._known[math.log(rate)] = math.log(pressure)
        if pressure <= 1:
            self.low, self._row = max(self.low, rate), max(self._row, 0) + 1
        else:
            self.high, self._row = min(self.high, rate), min(self._row, 0) - 1
        return pressure <= 1

    def bracket(self, start: float, factor: float) -> None:
        """Try rates until one holds and one does not, or the last that are tried all do the same."""
        if self.holds(start):
            while self.low * factor <= _MAX_RATE and self.holds(self._up(factor)):
                factor = min(_DOUBLING, factor * factor)
            return
        while factor < _DOUBLING:  # near a good guess: a load of next to nothing is tried only where this fails
            if self.holds(self.high / factor):
                return
            factor = min(_DOUBLING, factor * factor)
        if not self.holds(_MIN_RATE):
            return
        while self.high / factor > _MIN_RATE and not self.holds(self.high / factor):
            pass

    def _up(self, factor: float) -> float:
        """Return the next higher rate: where the line through the last two crosses the limit, but near."""
        line = self._crossing()
        return self.low * factor if line is None else min(self.low * _DOUBLING, max(line, self.low * self._least))

    @property
    def _least(self) -> float:
        """The least factor between two rates that are told apart."""
        return 1 + 0.99 * self._tolerance

    def between(self) -> float:
        """Return the next rate between the highest that held and the lowest that did not."""
        line, ratio = self._crossing(), self.high / self.low
        if line is None or abs(self._row) > 1:  # one side alone moves: halve
            return math.sqrt(self.low * self.high)
        inside = max(self._least, ratio**_INSIDE)
        if ratio <= inside * inside:
            return math.sqrt(self.low * self.high)
        return float(min(self.high / inside, max(line, self.low * inside)))

    def _crossing(self) -> float | None:
        """Return the rate at which the line through the two nearest known pressures is 1."""
        nearest = sorted(sorted(self._known, key=lambda rate: abs(self._known[rate]))[:2])
        if len(nearest) < 2:  # noqa: PLR2004
            return None
        one, two = nearest
        rise = self._known[two] - self._known[one]
        if rise <= 0:
            return None
        crossing = two - self._known[two] * (two - one) / rise
        return math.exp(crossing) if abs(crossing) < math.log(_MAX_RATE) else None


class StationaryRuns:
    """Runs of one load on one server at any rate, each as long as a stationary run needs.

    A load with a length of its own (a trace, requests that are counted) is served whole.

    Args:
        make_run: makes a run that has served nothing; takes the rate.
        load: the requests.
        limits: what must hold.
        bodies: returns so many of its requests, or all with none; made anew for each run where left out.
        factor: times the usual number of requests.
        tries_short: whether a shorter run may do, far below the limits.
        running: requests that are expected in the server at once, where that is known: runs are that long at first.
    """

    def __init__(
        self,
        make_run: Callable[[], ServingRun],
        load: Load,
        limits: Sequence[Limit],
        *,
        bodies: Callable[[int | None], Sequence[Request]] | None = None,
        factor: float = 1.0,
        tries_short: bool = False,
        running: float = 0.0,
    ) -> None:
        self._make_run, self._load, self._limits, self._bodies = make_run, load, limits, bodies
        self._factor, self._tries_short = factor, tries_short
        own = load.trace is not None or load.requests is not None
        self.length: RunLength | None = None if own else run_length(running, factor=factor)
        self.last: ServingRun | None = None

    def measured(self, rate: float) -> Measured | str:
        """Serve the load at a rate; where a limit is sure to break, its name is all there is.

        A shorter run comes first: far below the limits it is all that is needed.
        """
        if self._tries_short and self.length is not None:
            usual, self.length = self.length, run_length(factor=_SHORT * self._factor)
            try:
                measured = self._once(rate)
                short = run_length(measured.running, factor=_SHORT * self._factor)
                if measured.likely_pressure < _FAR and short.requests <= self.length.requests:
                    return measured
            except BrokenOffError as ended:
                return ended.broken
            finally:
                self.length = usual
        while True:
            try:
                measured = self._once(rate)
            except BrokenOffError as ended:
                return ended.broken
            if self.length is None or measured.broken:
                return measured
            needed = run_length(measured.running, factor=self._factor)
            if needed.requests <= _NEARLY * self.length.requests:
                return measured
            self.length = needed

    def _once(self, rate: float) -> Measured:
        load, length = self._load.at_rate(rate), self.length
        if length is not None:
            load = replace(load, requests=length.requests).at_mean_rate(rate)
        independent = load.turns is None and load.process in ("poisson", "gamma", "constant")
        part = StationaryPart(self._limits, length=length, rate_per_s=rate if independent else None)
        run = self.last = self._make_run()
        bodies = None if self._bodies is None else self._bodies(None if length is None else length.requests)
        run.serve(load.source(bodies), (part,))
        return part.measured(run.metrics)


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
    kept: dict[int | None, tuple[Request, ...]] = {}

    def bodies(requests: int | None) -> tuple[Request, ...]:
        if requests not in kept:
            kept[requests] = (load if requests is None else replace(load, requests=requests)).kept_bodies()
        return kept[requests]

    made = None if load.turns is not None else bodies
    runs = StationaryRuns(make_run, load, parse_slo(slo), bodies=made, factor=_THOROUGH)
    broken = [""]

    def pressure(rate: float) -> float:
        measured = runs.measured(rate)
        wrong = [measured] if isinstance(measured, str) else list(measured.broken)
        broken.extend(wrong[:1])
        if progress is not None:
            progress(rate, not wrong)
        return math.inf if isinstance(measured, str) else measured.pressure

    highest = highest_rate(pressure, start_per_s=load.rate or 1.0, tolerance=tolerance)
    return Capacity(
        slo=slo,
        requests_per_s=highest.rate_per_s,
        above_requests_per_s=highest.above_rate_per_s,
        tolerance_share=tolerance,
        runs=highest.tried,
        broken=broken[-1],
        requests=None if runs.length is None else runs.length.requests,
    )
