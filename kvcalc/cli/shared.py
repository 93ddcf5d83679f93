"""Printing reports, charts, progress and notes, for every command."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.core.units import print_bytes_as, request_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kvcalc.core.reports.common import ExplainedStep

__all__ = [
    "check_charts",
    "command_output",
    "draw",
    "emit",
    "emit_blocks",
    "progress",
    "tell",
    "tell_origins",
    "tell_rates",
    "waiting",
]

# How often progress is shown, so that showing it takes no time.
_TELL_EVERY_S = 0.2
# How long an answer may take before a person is told that it is under way.
_WAIT_S = 2.0


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
    from kvcalc.questions.shown import with_origins
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


def check_charts(files: dict[str, str | None]) -> None:
    """Refuse charts that cannot be drawn or written, before any work.

    Raises:
        KvcalcError: a file that cannot be written, or nothing that draws.
    """
    if any(path is not None for path in files.values()):
        from kvcalc.files import check_writable
        from kvcalc.render.charts import require_drawing

        check_writable(files.values())
        require_drawing()


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
    from kvcalc.files import write_whole
    from kvcalc.render.charts import chart_spec

    spec = chart_spec(report)
    child: Child[tuple[dict[str, Any], str], bytes] = Child(_picture)
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
def waiting(what: str = "") -> Iterator[Callable[[int, int], None] | None]:
    """Show on standard error that something takes long, from `_WAIT_S` on; nothing where that is no terminal.

    Args:
        what: what is counted, where something is. The function is told how many are done, and of how many.
    """
    if not sys.stderr.isatty():
        yield None
        return
    ended, start, counted = threading.Event(), monotonic(), [0, 0]

    def told(done: int, of: int) -> None:
        counted[:] = done, of

    def show() -> None:
        while not ended.wait(max(_WAIT_S + start - monotonic(), _TELL_EVERY_S)):
            done, of = counted
            amount = f", {done:,}{f' of {of:,}' if of else ''} {what}" if done else ""
            sys.stderr.write(f"\r\x1b[K{monotonic() - start:.0f} s{amount}")
            sys.stderr.flush()

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    try:
        yield told
    finally:
        ended.set()
        shown.join()
        if monotonic() - start >= _WAIT_S:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@contextmanager
def tell_rates() -> Iterator[Callable[[float, bool], None] | None]:
    """Give a function that says on standard error which rate was tried; none where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return

    def tell(rate: float, limits_met: bool) -> None:
        sys.stderr.write(f"{request_rate(rate, '.4g')} {'holds' if limits_met else 'does not hold'}\n")

    yield tell


def tell(note: str) -> None:
    """Say on standard error what was taken for granted."""
    sys.stderr.write(f"note: {note}\n")
