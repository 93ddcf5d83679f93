"""Help of a command in plain text: its options under headings, each with its other names and its default."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from kvcalc.cli.wrapping import entry, wrapped
from kvcalc.questions.vocabulary import HEADINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["default_text", "headings_of", "help_text", "names_of", "option_text", "output_width"]

_MAX_WIDTH, _MIN_WIDTH, _PIPED_WIDTH = 100, 60, 80
# Columns of names; longer ones have a line of their own.
_NAMES_WIDTH = 28
_OTHER = "Options"
_OUTPUT = ("json", "output", "units", "svg", "png", "html", "explain", "help")
_LEFT_OUT = {
    "Engine": "default: the engine's own value",
    "vLLM": "--engine vllm; default: that version's value for the GPU",
    "SGLang": "--engine sglang; default: that version's value for the GPU",
    "llama.cpp": "--engine llama.cpp; default: llama.cpp's own value",
}


def output_width() -> int:
    """Return the columns of help: those of the terminal, or of COLUMNS, within bounds."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() else 0
    if not width and sys.stdout.isatty():
        import shutil  # what is printed to a pipe does without

        width = shutil.get_terminal_size((_PIPED_WIDTH, 24)).columns
    width = width or _PIPED_WIDTH
    return max(_MIN_WIDTH, min(_MAX_WIDTH, width))


def help_text(command: Any, context: Any) -> str:
    """Return the help of a command or of a group of them."""
    width = output_width()
    pieces = " ".join(command.collect_usage_pieces(context))
    lines = [f"Usage: {context.command_path} {pieces}".rstrip(), ""]
    for paragraph in (command.help or "").strip().split("\n\n"):
        words = " ".join(paragraph.split())
        lines += [*wrapped(words, width - 2, "  "), ""]
    inner = getattr(command, "commands", {})
    if inner:
        lines += ["Commands:"]
        listed = ((name, (each.help or "").strip().splitlines()[0]) for name, each in inner.items())
        lines += [line for name, text in listed for line in entry(name, text, width, names_width=_NAMES_WIDTH)] + [""]
    parameters = [*command.params, *(each for each in command.get_params(context) if each.name == "help")]
    for heading, options in headings_of(parameters, is_own=not inner):
        note = _LEFT_OUT.get(heading, "")
        lines += [*wrapped(f"{heading}{f' ({note})' if note else ''}:", width, "")]
        for each in options:
            lines += entry(names_of(each), option_text(each, heading), width, names_width=_NAMES_WIDTH)
        lines.append("")
    return "\n".join(lines).rstrip()


def headings_of(parameters: Sequence[Any], *, is_own: bool = True) -> list[tuple[str, list[Any]]]:
    """Return the headings of a command's help in their order, each with its parameters; hidden ones have none."""
    by_heading: dict[str, list[Any]] = {}
    for each in dict.fromkeys(parameters):
        if not getattr(each, "hidden", False):
            by_heading.setdefault(_heading(each), []).append(each)
    order = [name for name in HEADINGS if name != _OTHER or is_own]
    index = order.index("Load") if "Load" in order else 0
    rest = [name for name in by_heading if name not in order]
    return [
        (name, by_heading[name]) for name in [*order[: index + 1], *rest, *order[index + 1 :]] if name in by_heading
    ]


def _heading(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "heading", "") or ("Output" if parameter.name in _OUTPUT else _OTHER)


def names_of(parameter: Any) -> str:
    """Return the names that a parameter is listed by: ``-m, --model <str>``; its others stand in its text."""
    if parameter.param_type_name == "argument":
        return str(parameter.human_readable_name)
    long, shorts, _ = _split(parameter)
    names = ", ".join([*shorts, long])
    off = next((flag for flag in parameter.secondary_opts if flag.startswith("--no-")), "")
    off = off or next(iter(parameter.secondary_opts), "")
    if off:
        return f"{names} / {off}"
    kind = parameter.metavar or ("" if parameter.is_flag else f"<{parameter.type.name}>")
    return f"{names} {kind}".rstrip()


def _split(parameter: Any) -> tuple[str, list[str], list[str]]:
    """Return an option's name, its one-letter names, and the others."""
    longs = [flag for flag in parameter.opts if flag.startswith("--")]
    name = longs[0] if longs else parameter.opts[0]
    shorts = [flag for flag in parameter.opts if len(flag) == len("-x") and flag != name]
    return name, shorts, [flag for flag in parameter.opts if flag not in (name, *shorts)]


def option_text(parameter: Any, heading: str = "") -> str:
    """Return an option's help, other names and default, without the engine's name where its heading has it."""
    text = " ".join((getattr(parameter, "help", "") or "").split())
    if heading and text.startswith(f"{heading}: "):
        text = text[len(heading) + 2 :]
        is_value = text.split(" ", 2)[1:2] == ["or"] or text.partition(" ")[0].endswith(",")
        text = text if is_value else text[0].upper() + text[1:]
    others = _split(parameter)[2] if parameter.param_type_name == "option" else []
    shown = names_of(parameter)
    others += [flag for flag in getattr(parameter, "secondary_opts", ()) if flag not in shown]
    also = f" Also {', '.join(others)}." if others else ""
    default = default_text(parameter)
    return f"{text}{also}{f' [{default}]' if default else ''}"


def default_text(parameter: Any) -> str:
    """Return ``required``, ``default: …`` or nothing where leaving an option out means to do without."""
    if parameter.required:
        return "required"
    default = parameter.default
    if isinstance(default, bool):
        shown = next(iter(parameter.opts if default else parameter.secondary_opts), "")
        return f"default: {shown.lstrip('-')}" if shown and parameter.secondary_opts else ""
    if default in (None, (), "") or callable(default):
        default = getattr(parameter, "otherwise", "")
    return f"default: {default}" if default not in (None, "", ()) else ""
