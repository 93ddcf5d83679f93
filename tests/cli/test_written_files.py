"""Commands that write files: what cannot be written is told first, and what ends them leaves nothing half done."""

import pytest

from kvcalc.cli import main


@pytest.fixture
def run(capsys):
    """A command's exit code and what it printed."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main.main(words)
        return ended.value.code, *capsys.readouterr()

    return run


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
