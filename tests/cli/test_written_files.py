"""Commands that write files: what cannot be written is told first, and what ends them leaves nothing half done."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from kvcalc.cli import main
from kvcalc.cli.signals import ended_by_signals


@pytest.fixture
def run(capsys):
    """A command's exit code and what it printed."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main.main(words)
        return ended.value.code, *capsys.readouterr()

    return run


_LOADS = {
    "sweep": ("--batch", "1"),
    "simulate": ("--prompt", "9", "--output-tokens", "9", "--rate", "1", "--requests", "3"),
}


@pytest.mark.parametrize(
    "command",
    [
        ("decode", "--model", "llama3.1-8b", "--gpu", "h200", "--svg"),
        ("validate", "--suite", "bytes", "--html"),
        ("simulate", "--model", "llama3.1-8b", "--gpu", "h200", "--prompt", "9", "--output-tokens", "9", "--rate", "1",
         "--find-capacity", "--slo", "ttft_p95=1s", "--save-trace"),
        ("check", "tests/kvcalc.checks.yaml", "--junit"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(("file", "why"), [("nowhere/x.json", "there is no such folder"), ("", "it is a folder")])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_computed(run, tmp_path, command, file, why):
    code, out, err = run(*command, str(tmp_path / file))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {tmp_path / file}: {why}")


@pytest.mark.parametrize("option", ["--save-requests", "--save-trace", "--svg", "--save"])
def test_an_empty_name_is_no_file(run, option):
    command = "sweep" if option == "--save" else "simulate"
    code, out, err = run(command, "--model", "llama3.1-8b", "--gpu", "h200", option, "", *_LOADS[command])
    assert (code, out) == (2, "")
    assert err.startswith("error: a file to be written has no name\n")


def test_a_picture_without_the_library_that_draws_names_the_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    for command in (
        ["decode", "--model", "llama3.1-8b", "--gpu", "h200", "--svg", str(tmp_path / "chart.svg")],
        ["demo", "kv-cache", "--html", str(tmp_path / "chart.html")],
        ["explore", "--no-browser"],
    ):
        code, out, err = run(*command)
        assert (code, out) == (2, "")
        extra = "explore" if command[0] == "explore" else "charts"
        assert "vl-convert" in err.splitlines()[0]
        assert err.splitlines()[1] == f'hint: pip install "kvcalc[{extra}]"'
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on address space is Linux's")
def test_a_chart_that_memory_does_not_suffice_for_is_one_line(tmp_path):
    """The JavaScript engine that draws aborts its process, after pages of text."""
    path = tmp_path / "chart.svg"
    command = f"{sys.executable} -m kvcalc decode --model llama3.1-8b --gpu h200 --json --svg {path}"
    ended = subprocess.run(
        ["/bin/bash", "-c", f"ulimit -v 6000000; {command}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        check=False,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: the process that draws charts has ended\nhint: ")
    assert len(ended.stderr.splitlines()) == 2
    assert not list(tmp_path.iterdir())


@pytest.fixture
def start():
    """Starts a command in a process of its own."""
    running = []

    def start(*words):
        process = subprocess.Popen(
            [sys.executable, "-m", "kvcalc", *map(str, words)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509  no threads there
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


LONG = ("simulate", "--model", "llama3.1-8b", "--gpu", "h200", "--prompt", "100", "--output-tokens", "50", "--rate", "50",
        "--requests", "10m")  # fmt: skip


def _until(true, seconds=120.0):
    end_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end_s, f"not within {seconds} s"
        time.sleep(0.01)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_a_command_leaves_no_unfinished_file(start, tmp_path, ending):
    process = start(*LONG, "--save-requests", tmp_path / "rows.csv", "--save-trace", tmp_path / "trace.json")
    _until(lambda: len(list(tmp_path.glob(".*.part"))) == 2)
    process.send_signal(ending)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGHUP])
def test_a_terminals_signal_ends_a_parallel_sweep_at_once_and_keeps_what_was_saved(start, tmp_path, ending):
    process = start("sweep", "--report", "simulate", "--model", "llama3.1-8b", "--gpu", "h200", "--prompt", "100", "--rate", "5",
                    "--output-tokens", "50", "--requests", "2k", "--seed", ",".join(map(str, range(1000))),
                    "--workers", "2", "--save", tmp_path / "rows.csv")  # fmt: skip
    _until(lambda: list(tmp_path.glob("rows.csv.parts/0*")))
    os.killpg(process.pid, ending)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv.parts"]
    assert not list(tmp_path.rglob("*.part"))


def test_a_signal_that_was_ignored_stays_so_and_a_second_one_at_once_does_not_disturb_the_first():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    cleared = []

    @ended_by_signals()
    def work():
        signal.raise_signal(signal.SIGHUP)
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            cleared.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert cleared
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("more", [("--output", "csv"), ("--output", "jsonl")])
def test_a_sweep_whose_reader_has_seen_enough_ends_well(start, more):
    process = start("sweep", "--model", "llama3.1-8b", "--gpu", "h200", "--batch", "1-1024", "--context", "1-30", *more)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=120) == 0
