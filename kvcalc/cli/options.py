"""Options that several commands share, so that they are spelled and explained the same everywhere."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from kvcalc.core.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Json",
    "Model",
    "Output",
    "Set",
    "takes_charts",
    "takes_lesson",
]

_MODEL = "Catalogue name, Hugging Face id, profile, config.json (or its folder), .gguf or .safetensors."
Model = Annotated[str, Option("--model", "-m", help=_MODEL)]
Set = Annotated[list[str] | None, Option("--set", help="Override a profile field: kv_heads=64. May be repeated.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object.")]
Output = Annotated[str, Option("--output", "-o", help="table, json, jsonl, csv or md.")]

# Files a report's chart is written to; the names are their endings.
_CHARTS: dict[str, Any] = {
    "svg": Annotated[str | None, Option("--svg", metavar="FILE", help="Write the chart as SVG.")],
    "png": Annotated[str | None, Option("--png", metavar="FILE", help="Write the chart as PNG.")],
    "html": Annotated[str | None, Option("--html", metavar="FILE", help="Write the chart as a page without network.")],
}

# How a demonstration is shown.
_LESSON: dict[str, Any] = {
    "steps": Annotated[bool | None, Option("--steps", help="Print each step before the result.")],
    "watch": Annotated[bool | None, Option("--watch", help="Animate the steps, on a terminal.")],
    "plain": Annotated[bool | None, Option("--plain", help="Neither colour, animation nor characters beyond ASCII.")],
}

# Options that say what is printed; a command's help lists those that it has last.
_LAST = ("explain", "json", "output")


def takes_charts(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that write a chart to files; the command gets them as the mapping ``chart_files``.

    Before the command begins, a file that cannot be written is refused, and so are charts where nothing draws them.
    """

    @wraps(command)
    def checked(*, chart_files: dict[str, str | None], **options: Any) -> None:
        from kvcalc.cli.shared import check_charts

        check_charts(chart_files)
        command(chart_files=chart_files, **options)

    return _taking(checked, "chart_files", _CHARTS)


def takes_lesson(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a demonstration to a command; it gets them as the mapping ``lesson_options``."""
    return _taking(command, "lesson_options", _LESSON)


def _taking(command: Callable[..., None], name: str, added: dict[str, Any]) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    added = {option: kind for option, kind in added.items() if option not in signature.parameters}
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [parameter.replace(kind=keyword) for parameter in signature.parameters.values() if parameter.name != name]
    new = [inspect.Parameter(option, keyword, default=None, annotation=kind) for option, kind in added.items()]
    last = [parameter for parameter in own if parameter.name in _LAST]
    first = [parameter for parameter in own if parameter not in last]

    @wraps(command)
    def run(**options: Any) -> None:
        taken = {option: options.pop(option) for option in added}
        if "settings" in taken:
            taken["settings"] = taken["settings"] or ()
        if taken.get("memory_bytes") is not None:
            taken["memory_bytes"] = parse_bytes(taken["memory_bytes"])
        command(**options, **{name: taken})

    vars(run)["__signature__"] = inspect.Signature([*first, *new, *last])
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*first, *new, *last)}
    del vars(run)["__wrapped__"]
    return run
