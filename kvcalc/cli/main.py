"""``kvcalc``: which commands there are, and how errors leave the program.

The command line library is loaded when a command is run: the overview needs none of it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from kvcalc.cli.wrapping import entry, wrapped
from kvcalc.core.errors import KvcalcError

TYPE_CHECKING = False  # the library that has it takes longer to load than the overview to print
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ALIASES", "COMMANDS", "PANELS", "main", "overview"]

# Name and first line of help of each command, by panel. A command is a question, the function ``command`` of the module
# of its name, or the Typer ``app`` of a module with subcommands; a test holds these lines against the docstrings.
PANELS = {
    "Everyday": {
        "size": "Bytes of the KV cache per token, per sequence and in total, and of the weights.",
        "fit": "Does it fit: the memory budget, the largest batch and context, the fewest GPUs.",
        "decode": "Bound on decode: tokens/s, step time, and what limits it.",
        "prefill": "Bound on prefill: time to first token (TTFT), and what limits it.",
        "compare": "Models, accelerators, formats or whole deployments side by side.",
        "solve": "The inverse question: the batch, context, GPUs, bandwidth, price or acceptance that is left as ?.",
        "explore": "The calculator in the browser, with sliders; it needs no network.",
    },
    "Serving": {
        "plan": "From traffic, limits and prices to the deployment to rent, and the command that starts it.",
        "simulate": "Simulate a server under load: TTFT, TPOT, throughput, cache use, and the highest load.",
        "sweep": "One question at every point of a grid: models, accelerators, parallelism, batch, context, load.",
        "speculate": "Does speculative decoding pay: speed-up, break-even acceptance, best draft length and batch.",
    },
    "Why": {
        "reconcile": "A log or measured speed against the prediction, or why an engine did not start (also: why).",
        "roofline": "Roofline of an accelerator: ceilings and ridge points, with models placed under it.",
        "traffic": "Bytes read to generate tokens: weights at every step, a cache that grows.",
        "layers": "A pass by kinds of layers: bytes, FLOP, intensity and the place of each on the roofline.",
        "levers": "Every known way to shrink the KV cache: bytes held and read, and what each requires.",
        "demo": "Step-by-step demonstrations: the KV cache, speculation, paging, batching, drift.",
    },
    "Trust": {
        "check": "Assertions for CI from a YAML file, or whether a measured speed is possible.",
        "validate": "Predictions against published measurements: no measurement may beat its bound.",
        "calibrate": "A calibration from your own benchmark files, with its errors before and after.",
        "bench": "Measure this machine: bandwidth, matrix multiplication, attention, overheads. Needs PyTorch.",
        "crosscheck": "Predictions against a real decode loop on this machine. Needs PyTorch.",
    },
    "Catalogue": {
        "models": "List, show, import, lint and validate model profiles.",
        "gpus": "List, show and validate accelerator profiles.",
        "devices": "This machine's accelerators and memory, as its own tools tell them.",
        "completion": "Shell completion of commands, options, models and accelerators.",
    },
}
COMMANDS = {name: text for panel in PANELS.values() for name, text in panel.items()}

# Other names of commands.
ALIASES = {"why": "reconcile"}

_ABOUT = "Roofline and memory-capacity calculator for LLM inference."
_EXAMPLE = "Example: kvcalc size --model llama2-70b. Each command has --help and --json."
_WIDTH, _MIN_WIDTH = 80, 40
# Set, faults of kvcalc itself are shown with their tracebacks.
_DEBUG = "KVCALC_DEBUG"
_LIMITS = MemoryError | RecursionError | ArithmeticError | UnicodeError
_LONGEST_MESSAGE = 1200


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: 0 fine, 1 a check failed, 2 bad input, 130 interrupted; an error is one line and a hint.

    SIGTERM and SIGHUP interrupt as Ctrl-C does.
    """
    is_closed = sys.stdout is None
    _prepare_output()
    if is_closed:
        sys.exit(_closed(_complain("standard output is closed", "add >/dev/null where nobody reads it")))
    written = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = _run(written)
        sys.stdout.flush()
    except KvcalcError as error:
        code = _complain(_as_written(_named(error), written), error.hint)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # what reads us has seen enough; keep the interpreter from complaining when it closes the pipe
        sys.stdout = None
        code = 0
    except Exception as error:
        if os.environ.get(_DEBUG) and not isinstance(error, OSError | _LIMITS):
            raise
        code = _complain(*_told(error))
    sys.exit(_closed(code or 0))


