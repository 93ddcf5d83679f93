"""Demonstrations in a terminal: the result, its chart, and each step on demand, printed or animated.

The table module of a demonstration offers, beside ``parts(report)``, ``steps(report)``: the lines of each step, and
``picture(report, plain=...)``: its chart in characters.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from kvcalc.render.layout import Text
from kvcalc.render.tables import printed, table_module

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["animate", "lesson_text", "step_texts"]

# How long a frame stays, and all of them together at most.
_FRAME_S, _WHOLE_S = 0.4, 12.0
_ASCII = str.maketrans({"µ": "u", "…": "..."})


def lesson_text(report: Any, *, steps: bool = False, plain: bool = False) -> str:
    """Return a demonstration as text that ends with a newline.

    Args:
        report: the report of a demonstration.
        steps: whether each step is printed before the result.
        plain: neither colour nor any character beyond ASCII.
    """
    before = [*step_texts(report, plain=plain), ""] if steps else []
    module = table_module(report)
    result = printed([*module.parts(report), Text(), Text(module.picture(report, plain=plain))], plain=plain)
    return _plain("\n".join([*before, result]), plain=plain)


def step_texts(report: Any, *, plain: bool = False) -> list[str]:
    """Return the text of each step, without a newline at its end."""
    return [_plain("\n".join(lines), plain=plain) for lines in table_module(report).steps(report)]


def _plain(text: str, *, plain: bool) -> str:
    return text.translate(_ASCII).encode("ascii", "replace").decode() if plain else text


def animate(frames: Sequence[str]) -> None:
    """Show one frame after another in place, the last one staying; an interruption gives the terminal its cursor back.

    Where standard output is no terminal the frames are printed one below the other, at once.
    """
    if not sys.stdout.isatty():
        sys.stdout.write("".join(f"{frame}\n" for frame in frames))
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text as Frame

    pause = min(_FRAME_S, _WHOLE_S / max(1, len(frames)))
    with Live(console=Console(), auto_refresh=False, transient=False) as live:
        for frame in frames:
            live.update(Frame(frame), refresh=True)
            time.sleep(pause)
