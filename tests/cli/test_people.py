"""What people meet: units, completion, a reference that is up to date, and output that does not depend on the locale."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvcalc.cli.main import ALIASES, COMMANDS, main

ROOT = Path(__file__).parents[2]
BASH = shutil.which("bash")


def _run(arguments, capsys):
    with pytest.raises(SystemExit) as done:
        main(arguments)
    printed = capsys.readouterr()
    return done.value.code, printed.out, printed.err


def test_bytes_of_tables_are_printed_in_either_unit(capsys):
    arguments = ["decode", "--model", "llama2-70b", "--gpu", "h200", "--context", "128"]
    iec, si = _run(arguments, capsys)[1], _run([*arguments, "--units", "si"], capsys)[1]
    assert "memory per GPU          128.52 GiB" in iec
    assert "memory per GPU          138.00 GB" in si
    assert "GiB" not in si.replace("per GiB used", "")
    assert _run(arguments, capsys)[1] == iec


def test_what_programs_read_does_not_depend_on_the_units(capsys):
    arguments = ["fit", "--model", "llama2-70b", "--gpu", "h100-sxm", "--gpus", "4", "--json"]
    assert _run([*arguments, "--units", "si"], capsys)[1] == _run(arguments, capsys)[1]


def test_unknown_units_are_refused(capsys):
    code, out, err = _run(["size", "--model", "llama2-70b", "--units", "gb"], capsys)
    assert (code, out) == (2, "")
    assert "iec (GiB, 1024) or si (GB, 1000)" in err


@pytest.mark.parametrize("name", ["128k", "128Ki", "131_072"])
def test_counts_are_written_in_several_ways(name, capsys):
    _, out, _ = _run(["size", "--model", "llama3.1-8b", "--context", name, "--json"], capsys)
    assert json.loads(out)["context"] in (128_000, 131_072)


@pytest.mark.skipif(BASH is None, reason="completes in bash")
@pytest.mark.parametrize(
    ("words", "expected", "unwanted"),
    [
        (["de"], "decode", "size"),
        (["size", "--mod"], "--model", "--gpu"),
        (["decode", "--gpu", "h10"], "h100-sxm", "h200"),
        (["size", "--model", "llama2-7"], "llama2-70b", "qwen3-8b"),
        (["fit", "--output", "js"], "jsonl", "table"),
        (["models", "im"], "import", "list"),
        (["models", "lint", "--"], "--json", "--model"),
        (["decode", "--units", ""], "si", "decode"),
    ],
)
def test_bash_completes(words, expected, unwanted, capsys, tmp_path):
    (tmp_path / "complete.sh").write_text(_run(["completion", "bash"], capsys)[1], encoding="utf-8")
    typed = " ".join(f"'{word}'" for word in ["kvcalc", *words])
    script = f'source complete.sh; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _kvcalc; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run([BASH, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = done.stdout.split()
    assert expected in found
    assert unwanted not in found


def test_fish_and_zsh_know_every_command(capsys):
    fish, zsh = (_run(["completion", shell], capsys)[1] for shell in ("fish", "zsh"))
    for name in (*COMMANDS, *ALIASES):
        assert f"-a {name} -d" in fish
        assert f"'{name}') words=" in zsh
    assert "bashcompinit" in zsh
    assert all(line.count("'") % 2 == line.count("\\'") % 2 for line in fish.splitlines())


def test_there_is_no_completion_for_other_shells(capsys):
    assert _run(["completion", "powershell"], capsys)[0] == 2


def test_the_reference_of_the_command_line_is_up_to_date():
    path = ROOT / "tests" / "tools" / "write_cli_reference.py"
    spec = importlib.util.spec_from_file_location("write_cli_reference", path)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text(encoding="utf-8") == tool.reference(), "run python tests/tools/write_cli_reference.py"


@pytest.mark.parametrize(
    "environment",
    [{"LC_ALL": "C"}, {"LC_ALL": "de_DE.UTF-8"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo"}],
)  # fmt: skip
def test_output_does_not_depend_on_the_locale(environment):
    arguments = ["prefill", "--model", "llama3.1-8b", "--gpu", "rtx-4090", "--prompt", "1024", "--output", "csv"]

    def printed(more):
        base = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
        command = [sys.executable, "-m", "kvcalc", *arguments]
        return subprocess.run(
            command, env={**base, "PYTHONPATH": str(ROOT), **more}, capture_output=True, check=True
        ).stdout

    assert printed(environment) == printed({})


def test_it_runs_without_a_home_and_where_nothing_can_be_written(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    for variables in ({"HOME": str(home)}, {"HOME": str(tmp_path / "missing")}, {"HOME": "", "XDG_CONFIG_HOME": ""}):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        command = [sys.executable, "-m", "kvcalc", "size", "--model", "meta-llama/Llama-3.1-8B", "--json"]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["kv"]["bytes_per_token"] == 131_072
    assert not list(home.iterdir())


def test_runs_side_by_side_do_not_disturb_each_other(tmp_path):
    command = [
        sys.executable,
        "-m",
        "kvcalc",
        "decode",
        "--model",
        "gemma-3-27b",
        "--gpu",
        "h100",
        "--batch",
        "1-64*2",
        "--svg",
        "c.svg",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    outputs = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, outputs
    assert len({out for out, _ in outputs}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c.svg"]


def test_a_file_that_cannot_be_written_is_told_by_its_own_name(tmp_path, capsys):
    target = tmp_path / "missing" / "out.yaml"
    code, out, err = _run(
        ["models", "import", str(ROOT / "model_profiles" / "llama2-70b.yaml"), "-o", str(target)], capsys
    )
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {target}: there is no such folder\nhint: ")


@pytest.mark.parametrize(
    ("setting", "same"),
    [
        ("memory_bandwidth_bytes_per_s=4TB/s", "memory_bandwidth_bytes_per_s=4e12"),
        ("memory_bytes=40GiB", "memory_bytes=42949672960"),
        ("peak_flop_per_s.bf16=500TFLOP/s", "peak_flop_per_s.bf16=5e14"),
        ("context_limit=1k", "context_limit=1000"),
    ],
)
def test_a_setting_may_have_its_unit(setting, same, capsys):
    arguments = [
        "decode",
        "--model",
        "llama3.1-8b",
        "--gpu",
        "h100-sxm",
        "--context",
        "2000",
        "--batch",
        "512",
        "--json",
    ]
    one, other = (json.loads(_run([*arguments, "--set", text], capsys)[1]) for text in (setting, same))
    assert one["rows"] == other["rows"]
    assert one["memory_bytes"] == other["memory_bytes"]
    assert len(one["notes"]) == len(other["notes"])


@pytest.mark.parametrize("setting", ["memory_bandwidth_bytes_per_s=fast", "memory_bytes=40 apples"])
def test_a_setting_with_no_unit_that_there_is_is_refused(setting, capsys):
    code, out, err = _run(["decode", "--model", "llama3.1-8b", "--gpu", "h100-sxm", "--set", setting], capsys)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_the_overview_needs_no_library_and_is_what_the_library_prints(words):
    script = (
        "import sys\nfrom kvcalc.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "assert not {'typer', 'rich', 'yaml'} & set(sys.modules)\n"
        "from kvcalc.cli.app import run\nrun(['--help'])"
    )
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    once, twice = done.stdout[: len(done.stdout) // 2], done.stdout[len(done.stdout) // 2 :]
    assert once == twice
    assert all(name in once for name in COMMANDS)


@pytest.mark.parametrize("name", ["~nosuchuser/model", "~nosuchuser/config.json", "~", "~/nothing.yaml"])
def test_a_home_that_there_is_not_is_no_traceback(name, capsys):
    code, out, err = _run(["size", "--model", name], capsys)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_no_home_is_known_at_all(monkeypatch, capsys):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", str)
    code, _, err = _run(["size", "--model", "llama2-70b", "--json"], capsys)
    assert code == 0, err
