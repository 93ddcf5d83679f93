"""Demonstrations in a terminal: the result, its chart, and each step on demand, printed or animated."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Protocol

from kvcalc.render.layout import Drawing, Text
from kvcalc.render.tables import printed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["Lesson", "animate", "lesson_text", "step_texts"]

# Time that a frame stays, and all of them together at most.
_FRAME_S, _WHOLE_S = 0.4, 12.0
_HIDE_CURSOR, _SHOW_CURSOR, _CLEAR = "\x1b[?25l", "\x1b[?25h", "\x1b[H\x1b[2J"


class Lesson(Protocol):
    """The report of a demonstration, which draws itself."""

    def parts(self) -> list[Part]:
        """Return the table."""

    def step_lines(self) -> list[list[str]]:
        """Return the lines of each step."""

    def picture(self, width: int, plain: bool) -> str:  # noqa: FBT001  as `Drawing` calls it
        """Return the chart in characters, for a terminal of that many columns."""

    def spec(self) -> Spec:
        """Return the chart as a Vega-Lite specification."""


def lesson_text(report: Lesson, *, steps: bool = False, plain: bool = False) -> str:
    """Return a demonstration as text that ends with a newline.

    Args:
        report: the report of a demonstration.
        steps: whether each step is printed before the result.
        plain: neither colour nor any character beyond ASCII.
    """
    before = [*step_texts(report, plain=plain), ""] if steps else []
    result = printed([*report.parts(), Text(), Drawing(report.picture)], plain=plain)
    return "\n".join([*before, result])


def step_texts(report: Lesson, *, plain: bool = False) -> list[str]:
    """Return the text of each step, without a newline at its end."""
    return [printed([Text(line) for line in lines], plain=plain).rstrip("\n") for lines in report.step_lines()]


def animate(frames: Sequence[str]) -> None:
    """Show one frame after another on a cleared screen; an interruption gives the terminal its cursor back.

    Where standard output is no terminal that can be cleared, the frames are printed one below the other, at once.
    """
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        sys.stdout.write("".join(f"{frame}\n" for frame in frames))
        return
    pause = min(_FRAME_S, _WHOLE_S / max(1, len(frames)))
    try:
        for frame in frames:
            sys.stdout.write(f"{_HIDE_CURSOR}{_CLEAR}{frame}\n")
            sys.stdout.flush()
            time.sleep(pause)
    finally:
        sys.stdout.write(_SHOW_CURSOR)
        sys.stdout.flush()
