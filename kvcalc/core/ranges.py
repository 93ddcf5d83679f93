"""Lists and ranges as users write them: ``1,8,32``, ``1-256*2``, ``1024-33792+1024``, ``4k``."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Sized

__all__ = ["MAX_ROWS", "check_between", "check_combinations", "parse_counts"]

# Rows that a report holds at once: seconds of work, and some hundred MB.
MAX_ROWS = 10_000
_MAX = 1_000_000
_LARGER = "kvcalc sweep computes larger grids, row by row"


def check_between(what: str, value: float, minimum: float, maximum: float) -> None:
    """Refuse a value outside a range.

    Raises:
        InputError: a value below the least or above the most, or none.

    >>> check_between("batch", 3, 1, 8)
    """
    if not minimum <= value <= maximum:
        raise InputError(f"{what} must be from {minimum:,} to {maximum:,}, not {value:,}", parameter=what)


def check_combinations(what: str, *axes: Sized, max_rows: int = MAX_ROWS, hint: str = _LARGER) -> None:
    """Refuse lists whose combinations are too many; they are counted, not made.

    Args:
        what: what is combined, for the message.
        axes: the lists.
        max_rows: combinations that are not too many.
        hint: what to do instead.

    Raises:
        InputError: too many.

    >>> check_combinations("rows of batch and context", range(100), range(100))
    """
    combinations = prod(map(len, axes))
    if combinations > max_rows:
        raise InputError(f"{combinations:,} {what}, more than {max_rows:,}", hint=hint)


def parse_counts(text: str, *, what: str) -> tuple[int, ...]:
    """Return the whole numbers of 1 or more that a list or range names, in order, each once.

    Args:
        text: numbers and ranges separated by commas; a range steps by 1 unless ``+step`` or ``*factor`` follows.
        what: the quantity, for messages.

    Raises:
        InputError: not such a list, or more than a million numbers.

    >>> parse_counts("1,8,32", what="batch"), parse_counts("1-256*2", what="batch")
    ((1, 8, 32), (1, 2, 4, 8, 16, 32, 64, 128, 256))
    >>> parse_counts("1024-3072+1024", what="context"), parse_counts("8k", what="context")
    ((1024, 2048, 3072), (8000,))
    """
    counts: dict[int, None] = {}
    named = 0
    for part in text.split(","):
        values = _expand(part.strip(), what)
        named += len(values)
        if named > _MAX:
            raise InputError(f"{what}: {text[:60]!r} names more than {_MAX:,} numbers")
        counts |= dict.fromkeys(values)
    return tuple(counts)


def _expand(part: str, what: str) -> tuple[int, ...] | range:
    first, dash, rest = part.partition("-")
    if not first and dash:
        raise InputError(f"{what} must be 1 or more, not {part!r}")
    if not dash:
        return (_count(part, what),)
    start = _count(first, what)
    for sign in "*+":
        last, separator, step = rest.partition(sign)
        if separator:
            return _stepped(start, _count(last, what), sign, step, what)
    if not rest:
        raise InputError(f"{what}: the range {part!r} has no end", hint="for example 1-256*2")
    end = _count(rest, what)
    if end < start:
        raise InputError(f"{what}: the range {part!r} ends before it starts")
    return range(start, end + 1)


def _stepped(start: int, end: int, sign: str, step: str, what: str) -> tuple[int, ...] | range:
    if end < start:
        raise InputError(f"{what}: a range cannot end before it starts: {start}-{end}")
    size = _count(step, what)
    if sign == "+":
        return range(start, end + 1, size)
    if size == 1:
        raise InputError(f"{what}: a range must grow: *{step}", hint="for example 1-256*2")
    values = [start]
    while values[-1] * size <= end:
        values.append(values[-1] * size)
    return tuple(values)


def _count(text: str, what: str) -> int:
    try:
        value = parse_count(text)
    except InputError as error:
        raise InputError(f"{what}: {error.what}", hint="for example 4096, 8k, 1,8,32 or 1-256*2") from None
    if not 1 <= value <= 10**9:
        raise InputError(f"{what} must be from 1 to 1,000,000,000, not {text}")
    return value
