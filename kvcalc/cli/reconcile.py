"""``kvcalc reconcile``."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Exit, Option

from kvcalc.cli.options import Json, Output, Set

Log = Annotated[str, Argument(metavar="LOG", help="File with an engine's start-up log, or - for standard input.")]
Model = Annotated[
    str | None,
    Option("--model", "-m", help="The model, where the log does not tell: name, id, profile or config.json."),
]
Engine = Annotated[str | None, Option("--engine", help="Look at this engine alone: vllm, sglang, llama.cpp.")]
Strict = Annotated[bool, Option("--strict", help="Exit with 1 if a number disagrees or none was computed.")]


def command(
    log: Log,
    model: Model = None,
    engine: Engine = None,
    settings: Set = None,
    strict: Strict = False,
    json: Json = False,
    output: Output = "table",
) -> None:
    """An engine's start-up log against the prediction: each printed number, computed again.

    Example: kvcalc reconcile docs/examples/vllm-llama31-8b.log
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, emit

    shown = command_output(output, json=json)
    report = api.reconcile(_read(log), model=model, engine=engine, settings=settings or ())
    emit(report, shown)
    if strict and not (report.agrees and report.complete):
        raise Exit(1)


def _read(log: str) -> str:
    """Return the text of a file or of standard input, whatever bytes it holds."""
    import sys
    from pathlib import Path

    from kvcalc.core.errors import InputError
    from kvcalc.engines.logs import decoded

    if log == "-":
        return decoded(sys.stdin.buffer.read())
    try:
        return decoded(Path(log).read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the log: {error.strerror or error}", where=log) from error
