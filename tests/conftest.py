"""Hypothesis settings of all tests: the same examples in every run, and no time limit for one of them."""

import os

from hypothesis import Phase, settings

settings.register_profile("default", derandomize=True, deadline=None, max_examples=40)
settings.register_profile(
    "mutation", derandomize=True, deadline=None, max_examples=25, phases=(Phase.explicit, Phase.generate)
)
settings.register_profile("search", derandomize=False, deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
