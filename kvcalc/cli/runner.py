"""Commands as functions: a command's own options in, the JSON of its report out."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
from functools import cache
from importlib import import_module
from math import isfinite
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from kvcalc import api
from kvcalc.core.errors import InputError, KvcalcError, did_you_mean
from kvcalc.profiles.origins import noting_origins
from kvcalc.questions import QUESTIONS, ask, question

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Runner", "option_help", "report_names"]

# Commands that print something else than figures of a setup.
_WITHOUT_FIGURES = (
    "check",
    "models",
    "gpus",
    "demo",
    "explore",
    "completion",
    "reconcile",
    "validate",
    "compare",
    "sweep",
)
# Options that say how a report is printed, not what is in it.
_PRINTING = ("json", "output", "explain", "svg", "png", "html")


@cache
def _command(name: str) -> Callable[..., None]:
    found: Callable[..., None] = import_module(f"kvcalc.cli.{name}").command
    return found


@cache
def _parameters(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(_command(name), eval_str=True).parameters)


@cache
def _names(name: str) -> dict[str, str]:
    """Return what an option may be called, without dashes, and the parameter it sets."""
    if name in QUESTIONS:
        return question(name).spelled()
    spelled: dict[str, str] = {}
    for parameter, description in _parameters(name).items():
        if parameter in _PRINTING:
            continue
        option = _option(description)
        # what is written first in an annotation is a name, though the library calls it a default
        flags = [flag for flag in (option.default, *(option.param_decls or ())) if str(flag).startswith("--")]
        for flag in (parameter, *flags):
            spelled[flag.split("/")[0].lstrip("-").replace("-", "_")] = parameter
    return spelled


def _help(report: str, parameter: str) -> str:
    if report in QUESTIONS:
        return question(report).params[parameter].help
    return str(_option(_parameters(report)[parameter]).help)


def _option(parameter: inspect.Parameter) -> Any:
    return get_args(parameter.annotation)[1]


def report_names() -> list[str]:
    """Return the names of the commands whose figures can be asserted."""
    from kvcalc.cli.main import COMMANDS

    return [name for name in COMMANDS if name not in _WITHOUT_FIGURES]


def option_help() -> dict[str, str]:
    """Return the options of all those commands, by name, with their help."""
    found: dict[str, str] = {}
    for report in report_names():
        for spelled, parameter in _names(report).items():
            found.setdefault(spelled, _help(report, parameter))
    return dict(sorted(found.items()))


class Runner:
    """Runs commands and remembers what they answered.

    Args:
        known: options that each check may set, whether or not the reports it asks for have them.
    """

    def __init__(self) -> None:
        self._answers: dict[str, Mapping[str, Any]] = {}

    def __call__(self, report: str, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the report of a command as plain data.

        Args:
            report: the command.
            settings: its options by name, with ``_`` for ``-``; each must be an option of some report.
            defaults: options that count where the command has them and none is set.

        Raises:
            InputError: an option that there is not, or a value that it does not take.
        """
        options = _options(report, settings, defaults)
        key = repr((report, sorted(options.items(), key=lambda item: item[0])))
        if key not in self._answers:
            self._answers[key] = _asked(report, options) if report in QUESTIONS else _answer(report, options)
        return self._answers[key]


def _options(report: str, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    names = _names(report)
    chosen: dict[str, Any] = {}
    for name, value in (*defaults.items(), *settings.items()):
        if name in names:
            chosen[names[name]] = value
        elif name not in option_help():
            hint = did_you_mean(name, option_help()) or "options are those of the command line, with _ for -"
            raise InputError(f"there is no option {name!r}", hint=hint)
    if "prompt" in names and "prompt" not in chosen and "context" not in names:
        # what is attended after the prompt is the prompt, unless it is said
        context = settings.get("context", defaults.get("context"))
        if context is not None:
            chosen["prompt"] = context
    # what is null is left out
    given = {name: value for name, value in chosen.items() if value is not None}
    if report in QUESTIONS:
        params = question(report).params
        return {name: _scalar(name, value, repeats=params[name].repeats) for name, value in given.items()}
    parameters = _parameters(report)
    return {name: _typed(name, value, parameters[name].annotation) for name, value in given.items()}


def _scalar(name: str, value: Any, *, repeats: bool) -> Any:
    """Return a value of a YAML file as a command line would have it: text is text, whatever it looks like."""
    if repeats and isinstance(value, list):
        return [str(each) for each in value]
    if isinstance(value, list | dict):
        raise InputError(f"{name} takes one value, not {value}", hint="lists go below `matrix:`")
    return value if isinstance(value, bool) else str(value)


def _typed(name: str, value: Any, annotation: Any) -> Any:
    """Return a value as the type that an option takes: text is text, whatever it looks like."""
    kinds = _kinds(get_args(annotation)[0])
    if list in kinds:
        return [str(each) for each in (value if isinstance(value, list) else [value])]
    if isinstance(value, list | dict):
        raise InputError(f"{name} takes one value, not {value}", hint="lists go below `matrix:`")
    if bool in kinds:
        if not isinstance(value, bool):
            raise InputError(f"{name} is true or false, not {value!r}")
        return value
    if str in kinds:
        return str(value)
    try:
        number = float(value)
        if float in kinds and isfinite(number):
            return number
        if number == int(number):
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{name} takes a {'' if float in kinds else 'whole '}number, not {value!r}")


def _kinds(annotation: Any) -> list[Any]:
    found = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [get_origin(kind) or kind for kind in found if kind is not type(None)]


def _asked(report: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    missing = next(
        (each for name, each in question(report).params.items() if each.is_required and name not in options), None
    )
    if missing is not None:
        raise InputError(f"{report} needs {missing.name}", hint=f"kvcalc {report} --help shows the options")
    with noting_origins():
        return api.report_data(ask(report, options))


def _answer(report: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    given: dict[str, Any] = {}
    for name, parameter in _parameters(report).items():
        if name in options:
            given[name] = options[name]
        elif name == "json":
            given[name] = True
        elif parameter.default is inspect.Parameter.empty:
            raise InputError(
                f"{report} needs {name.replace('_', '-')}", hint=f"kvcalc {report} --help shows the options"
            )
        else:
            given[name] = parameter.default
    printed = io.StringIO()
    with noting_origins(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            _command(report)(**given)
        except (KvcalcError, OSError):
            raise
        except SystemExit:
            pass  # a report that ends the program has been printed
    answer: Mapping[str, Any] = json.loads(printed.getvalue())
    return answer
