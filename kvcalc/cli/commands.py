"""Commands made from the declarations of questions."""

from __future__ import annotations

from functools import partial
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from typer import Exit
from typer.core import TyperArgument, TyperCommand, TyperOption

from kvcalc.cli.asking import CHARTS, ask_and_print
from kvcalc.questions import question

if TYPE_CHECKING:
    from kvcalc.questions.declared import Param, Question

__all__ = ["question_command"]


def question_command(name: str) -> TyperCommand:
    """Return the command that asks a question."""
    asked = question(name)
    own = [each for each in asked.params if each in vars(asked)]
    shared = [each for each in asked.params if each not in own]
    charts = [_option(kind, f"--{kind}", help=text, metavar="FILE") for kind, text in CHARTS.items()]
    params = [
        *(_parameter(each, asked.params[each], asked) for each in own),
        *(charts if asked.has_chart else ()),
        *(_parameter(each, asked.params[each], asked) for each in shared),
        *_printing_options(explains=asked.explains),
    ]
    return TyperCommand(
        name.rpartition(" ")[2],
        params=params,
        callback=partial(_run, asked, name),
        help=cleandoc(asked.__doc__ or ""),
        rich_markup_mode=None,
    )


def _printing_options(*, explains: bool) -> list[TyperOption]:
    """Return the options that say what is printed of a report."""
    explain = _option("explain", "--explain", help="Print each formula with its numbers and their sources.", flag=True)
    return [
        *((explain,) if explains else ()),
        _option("json", "--json", help="Print one JSON object.", flag=True),
        _option("output", "--output", "-o", help="table, json, jsonl, csv or md.", default="table"),
    ]


def _option(name: str, *flags: str, help: str, metavar: str | None = None, flag: bool = False,  # noqa: A002
            default: Any = None) -> TyperOption:  # fmt: skip
    return TyperOption(
        param_decls=[name, *flags],
        type=None if flag else str,
        is_flag=flag or None,
        default=False if flag else default,
        metavar=metavar,
        help=help,
        show_default=True,
    )


def _parameter(name: str, each: Param, asked: type[Question]) -> Any:
    """Return a parameter as the command line library has it, with what its help says of it."""
    made: Any
    if each.is_argument:
        made = TyperArgument(
            param_decls=[name], type=str, nargs=-1 if each.repeats else 1, metavar=each.metavar, help=each.help,
            required=each.is_required, show_default=False,
        )  # fmt: skip
    else:
        is_flag = each.kind == "flag"
        is_foreign = bool(each.engines and asked.engines) and not set(each.engines) & set(asked.engines)
        made = TyperOption(
            param_decls=[name, *each.flags],
            type=bool if is_flag else str,
            is_flag=is_flag,
            required=each.is_required,
            default=each.default,
            metavar=each.metavar or (None if is_flag else f"<{each.kind}>"),
            multiple=each.repeats,
            help=each.help,
            hidden=is_foreign,
        )
    made.heading, made.otherwise, made.meant = each.heading, each.otherwise, each.meant
    return made


def _run(asked: type[Question], name: str, **texts: Any) -> None:
    """Ask a question with the texts of a command line, and print its answer."""
    if not ask_and_print(name, asked, texts):
        raise Exit(1)
