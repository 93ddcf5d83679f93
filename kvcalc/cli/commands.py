"""Commands made from the declarations of questions."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from typer import Exit
from typer.core import TyperArgument, TyperCommand, TyperOption

from kvcalc.questions import question

if TYPE_CHECKING:
    from kvcalc.questions.declared import Param, Question

__all__ = ["question_command"]

_CHARTS = {
    "svg": "Write the chart as SVG.",
    "png": "Write the chart as PNG.",
    "html": "Write the chart as a page without network.",
}
# Questions that take long, or write files on the way, and the module whose ``run`` asks them.
_OWN_RUNS = {
    "simulate": "simulate",
    "sweep": "sweep",
    "check": "check",
    "demo": "demo",
    "bench": "measuring",
    "crosscheck": "measuring",
}


def question_command(name: str) -> TyperCommand:
    """Return the command that asks a question."""
    asked = question(name)
    own = [each for each in asked.params if each in vars(asked)]
    shared = [each for each in asked.params if each not in own]
    charts = [_option(kind, f"--{kind}", help=text, metavar="FILE") for kind, text in _CHARTS.items()]
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
    from kvcalc.cli.shared import check_charts, command_output, draw, emit, tell, tell_gpu, waiting

    output = command_output(texts.pop("output"), json=texts.pop("json"))
    charts = {kind: texts.pop(kind) for kind in _CHARTS if asked.has_chart}
    check_charts(charts)
    own = _OWN_RUNS.get(name.partition(" ")[0])
    if own is not None:
        import_module(f"kvcalc.cli.{own}").run(asked, texts, output, charts)
        return
    is_explained = texts.pop("explain", False)
    question_asked = asked(**texts)
    with waiting("records" if name == "validate" else "") as told:
        if told is not None:
            question_asked.progress = told  # type: ignore[method-assign]
        answer = question_asked.answer()
    gpu = texts.get("gpu")
    if gpu is not None:
        tell_gpu(gpu, answer.hardware)
    for remark in answer.remarks:
        tell(remark)
    draw(answer.report, charts)
    emit(answer.report, output, answer.explained if is_explained else None)
    if not answer.passed:
        raise Exit(1)
