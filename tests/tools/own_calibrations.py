"""What a few points of one deployment say of the rest: calibrations fitted to five of its measurements, judged by the others."""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.evidence.cases import Unusable
from kvcalc.evidence.estimates import case_seconds, estimated_passes, own_or_near
from kvcalc.evidence.own.calibrating import calibrated
from kvcalc.evidence.own.fitting import factors_of
from kvcalc.evidence.own.terms import slowed, timed
from kvcalc.evidence.passes import case_of
from kvcalc.evidence.read import read_records
from kvcalc.evidence.serving import served_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.evidence.cases import Case
    from kvcalc.evidence.own.terms import Timed
    from kvcalc.evidence.record import Record

POINTS = 5


class Point(NamedTuple):
    """A measurement, as sums of terms at the calibration that a fit begins with."""

    record: Record
    case: Case
    sample: Timed
    start: Calibration


@dataclass(frozen=True, slots=True)
class Rest:
    """Errors on the rest of a group, all draws together: of the start, and of calibrations fitted to five points."""

    group: tuple[object, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]


def deployment_of(record: Record) -> tuple[object, ...]:
    """Return what ran: model, accelerator, engine and version, formats, parallel sizes."""
    return (record.model, record.hardware, record.engine, record.engine_version, record.weights, record.parallel,
            record.prefill_parallel)  # fmt: skip


def groups(path: Path, phase: str = "tpot") -> dict[tuple[object, ...], list[Point]]:
    """Return the measurements of each deployment that has more than five, those that are not estimated left out."""
    found: dict[tuple[object, ...], list[Point]] = {}
    for record in read_records(path):
        case = case_of(record) if record.phase == phase else None
        if case is None or isinstance(case, Unusable) or not estimated_passes(case):
            continue
        start = own_or_near(case)
        found.setdefault(deployment_of(record), []).append(Point(record, case, timed(case, start), start))
    return {key: own for key, own in found.items() if len(own) > POINTS}


def by_lengths(
    whole: Mapping[tuple[object, ...], Sequence[Point]],
) -> dict[tuple[object, ...], list[Point]]:
    """Return the groups again, each divided by the lengths of prompt and output."""
    found: dict[tuple[object, ...], list[Point]] = {}
    for key, points in whole.items():
        for point in points:
            lengths = (point.record.prompt_tokens, point.record.output_tokens)
            found.setdefault((*key, *lengths), []).append(point)
    return {key: own for key, own in found.items() if len(own) > POINTS}


def judged(whole: Mapping[tuple[object, ...], Sequence[Point]], seeds: Iterable[int]) -> list[Rest]:
    """Return the errors on the rest of each group, for each seed's draw of five points."""
    drawn = tuple(seeds)
    found = []
    for key, points in whole.items():
        before: list[float] = []
        after: list[float] = []
        for seed in drawn:
            chosen = set(random.Random(seed).sample(range(len(points)), POINTS))  # noqa: S311  a draw, not a secret
            start = points[0].start
            fitted = slowed(start, factors_of([points[place].sample for place in sorted(chosen)], start))
            for place, point in enumerate(points):
                if place not in chosen:
                    before.append(abs(case_seconds(point.case, start) / point.case.measured_s - 1))
                    after.append(abs(case_seconds(point.case, fitted) / point.case.measured_s - 1))
        found.append(Rest(key, tuple(before), tuple(after)))
    return found


def figures(errors: Sequence[float]) -> tuple[float, float]:
    """Return the median and the error that one of ten exceeds."""
    return median(errors), quantiles(errors, n=10)[-1]


def covered(whole: Mapping[tuple[object, ...], Sequence[Point]], seed: int) -> float:
    """Return the share of the rest of all groups that lies in the interval of a calibration from five points."""
    inside: list[bool] = []
    for points in whole.values():
        chosen = set(random.Random(seed).sample(range(len(points)), POINTS))  # noqa: S311  a draw, not a secret
        found = calibrated(points[0].start, [points[place].case for place in sorted(chosen)]).calibration
        for place, point in enumerate(points):
            if place not in chosen:
                spread = found.spread(served_kind(point.case), is_compute=False)
                inside.append(spread.low <= point.case.measured_s / case_seconds(point.case, found) <= spread.high)
    return sum(inside) / len(inside)
