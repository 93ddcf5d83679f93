"""Tables for a terminal: what reports print, and the pieces that their tables are made of."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from kvcalc.core.figures import figures_of
from kvcalc.core.units import (
    bytes_text,
    count_text,
    flop_rate_text,
    flop_text,
    number_text,
    rate_text,
    seconds_text,
    usd_text,
)
from kvcalc.render.layout import Column, Grid, Text, laid_out
from kvcalc.render.reports import shown_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvcalc.core.reports.common import ExplainedStep, RunFormats
    from kvcalc.render.layout import Part

__all__ = [
    "differs",
    "engine_text",
    "expected_text",
    "facts",
    "figure_grid",
    "figure_text",
    "formats_text",
    "gpus_text",
    "grid",
    "heading",
    "memory_text",
    "misfit_text",
    "note_lines",
    "plain_text",
    "printed",
    "table_parts",
    "table_text",
    "takes_unicode",
]

_WIDTH, _MIN_WIDTH = 110, 60
# How a figure is printed, by the end of its name; the first that matches counts.
_TEXTS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_bytes_per_s", rate_text),
    ("flop_per_s", flop_rate_text),
    ("_bytes", bytes_text),
    ("bytes_per_token", bytes_text),
    ("bytes_per_sequence", bytes_text),
    ("parameters", count_text),
    ("tokens_per_s", number_text),
    ("_s", seconds_text),
    ("_usd", usd_text),
    ("usd_per_million_tokens", usd_text),
)

# Share of the parameters that dense models multiply each token with, at least.
_DENSE_SHARE = 0.8
_WORDS = ("limiter", "fits", "reason")


def table_text(report: Any, explained: Sequence[ExplainedStep] = ()) -> str:
    """Return a report as the text of tables, coloured where standard output is a terminal that takes colour."""
    return printed([*table_parts(report), *_explained(explained)])


def table_parts(report: Any) -> list[Part]:
    """Return a report as the parts of its table, from top to bottom: its answer in one sentence first."""
    parts, sentence = shown_by(report, "parts"), shown_by(report, "sentence")
    assert parts is not None, report.schema
    made: list[Part] = parts()
    if sentence is None:
        return made
    text: str = sentence()
    bad, good = text.startswith(("DOES NOT", "NO ")), text.startswith(("FITS", "PAYS:"))
    first = Text(text, style="bold red" if bad else "bold green" if good else "bold")
    return [first, Text(), *made] if made else [first]


def printed(parts: Sequence[Part], *, plain: bool = False) -> str:
    """Lay parts out as text that ends with a newline; ``plain`` never has colour."""
    is_terminal = sys.stdout.isatty()
    columns = os.environ.get("COLUMNS", "")
    is_told = columns.isdigit() and int(columns) > 0
    width = int(columns) if is_told else _terminal_width() if is_terminal else _WIDTH
    coloured = is_terminal and not plain and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    ascii_only = plain or not takes_unicode()
    wraps = is_terminal or is_told  # a file that is searched line by line keeps its lines
    return laid_out(parts, width=max(_MIN_WIDTH, width), styled=coloured, ascii_only=ascii_only, wraps=wraps)


def _terminal_width() -> int:
    import shutil  # what is printed to a pipe does without

    return shutil.get_terminal_size((_WIDTH, 24)).columns


def takes_unicode() -> bool:
    """Return whether standard output shows more than ASCII, by its encoding, the locale and the kind of terminal."""
    locale = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") if (value := os.environ.get(name))), "")
    if os.environ.get("TERM") == "dumb" or locale in ("C", "POSIX"):
        return False
    try:
        "█".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (LookupError, UnicodeError):
        return False
    return True


def _explained(steps: Sequence[ExplainedStep]) -> list[Part]:
    if not steps:
        return []
    shown: list[Part] = [Text(), Text("How each number comes about", style="bold")]
    last: tuple[str, ...] = ()
    for step in steps:
        shown.append(Text(f"{step.quantity} = {step.formula}"))
        shown.append(Text(f"    = {step.expression}"))
        value = seconds_text(step.value) if step.unit == "s" else f"{number_text(step.value)} {step.unit}"
        shown.append(Text(f"    = {value}"))
        # a source is printed where it changes, not under each of twenty steps
        shown += [Text(f"    source: {source}", style="dim") for source in step.sources if step.sources != last]
        last = step.sources or last
    return shown


def figure_text(name: str, value: Any, digits: int | None = None) -> str:
    """Return a figure as tables print it, by the unit that its name ends in.

    >>> figure_text("kv_read_bytes", 2**30), figure_text("ideal_s", 0.01), figure_text("speedup", 1.25, digits=3)
    ('1.00 GiB', '10.00 ms', '1.250')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if digits is not None:
        return f"{value:.{digits}f}"
    if name == "flop":
        return flop_text(value)
    return next((text for end, text in _TEXTS if name.endswith(end)), number_text)(value)


def differs(part: float, whole: float) -> bool:
    """Return whether active parameters are worth a word: a dense model only looks one row of its embedding up."""
    return part < _DENSE_SHARE * whole


