"""Grids of questions: which combinations there are, in which order, and how they are cut into tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Grid", "SweepTask", "pareto_front"]

_MAX_POINTS = 100_000_000
# Points of one task that are computed together, few enough to hold their rows.
_MAX_OF_A_TASK = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTask:
    """Some points of a grid that are computed together.

    Args:
        number: its place, from 0.
        point: the values of the outer axes.
        cells: the values of the inner axes; the task is their product.
    """

    number: int
    point: Mapping[str, Any]
    cells: Mapping[str, Sequence[Any]]

    @property
    def points(self) -> int:
        """Number of points."""
        return math.prod(len(values) for values in self.cells.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """All combinations of the values of some axes, the last axis varying fastest.

    Args:
        outer: axes whose every combination is a task of its own, by name.
        inner: axes that one task runs through, in pieces if they are long.
        points_per_task: points of a task at most.

    Raises:
        InputError: an axis without values, or more than a hundred million points.

    >>> grid = Grid(outer={"gpu": ["a", "b"]}, inner={"context": [1, 2], "batch": [1, 2, 3]})
    >>> grid.points, [(task.number, task.point["gpu"], task.points) for task in grid.tasks()]
    (12, [(0, 'a', 6), (1, 'b', 6)])
    """

    outer: Mapping[str, Sequence[Any]]
    inner: Mapping[str, Sequence[Any]]
    points_per_task: int = _MAX_OF_A_TASK

    def __post_init__(self) -> None:
        for name, values in (*self.outer.items(), *self.inner.items()):
            if not values:
                raise InputError(f"{name} has no values")
        if self.points > _MAX_POINTS:
            raise InputError(f"a grid of {self.points:,} points", hint=f"{_MAX_POINTS:,} at most: take larger steps")

    @property
    def points(self) -> int:
        """Number of combinations."""
        return math.prod(len(values) for values in (*self.outer.values(), *self.inner.values()))

    @property
    def number_of_tasks(self) -> int:
        """Count the tasks that `tasks` yields."""
        pieces = _number_of_pieces([len(values) for values in self.inner.values()], self.points_per_task)
        return math.prod(len(values) for values in self.outer.values()) * pieces

    def tasks(self) -> Iterator[SweepTask]:
        """Yield the tasks in order."""
        number = 0
        for values in product(*self.outer.values()):
            point = dict(zip(self.outer, values, strict=True))
            for cells in _pieces(self.inner, self.points_per_task):
                yield SweepTask(number=number, point=point, cells=cells)
                number += 1


def _pieces(axes: Mapping[str, Sequence[Any]], max_rows: int) -> Iterator[dict[str, Sequence[Any]]]:
    """Yield the axes in pieces of so many points at most, in the order of their product."""
    if not axes:
        yield {}
        return
    (first, values), *rest = axes.items()
    others = dict(rest)
    step = _step([len(each) for each in others.values()], max_rows)
    for start in range(0, len(values), step or 1):
        piece = {first: values[start : start + (step or 1)]}
        if step:
            yield piece | others
        else:
            yield from (piece | inside for inside in _pieces(others, max_rows))


def _number_of_pieces(lengths: Sequence[int], max_rows: int) -> int:
    """Count the pieces that `_pieces` yields of axes of these lengths."""
    if not lengths:
        return 1
    first, *others = lengths
    step = _step(others, max_rows)
    return math.ceil(first / step) if step else first * _number_of_pieces(others, max_rows)


def _step(others: Sequence[int], max_rows: int) -> int:
    """Count the values of an axis that a piece takes with all of those inside it; none where these are too many."""
    return max_rows // math.prod(others)


def pareto_front(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Return the places of the points that no other beats: none is as high in both figures and higher in one.

    They come with the first figure falling; of equal points the first stays.

    >>> pareto_front([(1, 9), (5, 5), (4, 5), (5, 5), (9, 1), (8, 0)])
    (4, 1, 0)
    """
    order = sorted(range(len(points)), key=lambda index: (-points[index][0], -points[index][1], index))
    front: list[int] = []
    for index in order:
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return tuple(front)
