"""Published closed loops of vLLM, where ``KVCALC_TRUTH`` names the folder that holds them, simulated."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

TRUTH = os.environ.get("KVCALC_TRUTH")
pytestmark = pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH names no folder")
EVERY = 7


def test_simulated_loops_are_the_measured():
    spec = spec_from_file_location("closed_loops", Path(__file__).parents[1] / "tools" / "closed_loops.py")
    tool = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(tool)
    found = list(tool.loops(Path(TRUTH or "") / "serving.csv", every=EVERY))
    assert len(found) == 15
    errors = tool.tpot_errors(found)
    assert errors[len(errors) // 2] < 0.05
    assert sum(loop.between for loop in found) >= 13
