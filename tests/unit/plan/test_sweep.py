"""Grids: every combination once, in order, in tasks that are not too large."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.errors import InputError
from kvcalc.plan.sweep import Grid, pareto_front

AXES = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=3)


def _points(task):
    """The points of a task, in order."""
    return [(tuple(task.point.values()), cell) for cell in product(*task.cells.values())]


@given(outer=AXES, inner=AXES, points_per_task=st.integers(1, 20))
def test_every_combination_comes_once_and_in_order(outer, inner, points_per_task):
    grid = Grid(outer=outer, inner=inner, points_per_task=points_per_task)
    tasks = list(grid.tasks())
    found = [point for task in tasks for point in _points(task)]
    assert found == list(product(product(*outer.values()), product(*inner.values())))
    assert len(found) == grid.points == sum(task.points for task in tasks)
    assert [task.number for task in tasks] == list(range(grid.number_of_tasks))
    assert all(task.points <= points_per_task for task in tasks)


def test_a_long_axis_is_cut():
    grid = Grid(outer={}, inner={"context": range(100_000), "batch": range(10)})
    tasks = list(grid.tasks())
    assert len(tasks) == grid.number_of_tasks == math.ceil(100_000 / 1638)
    assert max(task.points for task in tasks) <= 16_384
    assert [context for task in tasks for context in task.cells["context"]] == list(range(100_000))


def test_long_axes_inside_one_another_are_all_cut():
    grid = Grid(outer={}, inner={"context": range(1, 3), "batch": range(40_000)})
    assert [task.points for task in grid.tasks()] == [16_384, 16_384, 7232] * 2


def test_a_grid_without_end_is_refused():
    with pytest.raises(InputError, match="1,000,000,000,000 points"):
        Grid(outer={"a": range(10**6)}, inner={"b": range(10**6)})


def test_an_axis_without_values_is_refused():
    with pytest.raises(InputError, match="gpu has no values"):
        Grid(outer={"gpu": ()}, inner={})


@given(points=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_the_front_is_what_no_point_beats(points):
    unbeaten = {one for one in points if not any(a >= one[0] and b >= one[1] and (a, b) != one for a, b in points)}
    front = [points[place] for place in pareto_front(points)]
    assert front == sorted(unbeaten, reverse=True)
