"""The README's examples and tables are what the commands print."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```console\n\$ (kvcalc .+)\n((?:.*\n)*?)```", README)


def _filler():
    spec = importlib.util.spec_from_file_location("fill_readme", ROOT / "tests" / "tools" / "fill_readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILL = _filler()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_example_prints_what_the_readme_shows(command: str, shown: str) -> None:
    assert FILL.printed(command) == shown


def test_the_engine_table_is_what_the_engines_reserve() -> None:
    assert FILL.engine_table() in (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")


def test_it_is_read_in_two_minutes() -> None:
    assert len(README.splitlines()) <= 150
