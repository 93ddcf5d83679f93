"""What became of a config's keys, as a table or JSON."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["lint_text"]

_WIDEST = 60


def lint_text(uses: Sequence[Any], *, json: bool) -> str:
    """Return keys with their value, use and reason; keys that decide nothing are only counted in the table."""
    if json:
        keys = [{"key": use.key, "use": use.use, "value": use.value, "why": use.why} for use in uses]
        return json_module.dumps({"schema": "kvcalc.lint/1", "keys": keys}, indent=2) + "\n"
    shown = [use for use in uses if use.use != "ignored" or "relevant" in use.why]
    width = max((len(use.key) for use in shown), default=0)
    lines = [f"{use.use:<10} {use.key:<{width}}  {_short(use.value)}{_why(use.why)}" for use in shown]
    lines.append(f"{len(uses) - len(shown)} further keys decide neither memory nor compute")
    return "\n".join(lines) + "\n"


def _short(value: Any) -> str:
    text = json_module.dumps(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _why(why: str) -> str:
    return f"   ({why})" if why else ""
