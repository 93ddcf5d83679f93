"""``kvcalc demo``: a subcommand for each demonstration."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.main import get_command

from kvcalc.cli.commands import question_command
from kvcalc.questions import QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.questions.declared import Question

__all__ = ["group", "run"]

_HELP = "Step-by-step demonstrations: the KV cache, speculation, paging, batching, drift."


def group() -> Any:
    """Return the command with its subcommands."""
    app = typer.Typer(help=_HELP, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(_overview)
    command: Any = get_command(app)
    names = [name.partition(" ")[2] for name in QUESTIONS if name.startswith("demo ")]
    command.commands |= {name: question_command(f"demo {name}") for name in names}
    return command


def _overview(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        sys.stdout.write(ctx.get_help() + "\n")


_overview.__doc__ = _HELP


def run(asked: type[Question], given: Mapping[str, Any], output: str, charts: dict[str, str | None]) -> None:
    """Show a demonstration as the options ask."""
    from kvcalc.cli.shared import draw, emit
    from kvcalc.demo.lesson import animate, lesson_text, step_texts

    lesson: Any = asked(**given)
    report = lesson.answer().report
    draw(report, charts)
    if output != "table":
        emit(report, output)
        return
    if lesson.watch and not lesson.plain:
        animate(step_texts(report))
        sys.stdout.write("\n")
    steps = lesson.steps or (lesson.watch and lesson.plain)
    sys.stdout.write(lesson_text(report, steps=steps, plain=lesson.plain))
