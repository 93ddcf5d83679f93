"""The worked examples of docs/CONTRIBUTING.md run as they stand there, in a copy of the package with their files in place."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvcalc

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout to which somebody has added what the page shows."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(
        Path(kvcalc.__file__).parent, folder / "kvcalc", ignore=shutil.ignore_patterns("__pycache__", "*_profiles")
    )
    for name in ("model_profiles", "hardware_profiles"):
        shutil.copytree(ROOT / name, folder / name)
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_there_is_an_example_of_each_kind_with_its_test():
    kinds = ("model_profiles/", "hardware_profiles/", "kvcalc/importers/families/", "kvcalc/engines/")
    assert all(any(name.startswith(kind) for name in FILES) for kind in kinds)
    assert sum("/test_" in name for name in FILES) == len(kinds)


def test_the_templates_pass_and_none_is_skipped(checkout):
    tests = [str(checkout / name) for name in FILES if "/test_" in name]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(checkout), *tests]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".py") and "/test_" not in name])
def test_what_is_added_has_the_house_style(name, checkout):
    shutil.copy(ROOT / "pyproject.toml", checkout / "pyproject.toml")
    ruff = shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is a development tool")
    done = subprocess.run(
        [ruff, "check", "--no-cache", name], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_profiles_follow_the_schema(checkout):
    from kvcalc import api

    for name in FILES:
        if name.endswith(".yaml"):
            api.validate_profile(checkout / name, "model" if name.startswith("model") else "hardware")
