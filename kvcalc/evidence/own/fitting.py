"""A fit to few measurements: factors of terms that stay at 1 unless the measurements say otherwise.

The logarithm of each factor has a normal distribution before anything is measured; the most likely factors after the
measurements are found by Gauss and Newton's method.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvcalc.core.sums import added
from kvcalc.evidence.own.terms import TERMS, limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.evidence.own.terms import Timed

__all__ = ["factors_of", "identified", "seconds_at"]

# Deviation of the logarithm of one measurement from what terms can explain; beyond twice that it counts less and less.
_NOISE, _FAR = 0.04, 2.0
_ROUNDS, _SMALL, _MAX_MOVE = 40, 1e-4, 1.0
# Of what was unknown of a term, the share that the measurements must tell before it is moved.
_MIN_TOLD = 0.1


def seconds_at(sample: Timed, factors: Mapping[str, float]) -> float:
    """Return the time of a sample whose terms take so many times as long."""
    return added(
        factors.get(by, 1.0) * added(seconds * factors.get(name, 1.0) for name, seconds in parts.items())
        for by, parts in sample.pieces
    )


def factors_of(samples: Sequence[Timed], start: Calibration) -> dict[str, float]:
    """Return the factors of the terms that the samples identify: no more of them than there are samples.

    Source: the maximum of the posterior of a non-linear model with normal priors, Tarantola 2005, chapter 3,
    doi 10.1137/1.9780898717921; weights of far samples: Huber 1964, doi 10.1214/aoms/1177703732.
    """
    names = [name for name in TERMS if any(_has(sample, name) for sample in samples)]
    factors = _most_likely(samples, names, start)
    shares = identified(samples, factors)
    kept = sorted((name for name in names if shares[name] >= _MIN_TOLD), key=lambda name: -shares[name])[: len(samples)]
    return factors if len(kept) == len(names) else _most_likely(samples, kept, start)


def _has(sample: Timed, name: str) -> bool:
    return any(by == name or name in parts for by, parts in sample.pieces)


def _most_likely(samples: Sequence[Timed], names: Sequence[str], start: Calibration) -> dict[str, float]:
    logs = dict.fromkeys(names, 0.0)
    ranges = {name: limits(start, samples, name) for name in names}
    for _ in range(_ROUNDS):
        moves = _moves(samples, logs, ranges)
        for name, move in moves.items():
            low, high = ranges[name]
            logs[name] = min(math.log(high), max(math.log(low), logs[name] + min(_MAX_MOVE, max(-_MAX_MOVE, move))))
        if all(abs(move) < _SMALL for move in moves.values()):
            break
    return {name: math.exp(value) for name, value in logs.items()}


def _moves(
    samples: Sequence[Timed], logs: Mapping[str, float], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """Return the steps of the logarithms; those at a limit that would go beyond it stay, and the others know."""
    names = list(logs)
    matrix, wanted = _normal_equations(samples, {name: math.exp(value) for name, value in logs.items()})
    free = list(range(len(names)))
    while free:
        moves = _solved([[matrix[row][column] for column in free] for row in free], [wanted[row] for row in free])
        move_of = dict(zip(free, moves, strict=True))
        stuck = [index for index, move in move_of.items() if _is_beyond(logs[names[index]], move, ranges[names[index]])]
        if not stuck:
            return {names[index]: move for index, move in move_of.items()}
        free = [index for index in free if index not in stuck]
    return {}


def _is_beyond(value: float, move: float, allowed: tuple[float, float]) -> bool:
    low, high = map(math.log, allowed)
    return (value <= low and move < 0) or (value >= high and move > 0)


def _normal_equations(samples: Sequence[Timed], factors: Mapping[str, float]) -> tuple[list[list[float]], list[float]]:
    """Return matrix and right side of the step to the most likely logarithms of the factors."""
    names = list(factors)
    matrix = [[0.0] * len(names) for _ in names]
    for index, name in enumerate(names):
        matrix[index][index] = TERMS[name].spread ** -2
    wanted = [-math.log(factors[name]) / TERMS[name].spread ** 2 for name in names]
    for sample in samples:
        whole = seconds_at(sample, factors)
        error = math.log(sample.measured_s / whole)
        weight = _NOISE**-2 / max(1.0, abs(error) / (_FAR * _NOISE))
        slopes = [_slope(sample, name, factors) / whole for name in names]
        for row, slope in enumerate(slopes):
            wanted[row] += weight * slope * error
            for column, other in enumerate(slopes):
                matrix[row][column] += weight * slope * other
    return matrix, wanted


def _slope(sample: Timed, name: str, factors: Mapping[str, float]) -> float:
    """Return the seconds that a sample's time changes by, for each factor of e of a term."""
    slope = 0.0
    for by, parts in sample.pieces:
        times = factors.get(by, 1.0)
        if by == name:
            slope += times * added(seconds * factors.get(each, 1.0) for each, seconds in parts.items())
        elif name in parts:
            slope += times * parts[name] * factors[name]
    return slope


def identified(samples: Sequence[Timed], factors: Mapping[str, float]) -> dict[str, float]:
    """Return for each factor the share of what was unknown of it that the samples tell: 0 nothing, 1 all."""
    names = list(factors)
    matrix, _ = _normal_equations(samples, factors)
    shares = {}
    for index, name in enumerate(names):
        unit = [float(index == each) for each in range(len(names))]
        left = _solved(matrix, unit)[index]
        shares[name] = 1 - left / TERMS[name].spread ** 2
    return shares


def _solved(matrix: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Solve a system whose matrix is symmetric and positive: Gauss's elimination.

    >>> _solved([[4.0, 2.0], [2.0, 3.0]], [8.0, 7.0])
    [1.25, 1.5]
    """
    rows = [[*row, value] for row, value in zip(matrix, wanted, strict=True)]
    count = len(rows)
    for column in range(count):
        for below in range(column + 1, count):
            share = rows[below][column] / rows[column][column]
            if share:
                rows[below] = [one - share * other for one, other in zip(rows[below], rows[column], strict=True)]
    solution = [0.0] * count
    for column in reversed(range(count)):
        known = added(rows[column][each] * solution[each] for each in range(column + 1, count))
        solution[column] = (rows[column][count] - known) / rows[column][column]
    return solution
