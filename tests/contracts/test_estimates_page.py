"""docs/estimates.md tells of the calibrations that are shipped; its errors are checked where the full records are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from kvcalc.profiles.catalog import names

TOOL = Path(__file__).parents[1] / "tools" / "write_estimates.py"


def _writer():
    spec = importlib.util.spec_from_file_location("write_estimates", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITER = _writer()
TEXT = WRITER.PAGE.read_text(encoding="utf-8")


def test_parameters_and_split_are_those_of_the_files() -> None:
    for part in (WRITER.INTRODUCTION, WRITER.parameters(), WRITER.SPLIT, WRITER.split(), WRITER.LIMITS):
        assert part in TEXT


def test_every_calibration_is_named() -> None:
    assert all(f"| {name} |" in TEXT for name in names("calibration"))
