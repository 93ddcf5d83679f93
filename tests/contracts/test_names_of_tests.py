"""Test files that are no part of a package are modules of their bare name: two of one name cannot be collected together."""

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_test_file_outside_a_package_has_a_name_of_its_own():
    bare = [path.name for path in TESTS.rglob("test_*.py") if not (path.parent / "__init__.py").exists()]
    assert [name for name, count in Counter(bare).items() if count > 1] == []
