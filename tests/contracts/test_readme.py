"""The README's examples are what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvcalc.cli.main import main

README = (Path(__file__).parents[2] / "README.md").read_text()
EXAMPLES = re.findall(r"```console\n\$ (kvcalc .+)\n((?:.*\n)*?)```", README)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize(("command", "printed"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_example_prints_what_the_readme_shows(command: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(shlex.split(command)[1:])
    assert capsys.readouterr().out == printed


def test_the_python_example_runs() -> None:
    for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(code, "README.md", "exec"), {})  # noqa: S102  our own README
