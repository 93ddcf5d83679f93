"""A day of traffic: a table of rates, or a trace whose requests are counted by the hour."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.core.units import SECONDS_PER_DAY, SECONDS_PER_HOUR, parse_seconds, request_rate, seconds_text
from kvcalc.files import read_text
from kvcalc.importers.traces import is_trace, read_trace
from kvcalc.plan.planner.day import DayLoad, counted_by_hour

__all__ = ["day_notes", "read_day"]

_MAX_DAY_BYTES = 16 * 2**20
# Of a row: start and rate.
_CELLS = 2
_HINT = "start,rate: 08:00,12.5; of a trace of requests, name the columns: --columns time=ts:ms,prompt=in,output=out"


def read_day(path: str, *, columns: str | None = None) -> DayLoad:
    """Return the load of a day from a table of rates, or from a trace of requests.

    A table is a CSV file with the columns ``start`` (``3600``, ``1h``, ``01:00``) and ``rate``; without a header the
    first column is the start where there are two, and hours follow each other where there is one.

    Args:
        path: the file.
        columns: of a trace, as `kvcalc.Load` takes them.

    Raises:
        KvcalcError: a file that cannot be read, or a row that is no slice and no request.
    """
    if is_trace(path, columns=columns):
        requests = read_trace(path, columns=columns, since_midnight=True)
        return counted_by_hour(request.arrival_s for request in requests)
    slices = _slices(path)
    return DayLoad(slices=tuple(slices), end_s=max(float(SECONDS_PER_DAY), slices[-1][0] + SECONDS_PER_HOUR))


def _slices(path: str) -> list[tuple[float, float]]:
    """Return the rows of a table: when each begins in seconds, and its requests a second."""
    text = read_text(Path(path), max_bytes=_MAX_DAY_BYTES, what="a day of traffic")
    rows = [row for row in csv.reader(StringIO(text)) if row and any(cell.strip() for cell in row)]
    slices: list[tuple[float, float]] = []
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        try:
            start_s, rate = _slice(cells, len(slices))
        except (ValueError, KvcalcError):
            if number == 1 and len(cells) <= _CELLS:
                continue
            raise InputError(
                f"{','.join(cells)!r} is no slice of a day", where=f"{path}:{number}", hint=_HINT, parameter="day"
            ) from None
        if rate < 0 or (slices and start_s <= slices[-1][0]):
            what = "a slice begins after the one before it, with a rate of 0 or more"
            raise InputError(what, where=f"{path}:{number}", parameter="day")
        slices.append((start_s, rate))
    if not slices or not any(rate for _, rate in slices):
        raise InputError("the day has no traffic", where=path, hint=_HINT, parameter="day")
    return slices


def _slice(cells: list[str], before: int) -> tuple[float, float]:
    """Return the start and the rate of a row after so many others."""
    *start, rate = cells
    if len(cells) > _CELLS:
        raise ValueError
    return (_clock_s(start[0]) if start else float(SECONDS_PER_HOUR * before)), float(rate)


def _clock_s(text: str) -> float:
    hours, colon, minutes = text.partition(":")
    return 3600.0 * int(hours) + 60.0 * float(minutes) if colon else parse_seconds(text)


def day_notes(day: DayLoad | None, *, planned_per_s: float, simulated: int | None) -> tuple[str, ...]:
    """Note a day that is busier than what was planned for, and what of a trace is shown and simulated.

    Args:
        day: its load, where one was given.
        planned_per_s: requests a second that are planned for.
        simulated: requests of the busiest hour that are simulated at most; none where others are.
    """
    if day is None:
        return ()
    notes = []
    if day.peak_per_s > planned_per_s * (1 + 1e-9):
        planned = f"{request_rate(planned_per_s)} that are planned for"
        peak = request_rate(day.peak_per_s)
        notes.append(f"the day's peak of {peak} is above the {planned}: raise --rate to confirm it")
    if day.trace_s > SECONDS_PER_DAY:
        notes.append(f"the day is that of the busiest hour in a trace of {seconds_text(day.trace_s)}")
    elif day.busiest_s is not None and day.end_s - day.slices[0][0] < SECONDS_PER_DAY - SECONDS_PER_HOUR:
        covered = f"the trace has {seconds_text(day.trace_s)} of a day"
        notes.append(f"{covered}; GPU-hours and savings are of that time alone")
    if simulated is not None and simulated < day.peak_requests:
        part = f"the first {simulated:,} of {day.peak_requests:,} requests of the busiest hour"
        notes.append(f"{part} are simulated, at its rate; --requests takes more")
    return tuple(notes)