def figure_grid(
    rows: Sequence[Any], names: Sequence[str], *, left: int = 0, shown: Callable[[Any, str, str], str] | None = None
) -> Grid:
    """Return a table of the figures that rows declare (`kvcalc.core.figures`), a column for each name.

    Args:
        rows: rows of one report.
        names: their fields, in the order of the columns.
        left: how many columns stand left.
        shown: returns what a cell shows in place of a text, from the row, the field's name and the text.
    """
    kind: Any = type(rows[0]) if rows else None
    figures = figures_of(kind) if rows else {}

    def cell(row: Any, name: str) -> str:
        text = figure_text(name, getattr(row, name), figures[name].digits if name in figures else None)
        return text if shown is None else shown(row, name, text)

    columns = [figures[name].column if name in figures else name for name in names]
    ranks = {figures[name].column: figures[name].rank for name in names if name in figures}
    return grid(columns, [[cell(row, name) for name in names] for row in rows], left=left, ranks=ranks)


def grid(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, ranks: Mapping[str, int] | None = None
) -> Grid:
    """Return a table whose first ``left`` columns, and those of words by name, stand left and numbers right.

    Args:
        columns: their names.
        rows: a text for each column.
        left: how many columns stand left.
        ranks: of columns by name, when they are left out where the table is too wide: the highest first.
    """
    named = [
        Column(
            name=name, justify="left" if index < left or name in _WORDS else "right", rank=(ranks or {}).get(name, 0)
        )
        for index, name in enumerate(columns)
    ]
    return Grid(named, [list(row) for row in rows])


def heading(text: str) -> Text:
    """Return a line in bold."""
    return Text(text, style="bold")


def facts(rows: Iterable[tuple[str, ...]]) -> Grid:
    """Return lines of a name, a value and a remark."""
    columns = [Column(style="dim", wraps=False), Column(wraps=False), Column(style="dim")]
    return Grid(columns, [[*row, "", ""][:3] for row in rows], header=False)


def note_lines(notes: Sequence[str]) -> list[Part]:
    """Return the notes of a report, one a line."""
    return [Text(f"note: {note}", style="dim") for note in notes]


def memory_text(memory_bytes: int, *, gpu: str, gpus: int) -> str:
    """Return the memory of an accelerator: ``79.65 GiB of one h100-sxm``."""
    return f"{bytes_text(memory_bytes)} of {'each' if gpus > 1 else 'one'} {gpu}"


def misfit_text(over: Sequence[int], *, rows: int, available_bytes: int, memory: str, gpus: int, reason: str) -> str:
    """Return the warning of speeds that are hypothetical, since their batch does not fit; nothing where all fits.

    Args:
        over: bytes of weights and cache on the fullest accelerator, of each row that does not fit.
        rows: how many rows there are.
        available_bytes: memory of one accelerator.
        memory: the same, as `memory_text` says it.
        gpus: accelerators.
        reason: why the first of them does not fit under which engine.
    """
    if not over:
        return ""
    need = bytes_text(min(over)) + (" per GPU" if gpus > 1 else "")
    if min(over) <= available_bytes:
        which = "" if rows == 1 else f"{len(over)} of {rows} rows: "
        needs = f"DOES NOT FIT: {which}{reason} (weights and KV cache: {need} of the {memory})."
    else:
        which = f"this needs {need}" if rows == 1 else f"{len(over)} of {rows} rows need {need} or more"
        needs = f"DOES NOT FIT: {which}, more than the {memory}."
    return f"{needs} Speeds marked * are hypothetical."


class _Placed(Protocol):
    @property
    def gpu(self) -> str: ...

    @property
    def gpus(self) -> int: ...


def formats_text(formats: RunFormats) -> str:
    """Return the formats a report was computed with."""
    return f"weights {formats.weights}, KV {formats.kv}, activations {formats.activations}"


def engine_text(engine: str) -> str:
    """Return an engine and its version as people name them: ``llama.cpp (Nov 2026, 0c1e570)``."""
    if not engine.startswith("llama.cpp "):
        return engine
    from kvcalc.engines.llama_cpp.options import VERSION, VERSION_MONTH

    return engine.replace(VERSION, f"({VERSION_MONTH}, {VERSION[:7]})")


def gpus_text(report: _Placed) -> str:
    """Name the accelerators of a report's model: ``h100-sxm``, or ``2 x h100-sxm``."""
    return f"{report.gpus} x {report.gpu}" if report.gpus > 1 else report.gpu


def plain_text(value: Any) -> str:
    """Return a figure of any report: a number, a word, true or false as files of checks write them, or ``-``.

    >>> plain_text(131072), plain_text(True), plain_text(None), plain_text(["memory", "compute"])
    ('131,072', 'true', '-', 'memory or compute')
    """
    if isinstance(value, list):
        return " or ".join(plain_text(each) for each in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return number_text(value)


def expected_text(expected: Any) -> str:
    """Return a check's expectation of a figure, in the words of its file; nothing where it has none.

    >>> expected_text({"min": 30, "max": "4e1"}), expected_text(True), expected_text(None)
    ('min 30, max 4e1', 'true', '')
    """
    if isinstance(expected, dict):
        return ", ".join(f"{key} {plain_text(value)}" for key, value in expected.items())
    return "" if expected is None else plain_text(expected)
