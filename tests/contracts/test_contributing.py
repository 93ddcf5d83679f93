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
# Changes of files that there are: hunks without line numbers, of which the lines before stand exactly once.
CHANGES = dict(re.findall(r"<!-- change: (\S+) -->\n```diff\n(.*?)```", PAGE, re.DOTALL))
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", PAGE, re.MULTILINE))
# How many files beside its tests a change may touch.
MAX_FILES = {"A kind of attention": 7, "A parameter": 1, "A figure": 1, "A question": 3}


def _change(folder, name):
    path = folder / name
    text = path.read_text(encoding="utf-8")
    for hunk in CHANGES[name].split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before, after = ("".join(line[1:] for line in lines if line[0] in signs) for signs in (" -", " +"))
        assert text.count(before) == 1, f"{name}: these lines stand {text.count(before)} times:\n{before}"
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")


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
    for name in CHANGES:
        _change(folder, name)
    return folder


def _files_of(section):
    named = re.findall(r"<!-- (?:file|change): (\S+) -->", SECTIONS[section])
    return [name for name in named if "/test_" not in name]


def test_there_is_an_example_of_each_kind_with_its_test():
    assert all("/test_" in SECTIONS[section] for section in SECTIONS)
    kinds = ("model_profiles/", "hardware_profiles/", "kvcalc/importers/families/", "kvcalc/engines/")
    assert all(any(name.startswith(kind) for name in FILES) for kind in kinds)


@pytest.mark.parametrize("section", MAX_FILES)
def test_a_change_touches_no_more_files_than_it_should(section):
    assert 0 < len(_files_of(section)) <= MAX_FILES[section]


def test_the_templates_pass_and_none_is_skipped(checkout):
    tests = [str(checkout / name) for name in FILES if "/test_" in name]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(checkout), *tests]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.parametrize("name", [*CHANGES, *(name for name in FILES if name.endswith(".py") and "/test_" not in name)])
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


def test_the_type_checker_names_every_file_that_a_kind_of_attention_needs(tmp_path):
    pytest.importorskip("mypy")
    shutil.copytree(Path(kvcalc.__file__).parent, tmp_path / "kvcalc", ignore=shutil.ignore_patterns("__pycache__"))
    changed = _files_of("A kind of attention")
    declared = [name for name in changed if name.startswith("kvcalc/core/")]
    needed = [name for name in changed if name not in declared]
    paths = [
        path for path in (tmp_path / "kvcalc").rglob("*.py") if "assert_never(" in path.read_text(encoding="utf-8")
    ]
    for name in declared:
        _change(tmp_path, name)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(tmp_path),
        *map(str, paths),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    refused = re.findall(r'^(\S+?):\d+: error: Argument 1 to "assert_never" .*Sinks', done.stdout, re.MULTILINE)
    assert set(refused) == set(needed), done.stdout
