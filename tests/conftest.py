"""What all tests share: settings of Hypothesis, limits on time, working sets of benchmarks.

Examples are the same in every run of a change and others each night, with no time limit for one of them. An example that
fails is written as an ``@example`` beside the test that it failed, or as a test of its own.
"""

import os
import time
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings

# How soon examples are made depends on who else works on the machine: nothing is said of it.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", UNTIMED, derandomize=True, max_examples=40)
settings.register_profile(
    "mutation", UNTIMED, derandomize=True, max_examples=25, phases=(Phase.explicit, Phase.generate)
)
# Chance decides (pytest says the seed), and what failed once is kept in .hypothesis/examples and tried first.
settings.register_profile("nightly", UNTIMED, derandomize=False, max_examples=300, print_blob=True)
# Tables are as wide as where no terminal says otherwise.
os.environ.pop("COLUMNS", None)
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


# Benchmarks as a machine is measured with stream through gigabytes, many times what its caches hold.
_SMALL_SETS = {
    "_STREAM_BYTES": 2**16, "_ROTATED_BYTES": 2**14, "_SQUARE": 32, "_MATRICES": ((64, 128),), "_BATCHES": (1, 8),
    "_HEADS": ((4, 2, 16),), "_CACHES": ((1, 8), (2, 16)),
}  # fmt: skip


@pytest.fixture
def full_working_sets():
    """The sizes that users' benchmarks have, of those that `small_working_sets` makes small."""
    from kvcalc.measure import machine

    return {name: getattr(machine, name) for name in _SMALL_SETS}


@pytest.fixture
def small_working_sets(full_working_sets, monkeypatch, tmp_path):
    """Benchmarks of shapes too small to say anything of a machine, on a CPU without a cache that they must not fit in."""
    from kvcalc.measure import library, machine, products

    for name, value in _SMALL_SETS.items():
        monkeypatch.setattr(machine, name, dict.fromkeys(full_working_sets[name], value))
    monkeypatch.setattr(machine, "_SMALL_SETS", (2**13, 2**14))
    monkeypatch.setattr(products, "_TIMED_BYTES", 2**16)
    monkeypatch.setattr(library, "_CPU_CACHES", tmp_path / "caches")


@pytest.fixture
def ceilings_out_of_reach(monkeypatch):
    """What small working sets reach is no ceiling: a model's own matrices may pass it, on one machine or another."""
    from kvcalc.measure import crosscheck

    reached = crosscheck.ceilings

    def beyond(device, probes):
        found = reached(device, probes)
        peaks = {name: 1000 * peak for name, peak in found.peak_flop_per_s.items()}
        return replace(
            found, memory_bandwidth_bytes_per_s=1000 * found.memory_bandwidth_bytes_per_s, peak_flop_per_s=peaks
        )

    monkeypatch.setattr(crosscheck, "ceilings", beyond)
