"""The commands as the command line library has them."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from math import isfinite
from typing import Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from kvcalc.cli.commands import question_command
from kvcalc.cli.main import ALIASES, COMMANDS, overview
from kvcalc.core.errors import InputError, KvcalcError, did_you_mean
from kvcalc.core.units import print_bytes_as
from kvcalc.profiles.origins import noting_origins
from kvcalc.questions import QUESTIONS

__all__ = ["load_command", "run"]

# Commands by what people call them.
_MEANT = {
    "bandwidth": "bench", "benchmark": "bench", "card": "gpus", "cost": "plan", "diagnose": "why", "gpu": "gpus",
    "help": "kvcalc --help", "hardware": "gpus", "kv": "size", "kv-cache": "size", "latency": "prefill or decode",
    "list": "models or gpus", "log": "why", "memory": "size or fit", "model": "models", "price": "plan",
    "recommend": "plan or fit", "rent": "plan", "run": "fit", "serve": "explore or simulate", "spec": "speculate",
    "speed": "decode", "throughput": "decode or simulate", "tokens": "decode", "tps": "decode", "ttft": "prefill",
    "ui": "explore", "vram": "fit", "web": "explore",
}  # fmt: skip


def _units_option() -> TyperOption:
    """Return the option of every command that prints tables: in which units their bytes stand."""

    def choose(ctx: Any, parameter: Any, value: str) -> None:
        del ctx, parameter
        print_bytes_as(value)

    help_text = "Bytes in tables: iec (GiB) or si (GB); JSON and CSV stay in bytes."
    return TyperOption(
        param_decls=["--units"], default="iec", expose_value=False, callback=choose, help=help_text, show_default=True
    )


def _finite(ctx: Any, parameter: Any, value: float | None) -> float | None:
    """Refuse what Python calls a number and nobody means: NaN and infinities."""
    del ctx
    if value is not None and not isfinite(value):
        raise InputError(f"{parameter.opts[0]} must be a number, not {value}")
    return value


def load_command(name: str) -> Any:
    """Return a command as the command line library has it.

    Raises:
        KvcalcError: there is none of that name.
    """
    if name not in {**COMMANDS, **ALIASES}:
        close = did_you_mean(name, {**COMMANDS, **ALIASES})
        meant = f"did you mean {_MEANT[name.lower()]}?" if name.lower() in _MEANT else ""
        raise KvcalcError(f"unknown command {name!r}", hint=meant or close or f"commands: {', '.join(COMMANDS)}")
    own = ALIASES.get(name, name)
    loaded: Any = question_command(own) if own in QUESTIONS else _written_command(own)
    for command in (loaded, *getattr(loaded, "commands", {}).values()):
        command.get_help = partial(_help, command)
        for parameter in command.params:
            if parameter.type.name == "float" and parameter.callback is None:
                parameter.callback = _finite
        if any(parameter.name == "output" for parameter in command.params):
            command.params.append(_units_option())
    return loaded


def _help(command: Any, context: Any) -> str:
    from kvcalc.cli.help import help_text

    return help_text(command, context)


def _written_command(name: str) -> Any:
    """Return the command of the module of its name."""
    module = import_module(f"kvcalc.cli.{name}")
    if hasattr(module, "group"):
        return module.group()
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(**_PLAIN)
        app.command(name)(module.command)
    return get_command(app)


class _ReaderGoneError(Exception):
    """The reader of the output has closed it."""


class _Commands(TyperGroup):
    """A group that knows its commands' names and help without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  the library's signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  the same
        return load_command(cmd_name)

    def get_help(self, ctx: Any) -> str:  # noqa: ARG002  the same
        return overview().rstrip("\n")

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a pipe whose reader has gone leaves as no error of the system, to which the library exits."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGoneError from None


# Neither shell completion at start-up nor Rich in help and errors: both cost more time than the calculation.
_PLAIN: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}
_app = typer.Typer(cls=_Commands, invoke_without_command=True, **_PLAIN)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kvcalc import __version__

        sys.stdout.write(f"kvcalc {__version__}\n")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


@_app.callback()
def _root(ctx: typer.Context, version: Version = False) -> None:
    del version
    if ctx.invoked_subcommand is None:
        sys.stdout.write(ctx.get_help() + "\n")


def run(words: list[str]) -> int:
    """Run the command that some words spell, and return its exit code.

    Raises:
        KvcalcError: words that spell none, or what the command raises.
        BrokenPipeError: what reads the output has gone.
    """
    try:
        with noting_origins():
            code: int | None = get_command(_app)(args=words, prog_name="kvcalc", standalone_mode=False)
    except typer.TyperException as error:
        from kvcalc.cli.mistakes import as_input_error  # only where there is one

        raise as_input_error(error, words) from None
    except _ReaderGoneError:
        raise BrokenPipeError from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    return code or 0
