"""What a wheel holds of a profile beside its YAML is the same profile, and is used only where it is up to date."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvcalc.profiles import reader
from kvcalc.profiles.reader import read_yaml_file

ROOT = Path(__file__).parents[3]
FOLDERS = ("model_profiles", "hardware_profiles")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_compiled_text_of_every_shipped_profile_is_its_content(folder):
    for path in (ROOT / folder).glob("*.yaml"):
        compiled = json.loads(reader.compiled_text(path))
        assert compiled == {"yaml_bytes": path.stat().st_size, "data": read_yaml_file(path).data}, path


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder of profiles as a wheel has it, with one profile and its compiled text."""
    monkeypatch.setattr(reader, "_COMPILED", (tmp_path,))
    path = tmp_path / "model_profiles" / "llama2-70b.yaml"
    path.parent.mkdir()
    path.write_bytes((ROOT / "model_profiles" / path.name).read_bytes())
    path.with_suffix(".json").write_text(reader.compiled_text(path), encoding="utf-8")
    return path


def _read_without_yaml(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    return reader.read_profile(path).data


def test_a_compiled_profile_is_read_without_yaml(installed, monkeypatch):
    data = read_yaml_file(installed).data
    assert _read_without_yaml(installed, monkeypatch) == data


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"yaml_bytes": 1, "data": {}}'])
def test_a_compiled_profile_that_is_broken_or_old_is_not_used(installed, text):
    installed.with_suffix(".json").write_text(text, encoding="utf-8")
    assert reader.read_profile(installed).data == read_yaml_file(installed).data


def test_an_edited_profile_is_read_itself(installed):
    text = installed.read_text(encoding="utf-8").replace("name: llama2-70b", "name: llama2-70b-mine")
    installed.write_text(text, encoding="utf-8")
    assert reader.read_profile(installed).data["name"] == "llama2-70b-mine"


def test_json_beside_a_users_own_profile_means_nothing(tmp_path):
    path = tmp_path / "model_profiles" / "x.yaml"
    path.parent.mkdir()
    path.write_text("name: x\n", encoding="utf-8")
    path.with_suffix(".json").write_text('{"yaml_bytes": 8, "data": {"name": "y"}}', encoding="utf-8")
    assert reader.read_profile(path).data == {"name": "x"}


def test_the_command_line_collects_less_garbage_and_the_library_as_usual():
    script = "import gc, kvcalc, kvcalc.api; before = gc.get_threshold(); import kvcalc.cli; print(before[0], gc.get_threshold()[0])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before < after
