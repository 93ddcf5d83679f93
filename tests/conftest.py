"""Hypothesis settings of all tests: the same examples in every run of a change, others each night, no time limit for one of them.

An example that fails is written as an ``@example`` beside the test that it failed, or as a test of its own.
"""

import os
import time

import pytest
from hypothesis import Phase, settings

settings.register_profile("default", derandomize=True, deadline=None, max_examples=40)
settings.register_profile(
    "mutation", derandomize=True, deadline=None, max_examples=25, phases=(Phase.explicit, Phase.generate)
)
# Chance decides (pytest says the seed), and what failed once is kept in .hypothesis/examples and tried first.
settings.register_profile("nightly", derandomize=False, deadline=None, max_examples=300, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_ADDITIONS = 2_000_000
# CPU seconds of so many additions on a machine of 2024 with nothing else to do.
_USUAL_S = 0.1


@pytest.fixture
def usual_s():
    """What this machine needs for work of so many CPU seconds on a usual one: limits are of work.

    It is as slow as it is found to be before the work or after it, since others who come and go make it so.
    """
    before_s = _additions_s()
    return lambda seconds: seconds * max(1.0, max(before_s, _additions_s()) / _USUAL_S)


def _additions_s():
    start, total = time.process_time(), 0
    for number in range(_ADDITIONS):
        total += number
    return time.process_time() - start
