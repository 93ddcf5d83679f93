"""What other repositories call: the action and the hooks name commands and options that there are."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvcalc.cli.main import COMMANDS

from .test_commands_documented import FOUND

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "check"
BASH = shutil.which("bash")
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
