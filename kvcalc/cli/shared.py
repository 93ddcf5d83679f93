"""What every command does: read lists, print the report."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from math import isfinite, nan
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.core.ranges import parse_counts
from kvcalc.core.units import parse_bytes, print_bytes_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.common import ExplainedStep
    from kvcalc.plan.deployment import Deployment

__all__ = [
    "command_output",
    "count_from_zero",
    "counts",
    "draw",
    "emit",
    "emit_blocks",
    "engine_given",
    "explain_first",
    "memory",
    "number",
    "numbers",
    "one_count",
    "progress",
    "required",
    "served",
    "share",
    "tell",
    "tell_gpu",
    "tell_origins",
    "tell_rates",
    "whole_numbers",
    "with_draft",
    "words",
]

# How often progress is shown, so that showing it takes no time.
_TELL_EVERY_S = 0.2


def counts(text: str | None, what: str) -> tuple[int, ...] | None:
    """Return the numbers of a list option, or none where it was not given."""
    return None if text is None else parse_counts(text, what=what)


def words(text: str | None, what: str) -> tuple[str, ...] | None:
    """Return the names of a list option, or none where it was not given.

    Raises:
        InputError: an empty name.
    """
    if text is None:
        return None
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(found):
        raise InputError(f"{what}: {text!r} has an empty name", hint="names are separated by single commas")
    return found


def numbers(text: str | None, what: str) -> tuple[float, ...] | None:
    """Return the numbers of a list option whose numbers need not be whole, or none where it was not given.

    Raises:
        InputError: not numbers.
    """
    names = words(text, what)
    try:
        found = None if names is None else tuple(dict.fromkeys(map(float, names)))
    except ValueError:
        found = (nan,)
    if not all(map(isfinite, found or ())):
        raise InputError(f"{what}: {text!r} is not a list of numbers", hint="for example 1,2.5,4")
    return found


def whole_numbers(text: str | None, what: str) -> tuple[int, ...] | None:
    """Return the whole numbers of a list option, each once, or none where it was not given; they may be 0 or below.

    Raises:
        InputError: not whole numbers.
    """
    names = words(text, what)
    try:
        return None if names is None else tuple(dict.fromkeys(map(int, names)))
    except ValueError:
        raise InputError(f"{what}: {text!r} is not a list of whole numbers", hint="for example 0,1,2") from None


def one_count(text: str | None, what: str) -> int | None:
    """Return the number of an option that takes one.

    Raises:
        InputError: a list.
    """
    found = counts(text, what)
    if found is not None and len(found) > 1:
        raise InputError(
            f"{what} takes one number here, not {len(found)}", hint="decode, prefill and roofline take lists"
        )
    return None if found is None else found[0]


def count_from_zero(text: str, what: str) -> int:
    """Return the number of an option that takes one, which may be zero.

    Raises:
        InputError: a list, or a number below zero.
    """
    stripped = text.strip()
    if stripped.startswith("-"):
        raise InputError(f"{what} must be 0 or more, not {text!r}")
    return one_count(text, what) or 0 if stripped.strip("0") or not stripped else 0


def command_output(output: str, *, json: bool) -> str:
    """Return the output format that the two options ask for.

    Raises:
        InputError: they contradict each other, or there is no such format.
    """
    from kvcalc.render.output import check_output

    if json and output not in ("table", "json"):
        raise InputError(f"--json and --output {output} contradict each other")
    shown = "json" if json else check_output(output)
    if shown != "table":
        print_bytes_as("iec")  # --units is for readers: what programs read stays the same
    return shown


def emit(report: Any, output: str, explained: Callable[[], Sequence[ExplainedStep]] | None = None) -> None:
    """Print a report to standard output, with where its profiles came from."""
    from kvcalc.api.shown import with_origins
    from kvcalc.render.output import render

    steps = explained() if explained else ()
    report, source, notes = with_origins(report)
    if output not in ("table", "json") or not hasattr(report, "notes"):
        _tell_all(notes)
    sys.stdout.write(render(report, output, explained=steps, source=source))


def tell_origins() -> None:
    """Say on standard error of each profile that stands in for one of kvcalc's own where it was read."""
    from kvcalc.profiles.origins import noted_origins, origin_notes

    _tell_all(origin_notes(noted_origins() or ()))


def _tell_all(notes: Iterable[str]) -> None:
    for note in notes:
        tell(note)


def draw(report: Any, files: dict[str, str | None]) -> None:
    """Write a report's chart to the files that were asked for, and say so on standard error.

    Args:
        report: a report that has a chart.
        files: for ``svg``, ``png`` and ``html`` the file, or none.

    Raises:
        InputError: a file whose ending says another kind.
        KvcalcError: a chart that cannot be drawn.
        OSError: a file that cannot be written.
    """
    wanted = {kind: path for kind, path in files.items() if path is not None}
    if not wanted:
        return
    from kvcalc.child import Child, ChildEndedError
    from kvcalc.render.charts import chart_spec
    from kvcalc.render.files import write_whole

    spec = chart_spec(report)
    child = Child(_picture)
    try:
        for kind, path in wanted.items():
            write_whole(path, child.ask((spec, kind)))
            sys.stderr.write(f"chart: {path}\n")
    except ChildEndedError:
        hint = "a limit on address space (ulimit -v) must leave it 64 GiB"
        raise KvcalcError("the process that draws charts has ended", hint=hint) from None
    finally:
        child.kill()


