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
Gpu = Annotated[
    str | None,
    Option("--gpu", help="The GPU, for flags that would start what was refused, where the log does not name it."),
]
Strict = Annotated[bool, Option("--strict", help="Exit with 1 if a number disagrees or none was computed.")]

# A server prints its start within some hundred kB; what it prints while it serves may be long.
_MOST_BYTES = 32 * 2**20


def command(
    log: Log,
    model: Model = None,
    gpu: Gpu = None,
    engine: Engine = None,
    settings: Set = None,
    strict: Strict = False,
    json: Json = False,
    output: Output = "table",
) -> None:
    """An engine's start-up log against the prediction, or why it did not start (also called why).

    Each printed number is computed again by the rules of the engine's version. Where the engine did not start, the
    reason is given, what took the memory, and one line of flags with which it would start, checked by the same rules.

    Example: kvcalc reconcile docs/examples/vllm-llama31-8b.log
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, emit

    shown = command_output(output, json=json)
    report = api.reconcile(_read(log), model=model, engine=engine, gpu=gpu, settings=settings or ())
    emit(report, shown)
    if strict and not (report.agrees and report.complete):
        raise Exit(1)


def _read(log: str) -> str:
    """Return the text of a file or of standard input, whatever bytes it holds."""
    import sys
    from pathlib import Path

    from kvcalc.core.errors import InputError
    from kvcalc.engines.logs import decoded
    from kvcalc.files import read_bytes, read_stream

    what = "the log of an engine's start"
    hint = "head -c 20000000 engine.log | kvcalc reconcile - takes its beginning"
    if log != "-":
        content = read_bytes(Path(log), max_bytes=_MOST_BYTES, what=what, hint=hint)
    elif sys.stdin is None:
        raise InputError("standard input is closed", hint="give the log as a file")
    else:
        content = read_stream(sys.stdin.buffer, max_bytes=_MOST_BYTES, what=what, where="standard input", hint=hint)
    return decoded(content)
