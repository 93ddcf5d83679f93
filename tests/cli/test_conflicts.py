"""One option with two values on a command line: the last holds, so that a script's defaults can be overridden."""

from __future__ import annotations

import json

import pytest

from kvcalc.cli.main import main


def _ran(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, object]:
    with pytest.raises(SystemExit) as done:
        main([*line.split(), "--json"])
    out, err = capsys.readouterr()
    assert (done.value.code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        ("size -m llama2-7b --batch 8 --batch 16", "size -m llama2-7b --batch 16"),
        ("size -m llama2-7b --model=llama2-70b", "size -m llama2-70b"),
        ("fit -m llama2-7b --gpu h200 --tp 2 --tensor-parallel 4", "fit -m llama2-7b --gpu h200 --tp 4"),
        (
            "fit -m llama2-7b --gpu h200 --prefix-caching --no-prefix-caching",
            "fit -m llama2-7b --gpu h200 --no-prefix-caching",
        ),
        ("size -m llama2-7b --json", "size -m llama2-7b"),
    ],
)
def test_the_last_of_two_values_holds(capsys: pytest.CaptureFixture[str], line: str, alone: str) -> None:
    assert _ran(capsys, line) == _ran(capsys, alone)


def test_what_may_be_repeated_is_taken_together(capsys: pytest.CaptureFixture[str]) -> None:
    report = _ran(capsys, "size -m llama2-7b --set context_limit=2048 --set hidden_size=2048")
    assert report != _ran(capsys, "size -m llama2-7b --set hidden_size=2048")
