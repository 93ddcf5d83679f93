"""Write docs/cli.md from the commands themselves: ``python tests/tools/write_cli_reference.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.cli.app import load_command
from kvcalc.cli.main import ALIASES, COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
HEAD = """\
# Command line

Written from the commands themselves by `tests/tools/write_cli_reference.py`; a test holds it against them.

stdout is data, stderr is messages. Exit codes: 0 fine, 1 a check failed, 2 bad input, with one line that says what and
where, and a `hint:`. Every report has `--json` (base units, the unit in each field's name) and `--output`
`table|json|jsonl|csv|md`; what programs read does not depend on the locale, the terminal or `--units`. Lists and ranges are
written `1,8,32`, `1-256*2`, `1024-33792+1024`; counts `8k` (1000) or `128Ki` (1024); memory `80GB` or `23.45GiB`; rates
`3.35TB/s`; durations `500ms`. `NO_COLOR` is respected.

"""


def reference() -> str:
    """Return the page."""
    listed = "".join(f"- [`kvcalc {name}`](#kvcalc-{name}): {text}\n" for name, text in COMMANDS.items())
    sections = "".join(_section(name, command) for name, command in _commands())
    others = "".join(
        f"\n## kvcalc {name}\n\nThe same as [`kvcalc {own}`](#kvcalc-{own}).\n" for name, own in ALIASES.items()
    )
    return HEAD + listed + sections + others


def _commands() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        found = load_command(name)
        yield name, found
        for inner, command in getattr(found, "commands", {}).items():
            yield f"{name} {inner}", command


def _section(name: str, command: Any) -> str:
    text, _, example = (command.help or "").partition("Example:")
    told = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
    lines = [f"\n## kvcalc {name}\n", *(f"{paragraph}\n" for paragraph in told if paragraph)]
    if example:
        lines.append(f"```console\n$ {' '.join(example.split())}\n```\n")
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        lines += ["| option | | default |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.human_readable_name}`"
    else:
        name = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
    default = "required" if parameter.required else parameter.default
    shown = "" if default in (None, False, ()) or callable(default) else f"{default}"
    help_text = re.sub(r"\s*\[default:[^]]*\]|\s*\[required\]", "", " ".join((parameter.help or "").split()))
    return f"| {name} | {_cell(help_text)} | {_cell(shown)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