def _picture(asked: tuple[Any, str]) -> bytes:
    """Return a chart's file, in a process of its own; what the JavaScript engine prints as it ends goes nowhere."""
    from kvcalc.render.charts import picture

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return picture(*asked)


def emit_blocks(blocks: Iterable[Mapping[str, Sequence[Any]]], output: str) -> None:
    """Print rows that come in blocks of columns, as CSV or JSON lines, while the next ones are computed."""
    from kvcalc.render.rows import streamed

    tell_origins()
    for text in streamed(blocks, output):
        sys.stdout.write(text)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Give a function that shows how far something is on standard error; none where that is no terminal.

    Args:
        what: what is counted. The function is told how many there are, and of how many; 0 where that is not known.
    """
    if not sys.stderr.isatty():
        yield None
        return
    last = 0.0

    def tell(done: int, of: int) -> None:
        nonlocal last
        now = monotonic()
        if now - last >= _TELL_EVERY_S:
            last = now
            sys.stderr.write(f"\r\x1b[K{done:,}{f' of {of:,}' if of else ''} {what}")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if last:
            sys.stderr.write("\r\x1b[K")


@contextmanager
def tell_rates() -> Iterator[Callable[[float, bool], None] | None]:
    """Give a function that says on standard error which rate was tried; none where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return

    def tell(rate: float, held: bool) -> None:
        sys.stderr.write(f"{rate:.4g} requests/s {'holds' if held else 'does not hold'}\n")

    yield tell


def required(text: str | None, name: str, hint: str) -> str:
    """Return the value of an option that must be given.

    Raises:
        InputError: it is not.
    """
    if text is None:
        raise InputError(f"--{name} is missing", hint=hint)
    return text


def explain_first(
    report: Literal["decode", "prefill"],
    deployment: Deployment,
    batches: Sequence[int],
    lengths: Sequence[int] | None,
    calibration: str | None,
) -> Callable[[], Sequence[ExplainedStep]]:
    """Return a function that explains a report's first row, and its estimate where it has one."""
    from kvcalc import api

    context = lengths[0] if lengths else None
    return lambda: api.explain(report, deployment, context=context, batch=batches[0], calibration=calibration)


_COUNTS = ("max_model_len", "max_num_batched_tokens")


def engine_given(given: dict[str, Any]) -> dict[str, Any]:
    """Return the engine's options that were given, counts read.

    Raises:
        InputError: no count.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    counted = {name: one_count(asked[name], name.replace("_", "-")) for name in _COUNTS if name in asked}
    if "ctx_size" in asked:
        counted["ctx_size"] = count_from_zero(asked["ctx_size"], "ctx-size")
    return asked | counted


def served(deployment: Deployment, engine: str | None, given: dict[str, Any]) -> Deployment:
    """Return a deployment as an engine with the options that were given runs it.

    Raises:
        InputError: an option that the engine does not have.
    """
    from kvcalc import api

    return api.served(deployment, engine, engine_given(given))


def with_draft(deployment: Deployment, given: dict[str, Any], kv_dtype: str | None) -> Deployment:
    """Return a deployment with the draft of the options in its memory; as it is where none is asked for.

    Raises:
        InputError: options of a draft without what drafts, or without its length.
    """
    from kvcalc import api

    asked = {name: value for name, value in given.items() if value is not None}
    if not asked:
        return deployment
    draft, gamma = asked.get("draft"), asked.get("gamma")
    if draft is None and "method" not in asked:
        raise InputError(
            f"--{next(iter(asked)).replace('_', '-')} is of a draft", hint="give --draft MODEL or --method, as mtp"
        )
    if gamma is None:
        raise InputError("how many tokens are drafted is missing", hint="give --gamma 4")
    if draft is not None:
        draft = api.draft_deployment(
            deployment,
            draft,
            weights=asked.get("draft_weights"),
            kv_dtype=kv_dtype,
            tensor_parallel=asked.get("draft_tp"),
        )
    elif "draft_weights" in asked or "draft_tp" in asked:
        raise InputError("--draft-weights and --draft-tp are of a draft model", hint="give --draft, or leave them out")
    return api.with_draft(
        deployment, draft, gamma=gamma, method=asked.get("method"), draft_layers=asked.get("draft_layers")
    )


def memory(text: str | None) -> int | None:
    """Return the bytes of an option such as ``23.45GiB``, or none where it was not given.

    Raises:
        InputError: not an amount of memory.
    """
    return None if text is None else parse_bytes(text)


def number(text: str | None, what: str) -> float | None:
    """Return the number of an option, or none where it was not given.

    Raises:
        InputError: not a finite number.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise InputError(f"{what} must be a number, not {text!r}")
    return value


def share(text: str, what: str) -> float:
    """Return a share of one, written as ``0.01`` or ``1%``.

    Raises:
        InputError: not a share from 0 to 1.
    """
    percent = text.strip().endswith("%")
    value = number(text.strip().removesuffix("%"), what) or 0.0
    value = value / 100 if percent else value
    if not 0 <= value <= 1:
        raise InputError(f"{what} must be from 0 to 1 (or 100%), not {text}")
    return value


def tell_gpu(asked: str, hardware: HardwareProfile | None) -> None:
    """Say on standard error which accelerator an alias meant."""
    if hardware is None or asked.lower().endswith((".yaml", ".yml")):
        return
    if asked.strip().lower() != hardware.name:
        tell(f"{asked} means {hardware.name}: {hardware.title}")


def tell(note: str) -> None:
    """Say on standard error what was taken for granted."""
    sys.stderr.write(f"note: {note}\n")
