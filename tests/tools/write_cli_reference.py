"""Write docs/cli.md from the commands themselves: ``python tests/tools/write_cli_reference.py``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.cli.app import load_command
from kvcalc.cli.help import default_text, headings_of, option_text
from kvcalc.cli.main import ALIASES, COMMANDS, PANELS

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
    listed = "\n".join(_panel(title, commands) for title, commands in PANELS.items())
    sections = "".join(_section(name, command) for name, command in _commands())
    others = "".join(
        f"\n## kvcalc {name}\n\nThe same as [`kvcalc {own}`](#kvcalc-{own}).\n" for name, own in ALIASES.items()
    )
    return HEAD + listed + sections + others


def _panel(title: str, commands: dict[str, str]) -> str:
    lines = "".join(f"- [`kvcalc {name}`](#kvcalc-{name}): {text}\n" for name, text in commands.items())
    return f"**{title}**\n\n{lines}"


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
    for heading, parameters in headings_of([each for each in command.params if each.name != "help"]):
        rows = [_row(parameter, heading) for parameter in parameters]
        lines += [f"| {heading} | | default |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _row(parameter: Any, heading: str) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.human_readable_name}`"
    else:
        name = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
    shown = default_text(parameter)
    text = option_text(parameter, heading).partition(" Also -")[0].removesuffix(f" [{shown}]")
    return f"| {name} | {_cell(text)} | {_cell(shown.removeprefix('default: '))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
