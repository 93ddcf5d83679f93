"""Answers where the page's own browser computes them: what a server does with an address, without the server."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from kvcalc.explore.answers import NAMES, REFUSED, Asked, Reply, mistake, reply_to
from kvcalc.explore.carried import NEED_NUMPY

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["answered"]

_MAX_FIELDS = 64


def answered(name: str, query: str, text: str = "", tell: Callable[[str], object] | None = None) -> tuple[int, str]:
    """Answer a question of the page, as a server answers the same address.

    Args:
        name: the address below ``/api``.
        query: what stands behind its question mark.
        text: a pasted config or log; empty for none.
        tell: is told JSON of what is known before the answer.

    Returns:
        The status of HTTP, and JSON.
    """
    reply = _reply(name, query, text, tell)
    return reply.status, reply.body.decode()


def _reply(name: str, query: str, text: str, tell: Callable[[str], object] | None) -> Reply:
    if name not in NAMES:
        return Reply(404, mistake("nothing can be asked for here"))
    if name in NEED_NUMPY and find_spec("numpy") is None:
        what = "this page carries this demonstration with one control changed at a time"
        return Reply(REFUSED, mistake(what, f"kvcalc {name.replace('/', ' ')} on the command line takes any values"))
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError:
        return Reply(REFUSED, mistake("the question is not UTF-8, or has too many fields"))
    asked = Asked(name, tuple(fields), text or None, live=tell is not None)
    return reply_to(asked, None if tell is None else lambda line: tell(line.decode()))