def _named(error: KvcalcError) -> str:
    """Return an error's message, with the parameter it is about where the message does not name it."""
    message, parameter = error.message, error.parameter
    is_named = all(word in message.lower() for word in parameter.split("-"))
    return message if is_named else f"{parameter}: {message}"


def _as_written(message: str, arguments: Sequence[str]) -> str:
    """Return a message with an engine's option by the name that was written: --page-size, not block-size."""
    from kvcalc.engines.options import EngineOptions  # only where there is an error
    from kvcalc.questions import QUESTIONS, question

    name = ALIASES.get(arguments[0], arguments[0]) if arguments else ""
    flags = {argument.partition("=")[0] for argument in arguments}
    params = question(name).params if name in QUESTIONS else {}
    for each in (params[option] for option in params if option in EngineOptions.__dataclass_fields__):
        other = next((flag for flag in each.flags if flag in flags), "")
        if other.startswith("--") and "/" not in other:
            message = message.replace(each.name, other.lstrip("-"))
    return message


def _told(error: Exception) -> tuple[str, str]:
    """Describe an error and its remedy, of one that is not the user's mistake."""
    match error:
        case OSError():
            return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", ""
        case MemoryError():
            return "the memory of this machine does not suffice for this", "ask for less at once"
        case RecursionError():
            return "the input is nested too deeply", ""
        case ArithmeticError():
            return f"a number is too large or too small to compute with: {error}", ""
        case UnicodeError():
            return f"a name or text is not UTF-8: {error}", ""
    # a fault of kvcalc's own: exit code 1 would say that a check failed
    hint = f"{_DEBUG}=1 shows where; please report it with the command and its files"
    return f"a fault in kvcalc itself: {type(error).__name__}: {error}", hint


def _run(words: list[str]) -> int:
    if words in ([], ["--help"]):
        sys.stdout.write(overview())
        return 0
    if words == ["--version"]:
        from kvcalc.version import __version__

        sys.stdout.write(f"kvcalc {__version__}\n")
        return 0
    from kvcalc.cli.asking import ask_plainly
    from kvcalc.cli.signals import ended_by_signals

    with ended_by_signals():
        code = ask_plainly(words)
        if code is None:
            from kvcalc.cli.app import run

            code = run(words)
        return code


def overview() -> str:
    """Return the help of the whole: the commands and what each is for."""
    columns = os.environ.get("COLUMNS", "")
    width = max(_MIN_WIDTH, min(_WIDTH, int(columns))) if columns.isdigit() and int(columns) else _WIDTH
    options = {"--version": "Print the version.", "--help": "Show this message and exit."}
    names_width = max(map(len, COMMANDS))
    lines = ["Usage: kvcalc [OPTIONS] COMMAND [ARGS]...", "", *wrapped(_ABOUT, width - 2, "  ")]
    for title, rows in {**PANELS, "Options": options}.items():
        lines += ["", f"{title}:"]
        for name, text in rows.items():
            lines += entry(name, text, width, names_width=names_width)
    return "\n".join([*lines, "", *wrapped(_EXAMPLE, width - 2, "  "), ""])


def _prepare_output() -> None:
    """Make both outputs take whatever is printed: a closed one swallows it, a narrow one replaces characters."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115  as long as we live
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _complain(what: str, hint: str) -> int:
    with suppress(OSError, ValueError):  # nobody may be reading
        sys.stderr.write(f"error: {_one_line(what)}\n")
        if hint:
            sys.stderr.write(f"hint: {_one_line(hint)}\n")
        sys.stderr.flush()
    return 2


def _one_line(text: str) -> str:
    shown = text[: 2 * _LONGEST_MESSAGE].split()
    line = " ".join(shown)
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}…"


def _closed(code: int) -> int:
    """Return the exit code once both outputs are written out, so that the interpreter has nothing left to fail at."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except (AttributeError, OSError, ValueError):
            setattr(sys, name, None)
    return code
