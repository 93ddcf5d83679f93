"""Demonstrations that a page without NumPy carries as answers: one control changed at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from kvcalc.explore.answers import OK, Asked, reply_to

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NEED_NUMPY", "carried_demos"]

NEED_NUMPY = ("demo/kv-cache", "demo/speculate", "demo/drift")
# As the page's controls have them: where each begins, and its steps.
_START = {"prompt": 3, "output-tokens": 16, "gamma": 4, "seed": 0}
_STEPS = {
    "prompt": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "output-tokens": (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64),
    "gamma": tuple(range(1, 9)),
    "seed": (0, 1),
}
_FIELDS = {
    "demo/kv-cache": ("prompt", "output-tokens", "seed"),
    "demo/speculate": ("prompt", "output-tokens", "gamma", "seed"),
    "demo/drift": ("seed",),
}


@lru_cache(maxsize=1)
def carried_demos() -> bytes:
    """Return a JSON object of answers by the addresses that the page asks for: ``demo/drift?seed=0``."""
    answers = ((address, reply_to(asked)) for address, asked in _asked())
    pairs = ",".join(f'"{address}":{reply.body.decode()}' for address, reply in answers if reply.status == OK)
    return f"{{{pairs}}}".encode()


def _asked() -> Iterator[tuple[str, Asked]]:
    for name, fields in _FIELDS.items():
        start = {field: _START[field] for field in fields}
        settings = [start, *(start | {field: value} for field in fields for value in _STEPS[field])]
        for setting in dict.fromkeys(tuple(each.items()) for each in settings):
            given = tuple((field, str(value)) for field, value in setting)
            yield f"{name}?{urlencode(given)}", Asked(name, given)
