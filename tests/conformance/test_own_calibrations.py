"""Five points of one deployment say the rest of it, where ``KVCALC_TRUTH`` names the folder of published serving points."""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

TRUTH = Path(os.environ["KVCALC_TRUTH"]) if os.environ.get("KVCALC_TRUTH") else None
TOOLS = Path(__file__).parents[1] / "tools"
SEEDS = (0, 1)

pytestmark = pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")


def tool() -> Any:
    if str(TOOLS) not in sys.path:
        sys.path.append(str(TOOLS))
    return importlib.import_module("own_calibrations")


@cache
def deployments() -> Any:
    return tool().groups(TRUTH / "silicon.csv")


@cache
def rests() -> tuple[Any, ...]:
    """Return the errors on the rest of each deployment, and of each of its loads by lengths of prompt and output."""
    own, whole = tool(), deployments()
    return tuple(own.judged(whole, SEEDS)), tuple(own.judged(own.by_lengths(whole), SEEDS))


def test_there_are_at_least_150_groups():
    assert sum(map(len, rests())) >= 150


def test_the_median_error_on_the_rest_is_at_most_five_percent():
    for groups in rests():
        assert median(error for rest in groups for error in rest.after) <= 0.05
        assert median(median(rest.after) for rest in groups) <= 0.05


def test_five_points_help_in_most_groups():
    every = [rest for groups in rests() for rest in groups]
    better = sum(median(rest.after) < median(rest.before) for rest in every)
    assert better >= 0.7 * len(every)


def test_the_interval_of_five_points_holds_about_four_of_five_of_the_rest():
    assert 0.75 <= tool().covered(deployments(), seed=0) <= 0.85
