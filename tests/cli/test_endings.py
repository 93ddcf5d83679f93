"""How the program ends: whatever goes wrong is one line and exit code 2, also where nobody reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvcalc.cli import main as program

_KVCALC = f"{sys.executable} -P -m kvcalc"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "memory of this machine"),
        (RecursionError("deep"), "nested too deeply"),
        (OverflowError("int too large to convert to float"), "too large or too small"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), "not UTF-8"),
        (TypeError("unhashable type: 'list'"), "a fault in kvcalc itself: TypeError: unhashable type: 'list'"),
    ],
)
def test_what_a_machine_cannot_do_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, says: str
) -> None:
    def fails(words: list[str]) -> int:
        del words
        raise error

    monkeypatch.setattr(program, "_run", fails)
    with pytest.raises(SystemExit) as stopped:
        program.main(["size"])
    err = capsys.readouterr().err
    assert stopped.value.code == 2
    assert says in err
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 1


def test_a_fault_shows_where_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(words: list[str]) -> int:
        raise TypeError(words)

    monkeypatch.setattr(program, "_run", fails)
    monkeypatch.setenv("KVCALC_DEBUG", "1")
    with pytest.raises(TypeError):
        program.main(["size"])


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("size --model nothing 2>&-", 2),
        ("size --model nothing >&- 2>&-", 2),
        ("size --model llama2-7b 2>&-", 0),
        ("size --model llama2-7b >&-", 2),
        ("size --model llama2-7b >/dev/null", 0),
        ("--help >&-", 2),
        ("size --model llama2-7b >/dev/full", 2),
        ("size --model llama2-7b >/dev/full 2>/dev/full", 2),
        ("reconcile - <&-", 2),
        ("reconcile /dev/zero", 2),
        ("reconcile - </dev/zero", 2),
        ("reconcile PIPE", 2),
        ("size --model PIPE", 2),
        ("size --model $'x\\xff'", 2),
        ("size --model $'x\\xff.yaml'", 2),
        ("decode --model llama2-7b --gpu $'x\\xff'", 2),
        ("check $'x\\xff'", 2),
    ],
)
def test_outputs_and_inputs_that_are_closed_full_or_endless(tmp_path: Path, command: str, code: int) -> None:
    pipe = tmp_path / "pipe"
    run = f"mkfifo {pipe}; {_KVCALC} {command.replace('PIPE', str(pipe))}"
    ended = subprocess.run(["/bin/bash", "-c", run], capture_output=True, check=False, timeout=120)
    assert ended.returncode == code, ended.stderr
    assert b"Traceback" not in ended.stderr
    assert b"Exception ignored" not in ended.stderr
    assert len(ended.stderr.splitlines()) <= 2


def test_a_pipe_of_the_shell_is_read(tmp_path: Path) -> None:
    log = Path("docs/examples/vllm-llama31-8b.log").absolute()
    for command in (f"reconcile <(cat {log})", f"reconcile /dev/stdin < {log}", f"reconcile - < {log}"):
        ended = subprocess.run(
            ["/bin/bash", "-c", f"{_KVCALC} {command}"], capture_output=True, check=False, timeout=120, cwd=tmp_path
        )
        assert (ended.returncode, ended.stderr) == (0, b""), command


def test_an_error_that_quotes_a_long_text_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text("a: !" + "x" * 100_000)
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "kvcalc", "size", "--model", str(path)], capture_output=True, check=False
    )
    assert ended.returncode == 2
    assert len(ended.stderr) < 2000
