"""What CI and other repositories call: commands and options that there are, and nothing that can change under its name."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from kvcalc.cli.main import COMMANDS

from .test_commands_documented import FOUND

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "check"
BASH = shutil.which("bash")
WORKFLOWS = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), ACTION / "action.yml"]
LOCK = ROOT / ".ci" / "requirements.txt"
CHECKS = "checks:\n- {name: x, model: llama2-70b, expect: {kv_bytes_per_token: 327680}}\n"


def _yaml(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("hook", _yaml(ROOT / ".pre-commit-hooks.yaml"), ids=lambda hook: hook["id"])
def test_hooks_run_commands_that_there_are(hook):
    program, *words = hook["entry"].split()
    assert program == "kvcalc"
    assert " ".join(words) in FOUND
    assert words[0] in COMMANDS
    re.compile(hook["files"])


def test_the_actions_inputs_reach_its_script():
    action, script = _yaml(ACTION / "action.yml"), (ACTION / "run").read_text(encoding="utf-8")
    step = action["runs"]["steps"][-1]
    for variable, value in step["env"].items():
        name = re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", value)[1]
        assert name in action["inputs"]
        assert f"${{{variable}" in script or f"${variable}" in script


@pytest.mark.skipif(BASH is None, reason="the action runs on bash")
@pytest.mark.parametrize(("text", "code"), [(CHECKS, 0), (CHECKS.replace("327680", "1"), 1), ("checks: []\n", 2)])
def test_the_actions_script_passes_on_what_the_checks_say(tmp_path, text, code):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "kvcalc"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvcalc "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "kvcalc.checks.yaml").write_text(text, encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "JUNIT": "checks.xml",
        "REPORT": "checks.json",
    }
    done = subprocess.run(
        [BASH, str(ACTION / "run")], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert (tmp_path / "output").read_text() == f"passed={'true' if code == 0 else 'false'}\n"
    assert (tmp_path / "checks.xml").exists() == (code < 2)
    assert ("::error" in done.stderr) == (code == 1)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_of_others_are_named_by_their_commit(path):
    """A tag can be moved to other code; the version behind the commit is for the reader and for the updates."""
    uses = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    for use in uses:
        assert use.startswith("./") or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use), use


@pytest.mark.parametrize("path", WORKFLOWS[:-1], ids=lambda path: path.name)
def test_a_workflow_may_do_no_more_than_it_needs(path):
    workflow = _yaml(path)
    assert workflow["permissions"] == {"contents": "read"}
    allowed = {"contents", "pages", "id-token"} if path.name == "docs.yml" else {"contents"}
    assert all(job.get("permissions", {}).keys() <= allowed for job in workflow["jobs"].values())


def _locked():
    """Every locked version with its marker and how many hashes it has."""
    text = LOCK.read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(Requirement(line.split(" --hash")[0]), line.count("--hash=sha256:")) for line in lines]


def test_the_lock_holds_every_tool_in_a_version_that_is_allowed():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = list(extras["dependencies"])
    for name in ("charts", "cluster", "explore", "parquet", "demo", "docs", "test", "browser-test", "dev"):
        asked += extras["optional-dependencies"][name]
    locked = _locked()
    for wanted in map(Requirement, asked):
        if wanted.name == "kvcalc":
            continue
        versions = [next(iter(each.specifier)).version for each, _ in locked if _same_name(each.name, wanted.name)]
        assert versions, f"{wanted.name} is not locked: tests/tools/write_lock.sh"
        assert all(wanted.specifier.contains(version) for version in versions), wanted


def _same_name(one, other):
    return re.sub(r"[-_.]+", "-", one).lower() == re.sub(r"[-_.]+", "-", other).lower()


def test_everything_locked_has_hashes_and_names_no_server():
    assert all(hashes for _, hashes in _locked())
    assert "://" not in LOCK.read_text(encoding="utf-8")
    assert "torch" not in {
        each.name for each, _ in _locked()
    }  # its CPU build has other files than the one that is published


def test_updates_are_asked_for_actions_and_for_the_lock():
    updates = {
        each["package-ecosystem"]: each["directories"] for each in _yaml(ROOT / ".github" / "dependabot.yml")["updates"]
    }
    assert "/.github/actions/check" in updates["github-actions"]
    assert "/.ci" in updates["pip"]


def test_the_bill_of_materials_lists_what_is_asked_for_directly_or_not():
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "sbom.py"), "rich"], capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "rich"
    assert {"markdown-it-py", "mdurl"} <= {each["name"] for each in bill["components"]}
    references = {each["bom-ref"] for each in [bill["metadata"]["component"], *bill["components"]]}
    assert {edge["ref"] for edge in bill["dependencies"]} == references
    assert all(set(edge["dependsOn"]) <= references for edge in bill["dependencies"])
    assert re.fullmatch(r"pkg:pypi/rich@[\d.]+", bill["metadata"]["component"]["purl"])
