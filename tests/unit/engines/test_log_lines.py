"""Every number that is read from a log names the line that it stands on, wherever in a log that line comes."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import kvcalc
from kvcalc.engines.logs import Printed, read_log
from kvcalc.evidence.log_text import log_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTS = Path(kvcalc.__file__).parent / "evidence" / "facts" / "engine_logs.yaml"
RECORDS = {record["id"]: record for record in yaml.safe_load(FACTS.read_text(encoding="utf-8"))}
NOISE = "INFO: something else of 123 and 4.5\n"


def _printed(value: Any) -> Iterator[Printed]:
    """Every printed number inside of what was read."""
    if isinstance(value, Printed):
        yield value
    elif isinstance(value, dict):
        yield from (each for entry in value.values() for each in _printed(entry))
    elif isinstance(value, tuple | list):
        yield from (each for entry in value for each in _printed(entry))
    elif is_dataclass(value):
        yield from (each for field in fields(value) for each in _printed(getattr(value, field.name)))


def _numbers(line: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", line)]


@pytest.mark.parametrize("before", [0, 1, 7])
@pytest.mark.parametrize("name", RECORDS)
def test_a_number_names_its_line(name: str, before: int) -> None:
    text = NOISE * before + log_of(RECORDS[name])
    lines = text.splitlines()
    starts = read_log(text)
    assert starts
    printed = list(_printed(list(starts)))
    for number in printed:
        assert any(abs(shown - number.value) <= number.half_step for shown in _numbers(lines[number.line - 1])), number
    assert [start.line for start in read_log(text)] == [
        start.line + before for start in read_log(text[len(NOISE) * before :])
    ]
