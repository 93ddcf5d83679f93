"""A line asked at the command line: its exit code and output, or its answer."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from kvcalc.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(capsys: pytest.CaptureFixture[str], line: str | Sequence[str]) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a line, or of its words."""
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(line) if isinstance(line, str) else list(line))
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


def answer(capsys: pytest.CaptureFixture[str], line: str) -> Any:
    """Return the JSON that a line prints, which must succeed."""
    code, out, err = run(capsys, f"{line} --json")
    assert code == 0, err
    return json.loads(out)
