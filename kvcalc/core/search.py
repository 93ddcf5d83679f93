"""Searches: where a function of a few positive numbers is least, and the largest number that something holds for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["largest", "least_near"]

# One number at a time is multiplied and divided, by less and less.
_STEPS = (0.5, 0.25, 0.12, 0.06, 0.03, 0.015, 0.007)
_MIN_GAIN = 1e-6


def least_near(
    loss: Callable[[Mapping[str, float]], float],
    start: Mapping[str, float],
    *,
    bounded: Callable[[str, float], float] = lambda _, value: value,
) -> dict[str, float]:
    """Return the numbers near a start for which a loss of 0 or more is least.

    One number at a time is multiplied or divided by a factor as long as that helps, then by smaller ones.

    Args:
        loss: what is made least, of numbers by name.
        start: where the search begins, above 0.
        bounded: returns the number of a name, moved to where it may lie.

    >>> found = least_near(lambda at: abs(at["x"] - 3) + abs(at["y"] - 0.5), {"x": 1, "y": 1})
    >>> round(found["x"], 1), round(found["y"], 1)
    (3.0, 0.5)
    """
    values, lowest_loss = dict(start), loss(start)
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for name in start:
                for factor in (1 + step, 1 / (1 + step)):
                    trial = {**values, name: bounded(name, values[name] * factor)}
                    trial_loss = loss(trial)
                    if trial_loss < lowest_loss * (1 - _MIN_GAIN):
                        values, lowest_loss, improved = trial, trial_loss, True
    return values


def largest(holds: Callable[[int], bool], limit: int) -> int:
    """Return the largest number up to a limit for which something holds that holds for all smaller ones; 0 if none.

    >>> largest(lambda number: number * number <= 50, 100), largest(lambda number: number < 9, 5), largest(bool, 1)
    (7, 5, 1)
    """
    if not holds(1):
        return 0
    low, high = 1, 2
    while high < limit and holds(high):
        low, high = high, high * 2
    high = min(high, limit)
    if holds(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
