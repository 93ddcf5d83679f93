"""The pages below docs/: every example runs, prints what the page shows, and every link leads somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from kvcalc.cli.main import main

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
HERE = re.compile(r"https://(?:github\.com/kvcalc/kvcalc/blob|raw\.githubusercontent\.com/kvcalc/kvcalc)/main/(.+)")
# The reference lists each command's own example, which tests/contracts/test_commands_documented.py runs.
BLOCKS = [
    pytest.param(command, shown, id=f"{page.name}: {command}")
    for page in PAGES
    if page.name != "cli.md"
    for command, shown in re.findall(r"```console\n\$ (kvcalc .+)\n((?:.*\n)*?)```", page.read_text(encoding="utf-8"))
]


def _filler():
    spec = importlib.util.spec_from_file_location("fill_readme", ROOT / "tests" / "tools" / "fill_readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# A command that stands on several pages, in both languages, is run once.
PRINTED = cache(_filler().printed)


@pytest.mark.parametrize(("command", "shown"), BLOCKS)
def test_an_example_prints_what_its_page_shows(command, shown, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert PRINTED(command) == shown, "run python tests/tools/fill_readme.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_run(page):
    # what is marked as a file is run in its place by tests/contracts/test_contributing.py
    text = re.sub(r"<!-- file: \S+ -->\n```python\n.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, page.name, "exec"), {"__name__": "example"})  # noqa: S102  our own page


def test_the_checks_of_the_page_on_checks_hold(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"<!-- checks -->\n```yaml\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("kvcalc.checks.yaml").write_text(example, encoding="utf-8")
    with pytest.raises(SystemExit) as done:
        main(["check"])
    assert done.value.code == 0, capsys.readouterr()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_links_lead_to_files_that_there_are(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        inside = HERE.fullmatch(target)  # the README stands on the package's page too, where links must be whole
        if inside or "://" not in target:
            assert (ROOT / inside[1] if inside else page.parent / target).exists(), target


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.ja.md")), ids=lambda page: page.name)
def test_a_japanese_page_has_the_commands_of_the_english_one(page):
    english, japanese = (
        re.findall(r"^\$ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        for path in (page.with_name(page.name.replace(".ja.", ".")), page)
    )
    assert english == japanese
    assert all(shlex.split(command)[0] == "kvcalc" for command in english)
