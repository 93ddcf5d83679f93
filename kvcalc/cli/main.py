"""``kvcalc``: which commands there are, and how errors leave the program."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from kvcalc.core.errors import KvcalcError, did_you_mean
from kvcalc.core.units import print_bytes_as

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "load_command", "main"]

# Name and first line of help of each command. A command is the function ``command`` of the module of its name, or the
# Typer ``app`` of a module with subcommands; a test holds these lines against the docstrings.
COMMANDS = {
    "size": "Bytes of the KV cache per token, per sequence and in total, and of the weights.",
    "decode": "Bound on decoding: tokens/s, the least time of a step, and what limits it.",
    "prefill": "Bound on prefill: the least time to first token, and what limits it.",
    "roofline": "Ceilings and ridge points of an accelerator, and where models sit below them.",
    "fit": "Does it fit: the budget term by term, the largest batch and context, the fewest GPUs.",
    "compare": "Models, accelerators, formats or whole deployments side by side.",
    "solve": "Solve for the one quantity that is left as ?: batch, context, GPUs, bandwidth, price or acceptance.",
    "check": "Assertions for CI from a YAML file, or whether a measured speed is possible at all.",
    "speculate": "Does speculation pay: tokens of a pass, speed-up, break-even acceptance, draft length and batch.",
    "reconcile": "An engine's start-up log against the prediction: each printed number, computed again.",
    "traffic": "Bytes read to generate tokens after a prompt: weights each time, the cache quadratically.",
    "levers": "Every known way to shrink the cache: bytes held and read, what it cuts, what it asks for.",
    "simulate": "A serving run under load: TTFT, TPOT, throughput, the cache, and the highest load that holds.",
    "sweep": "A report at every point of a grid: models, accelerators, parallelism, batch, context, load.",
    "demo": "See it work, step by step: the KV cache, speculation, paging, drift.",
    "validate": "Predictions held against published measurements: none may beat its bound.",
    "bench": "What this machine reaches: bandwidth, rates of matrices and attention, overheads. Needs PyTorch.",
    "crosscheck": "Predictions held against a real decode loop here: bytes, bounds, estimates. Needs PyTorch.",
    "completion": "Completion of commands, options, models and accelerators for a shell.",
    "models": "List, show, import, lint and validate model profiles.",
    "gpus": "List, show and validate accelerator profiles.",
}


def _units_option() -> TyperOption:
    """Return the option of every command that prints tables: in which units their bytes stand."""

    def choose(ctx: Any, parameter: Any, value: str) -> None:
        del ctx, parameter
        print_bytes_as(value)

    told = "Bytes in tables: iec (GiB) or si (GB); JSON and CSV stay in bytes."
    return TyperOption(
        param_decls=["--units"], default="iec", expose_value=False, callback=choose, help=told, show_default=True
    )


def load_command(name: str) -> Any:
    """Return a command as the command line library has it.

    Raises:
        KvcalcError: there is none of that name.
    """
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f"commands: {', '.join(COMMANDS)}"
        raise KvcalcError(f"unknown command {name!r}", hint=hint)
    module = import_module(f"kvcalc.cli.{name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(**_PLAIN)
        app.command(name)(module.command)
    found = get_command(app)
    for command in (found, *getattr(found, "commands", {}).values()):
        if any(parameter.name == "output" for parameter in command.params):
            command.params.append(_units_option())
    return found


class _Commands(TyperGroup):
    """A group that knows its commands' names and help without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  the library's signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  the same
        return load_command(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  the same
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


# Neither shell completion at start-up nor Rich in help and errors: both cost more time than the calculation.
_PLAIN: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}
_app = typer.Typer(cls=_Commands, invoke_without_command=True, **_PLAIN)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kvcalc import __version__

        sys.stdout.write(f"kvcalc {__version__}\n")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


@_app.callback(epilog="Example: kvcalc size --model llama2-70b. Each command has --help, --json and an example.")
def _root(ctx: typer.Context, version: Version = False) -> None:
    """Roofline and memory-capacity calculator for LLM inference."""
    del version
    if ctx.invoked_subcommand is None:
        sys.stdout.write(ctx.get_help() + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: 0 fine, 1 a check failed, 2 bad input; one line and a hint on standard error."""
    _prepare_output()
    try:
        code = get_command(_app)(args=arguments, prog_name="kvcalc", standalone_mode=False)
        sys.stdout.flush()
    except KvcalcError as error:
        code = _complain(str(error), error.hint)
    except typer.TyperException as error:
        code = _complain(" ".join(error.format_message().split()), _usage_hint(error))
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        # what reads us has seen enough; keep the interpreter from complaining when it closes the pipe
        sys.stdout = None
        code = 0
    except OSError as error:
        code = _complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"[:300], "")
    sys.exit(code or 0)


def _prepare_output() -> None:
    """Make standard output take whatever is printed: a closed one swallows it, a narrow one replaces characters."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  it lives as long as the program
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _complain(what: str, hint: str) -> int:
    sys.stderr.write(f"error: {what}\n")
    if hint:
        sys.stderr.write(f"hint: {hint}\n")
    return 2


def _usage_hint(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path} --help shows the options" if context is not None else ""
