"""Every command: help that says what it does, `--json` where it reports, and an example that runs."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from kvcalc import api
from kvcalc.cli.app import load_command
from kvcalc.cli.main import COMMANDS, main

# Print profile files, schemas, scripts, "valid" or a page's address, not reports.
WITHOUT_JSON = {
    *("completion", "explore", "gpus schema", "gpus validate"),
    *("models import", "models schema", "models validate"),
}
# Run PyTorch: their examples run where it is installed, and must where KVCALC_TORCH says so.
WITH_TORCH = {"bench", "crosscheck"}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def _commands():
    """Yield each command's full name and what the command line library has of it."""
    for name in COMMANDS:
        command = load_command(name)
        inner = getattr(command, "commands", None)
        yield from ((f"{name} {short}", each) for short, each in inner.items()) if inner else ((name, command),)


FOUND = dict(_commands())
every_command = pytest.mark.parametrize("name", FOUND)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_in_the_overview_is_the_commands_own(name):
    assert COMMANDS[name] == load_command(name).help.splitlines()[0]


@every_command
def test_every_report_can_be_printed_as_json(name):
    options = {flag for parameter in FOUND[name].params for flag in parameter.opts}
    assert ("--json" in options) != (name in WITHOUT_JSON)


@every_command
def test_every_option_is_explained(name):
    assert not [parameter.name for parameter in FOUND[name].params if not getattr(parameter, "help", None)]


def _example(name):
    return re.search(r"^ *Example: (kvcalc .+)$", FOUND[name].help, re.MULTILINE)[1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder that holds the files that examples name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)  # it would serve until interrupted
    shutil.copytree(Path(__file__).parents[2] / "docs" / "examples", tmp_path / "docs" / "examples")
    return tmp_path


@pytest.fixture
def torch_ready(name, request):
    """PyTorch where a command runs it, on small working sets unless those of users are asked for."""
    if name not in WITH_TORCH:
        return
    if not os.environ.get("KVCALC_TORCH"):
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")
    if not os.environ.get("KVCALC_FULL_BENCH"):
        request.getfixturevalue("small_working_sets")
        request.getfixturevalue("ceilings_out_of_reach")


def _run(arguments):
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return done.value.code


@pytest.mark.usefixtures("torch_ready")
@every_command
def test_the_example_runs(name, folder, capsys):
    profile = api.load_hardware("h100-sxm") if name.startswith("gpus") else api.load_model("llama2-70b")
    (folder / "my-profile.yaml").write_text(api.profile_text(profile), encoding="utf-8")
    program, *arguments = shlex.split(_example(name))
    assert program == "kvcalc"
    assert arguments[: len(name.split())] == name.split()
    code, printed = _run(arguments), capsys.readouterr()
    assert code == 0, printed.err
    assert printed.out or "wrote" in printed.err


@pytest.mark.usefixtures("torch_ready")
@every_command
def test_the_example_prints_one_json_object(name, folder, capsys):
    if name in WITHOUT_JSON:
        return
    assert folder.is_dir()
    assert _run([*shlex.split(_example(name))[1:], "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)


@pytest.mark.parametrize("arguments", [[], ["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_is_printed(arguments, capsys):
    assert _run(arguments) == 0
    assert "kvcalc" in capsys.readouterr().out
