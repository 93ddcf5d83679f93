"""The page on validation is what `kvcalc validate` finds."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_current():
    spec = importlib.util.spec_from_file_location("write_validation", ROOT / "tests" / "tools" / "write_validation.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run python tests/tools/write_validation.py"
