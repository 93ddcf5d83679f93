"""The documents as a site: every page has its place in the navigation, and the site is built without a warning."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site" / "mkdocs.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONFIG = yaml.safe_load(SITE.read_text(encoding="utf-8"))
# What people ask first; each question is the title of a page.
QUESTIONS = {
    "local": "Will it run on my machine?",
    "why": "Why did my server refuse to start?",
    "users": "How many users fit?",
    "cost": "What does it cost?",
    "memory-bound": "Why is decode memory-bound?",
    "benchmark": "Is my benchmark normal?",
    "speculation": "Does speculation pay?",
    "formats": "Which format?",
    "limits": "What can kvcalc not do?",
}


def _pages(entry):
    """The pages of a navigation, in order."""
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for each in inner for page in _pages(each)]


def test_every_page_is_in_the_navigation_once():
    listed = _pages(CONFIG["nav"])
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize(("page", "question"), QUESTIONS.items(), ids=QUESTIONS)
def test_a_question_has_a_page_of_its_own(page, question):
    assert (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").startswith(f"# {question}\n")


@pytest.mark.skipif(find_spec("material") is None, reason="the site's builder is not installed: pip install '.[docs]'")
def test_the_site_is_built_without_a_warning_and_can_be_searched(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(SITE), "-d", str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "ridge point" in (tmp_path / "search" / "search_index.json").read_text(encoding="utf-8")
    outside = [
        page
        for page in tmp_path.rglob("*.html")
        if re.search(r'href="[^"]*CHANGELOG\.md"', page.read_text(encoding="utf-8"))
    ]
    assert outside
    for page in outside:
        assert f"{CONFIG['repo_url']}/blob/main/CHANGELOG.md" in page.read_text(encoding="utf-8")


def test_one_address_stands_for_the_repository_everywhere():
    home = PROJECT["urls"]["Repository"]
    assert CONFIG["repo_url"] == home
    assert PROJECT["urls"]["Documentation"] == CONFIG["site_url"]
    owner = home.removeprefix("https://github.com/")
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        assert "OWNER/kvcalc" not in text, path.name
        for found in re.findall(r"(?:github\.com|githubusercontent\.com)/([\w.-]+/kvcalc)\b", text):
            assert found == owner, path.name
