"""Published speeds of models with a part in the host's memory, against the bound and the estimate of a split."""

from __future__ import annotations

import importlib.util
import math
import statistics
from pathlib import Path

import pytest

from kvcalc import sources
from kvcalc.cost.roofline import stages_time

TOOL = Path(__file__).parents[1] / "tools" / "fit_host.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("fit_host", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def records(tool):
    return tool.read_records()


def test_no_measurement_beats_the_bound(records):
    for record in records:
        assert stages_time(record["stages"]).latency_s < 1 / record["tokens_per_s"], record["id"]


def test_sources_left_out_are_estimated_within_a_quarter(tool, records):
    errors = tool.judged(records, sources.shipped_calibrations())
    assert statistics.median(abs(math.exp(-error) - 1) for error in errors.values()) < 0.25


def test_the_shipped_calibration_is_the_fit_and_its_interval_holds_four_of_five(tool, records):
    cards = sources.shipped_calibrations()
    shipped = sources.load_calibration("llama.cpp-host")
    share, crossing = tool.fit(records, cards)
    assert shipped.reach["matrix"].bandwidth_share == pytest.approx(share, rel=0.01)
    assert shipped.collective_s == pytest.approx(crossing)
    spread = shipped.memory_interval
    held = [
        spread.low * 0.999 <= math.exp(error) <= spread.high * 1.001 for error in tool.judged(records, cards).values()
    ]
    assert 0.75 <= sum(held) / len(held) <= 0.9
