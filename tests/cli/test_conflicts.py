"""One option with two values on a command line."""

from __future__ import annotations

import pytest

from kvcalc.cli.main import main


def _ran(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int | str | None, str]:
    with pytest.raises(SystemExit) as done:
        main(line.split())
    return done.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("size -m llama2-7b --batch 8 --batch 16", "--batch 8 and --batch 16"),
        ("size -m llama2-7b --model=llama2-70b", "-m llama2-7b and --model llama2-70b"),
        ("fit -m llama2-7b --gpu h200 --tp 2 --tensor-parallel 4", "--tp 2 and --tensor-parallel 4"),
        (
            "fit -m llama2-7b --gpu h200 --prefix-caching --no-prefix-caching",
            "--prefix-caching and --no-prefix-caching",
        ),
        ("size -m llama2-7b --output csv -o md", "--output csv and -o md"),
    ],
)
def test_two_values_of_one_option_are_refused(capsys: pytest.CaptureFixture[str], line: str, said: str) -> None:
    code, told = _ran(capsys, line)
    assert code == 2
    assert f"{said} are given together" in told


@pytest.mark.parametrize(
    "line",
    [
        "size -m llama2-7b --batch 8 --batch=8 --json",
        "size -m llama2-7b --set context_limit=2048 --set hidden_size=4096 --json",
        "size -m llama2-7b --json --json",
    ],
)
def test_the_same_twice_and_what_may_be_repeated_pass(capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert _ran(capsys, line) == (0, "")
