"""Hypothesis settings of all tests: the same examples in every run of a change, others each night, no time limit for one of them.

An example that fails is written as an ``@example`` beside the test that it failed, or as a test of its own.
"""

import os

from hypothesis import Phase, settings

settings.register_profile("default", derandomize=True, deadline=None, max_examples=40)
settings.register_profile(
    "mutation", derandomize=True, deadline=None, max_examples=25, phases=(Phase.explicit, Phase.generate)
)
# Chance decides (pytest says the seed), and what failed once is kept in .hypothesis/examples and tried first.
settings.register_profile("nightly", derandomize=False, deadline=None, max_examples=300, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
