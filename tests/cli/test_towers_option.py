"""``--no-towers``: every command that weighs a model leaves its towers out, and says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcalc.cli.main import main

_TEXT_BYTES = 54_018_692_608
_ALL_BYTES = 54_864_813_280


def _json(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    with pytest.raises(SystemExit) as ended:
        main([*line.split(), "--json"])
    assert ended.value.code == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    "line",
    [
        "size --model gemma-3-27b",
        "fit --model gemma-3-27b --gpu h200",
        "decode --model gemma-3-27b --gpu h200",
        "prefill --model gemma-3-27b --gpu h200",
        "roofline --model gemma-3-27b --gpu h200",
        "traffic --model gemma-3-27b",
        "levers --model gemma-3-27b --gpu h200",
        "compare --model gemma-3-27b --gpu h200,b200",
        "solve --model gemma-3-27b --gpu h200 --batch 2 --context ?",
        "speculate --model gemma-3-27b --draft gemma-3-1b --gpu h200",
    ],
)
def test_every_answer_says_that_towers_are_left_out(capsys: pytest.CaptureFixture[str], line: str) -> None:
    told = "without its vision tower (423,060,336 parameters)"
    assert any(told in note for note in _json(capsys, f"{line} --no-towers")["notes"])
    assert not any(told in note for note in _json(capsys, line)["notes"])


def test_the_weights_are_those_of_the_text_model(capsys: pytest.CaptureFixture[str]) -> None:
    for option, size in (("", _ALL_BYTES), (" --towers", _ALL_BYTES), (" --no-towers", _TEXT_BYTES)):
        assert _json(capsys, f"size --model gemma-3-27b{option}")["weights"]["total_bytes"] == size
        assert _json(capsys, f"fit --model gemma-3-27b --gpu h200{option}")["budget"]["weight_bytes"] == size
        swept = _json(capsys, f"sweep --model gemma-3-27b --gpu h200 --report size{option}")["rows"][0]
        assert swept["weights.total_bytes"] == size
        rows = {row["quantity"]: row for row in _json(capsys, f"compare gemma-3-27b llama3.1-8b{option}")["rows"]}
        assert rows["size.weights.total_bytes"]["values"][0] == size
