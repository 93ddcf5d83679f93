"""Suggestions for an option that there is not: by meaning first (--ctx: --context), then by spelling."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from kvcalc.questions import QUESTIONS, question

__all__ = ["option_hint"]

_CLOSE = 0.7
_MAX_SHOWN = 3


def option_hint(written: str, command: Any, *, path: str) -> str:
    """Return the options that may be meant, else the commands that have it, else where the options are listed.

    Args:
        written: the option as it was written.
        command: the command that does not have it.
        path: the command's words: ``kvcalc size``.
    """
    word = written.partition("=")[0].lstrip("-").lower().replace("_", "-")
    found = _meant(word, command)
    if found:
        return f"did you mean {' or '.join(found)}?"
    owners = [name for name in QUESTIONS if f"--{word}" in _flags(name)]
    if owners:
        return f"--{word} is an option of {', '.join(owners)}"
    return f"{path} --help shows the options"


def _meant(word: str, command: Any) -> list[str]:
    """Return the options of a command that a word may mean, the likeliest first."""
    words: dict[str, str] = {}
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    for each in options:
        name = next((flag for flag in each.opts if flag.startswith("--")), each.opts[0])
        words |= {flag.lstrip("-"): flag if flag in each.secondary_opts else name
                  for flag in (*each.opts, *each.secondary_opts)}  # fmt: skip
    for each in options:
        name = next((flag for flag in each.opts if flag.startswith("--")), each.opts[0])
        words |= {meant: name for meant in getattr(each, "meant", ()) if meant not in words}
    if word in words:
        return [words[word]]
    close = get_close_matches(word, words, n=_MAX_SHOWN, cutoff=_CLOSE)
    longer = [each for each in words if len(word) > len("kv") and word in each.split("-")]
    return list(dict.fromkeys(words[each] for each in (*close, *longer)))[:_MAX_SHOWN]


def _flags(name: str) -> set[str]:
    return {flag for each in question(name).params.values() for flag in each.flags}
