"""Read what users write for an option: one rule for counts, lists, sizes and names, wherever they write it.

A reader takes a value as it was given (the text of a command line or a URL, a scalar of a YAML file, a Python object)
and the option's name, and returns the value in base units. Text and Python values follow the same rule:

>>> counts("1-8*2", "batch"), counts([1, 2, 4, 8], "batch"), count(8, "batch")
((1, 2, 4, 8), (1, 2, 4, 8), 8)
"""

from __future__ import annotations

from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.ranges import parse_counts
from kvcalc.core.units import parse_bytes, parse_rate, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    Reader = Callable[[Any, str], Any]

__all__ = [
    "AUTO",
    "UNKNOWN",
    "count",
    "count_from_zero",
    "counts",
    "counts_each",
    "duration",
    "flag",
    "is_number",
    "memory",
    "names",
    "names_each",
    "number",
    "numbers",
    "rate",
    "share",
    "text",
    "text_unless_auto",
    "texts",
    "unknown_or",
    "whole",
    "whole_numbers",
]

# What stands for the quantity that is asked for.
UNKNOWN = "?"
# What vLLM calls the format that it chooses itself.
AUTO = "auto"
_MAX_SHOWN = 60


def text(given: Any, what: str) -> Any:
    """Return a text as it is; a profile in place of its name passes through.

    Raises:
        InputError: a list, a mapping or a truth value.
    """
    if isinstance(given, bool | list | tuple | set | dict):
        raise InputError(f"{what} takes one text, not {_shown(given)}")
    return str(given) if isinstance(given, int | float) and not isinstance(given, bool) else given


def text_unless_auto(given: Any, what: str) -> Any:
    """Return a text as it is; none for ``auto``, which is what leaving the option out means.

    Raises:
        InputError: as `text`.
    """
    return None if given == AUTO else text(given, what)


def texts(given: Any, what: str) -> tuple[str, ...]:
    """Return the texts of an option that may be given several times."""
    del what
    return tuple(map(str, given)) if isinstance(given, list | tuple) else (str(given),)


def counts(given: Any, what: str) -> tuple[int, ...]:
    """Return whole numbers of 1 or more, in order, each once: ``1,8,32``, ``1-256*2``, ``8k`` or a list of numbers.

    Raises:
        InputError: not such a list.
    """
    return parse_counts(_written(given, what), what=what)


def count(given: Any, what: str) -> int:
    """Return one whole number of 1 or more.

    Raises:
        InputError: a list, or no such number.
    """
    read = counts(given, what)
    if len(read) > 1:
        hint = "decode, prefill and roofline take lists"
        raise InputError(f"{what} takes one number here, not {len(read):,}", hint=hint)
    return read[0]


def count_from_zero(given: Any, what: str) -> int:
    """Return one whole number of 0 or more.

    Raises:
        InputError: a list, or a number below zero.
    """
    written = _written(given, what).strip()
    if written.startswith("-"):
        raise InputError(f"{what} must be 0 or more, not {written!r}")
    return 0 if written and not written.strip("0") else count(written, what)


def counts_each(given: Any, what: str) -> tuple[int, ...]:
    """Return whole numbers of 1 or more, equal ones too.

    Raises:
        InputError: not such a list.
    """
    return tuple(count(part, what) for part in _written(given, what).split(","))


def whole(given: Any, what: str) -> int:
    """Return one whole number of any sign.

    Raises:
        InputError: no whole number.
    """
    try:
        value = int(given) if isinstance(given, str) else given
        if value == int(value) and not isinstance(value, bool):
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{what} takes a whole number, not {_shown(given)}", hint="for example 2")


def whole_numbers(given: Any, what: str) -> tuple[int, ...]:
    """Return whole numbers of any sign, each once.

    Raises:
        InputError: not such a list.
    """
    try:
        return tuple(dict.fromkeys(map(int, names(given, what))))
    except ValueError:
        raise InputError(f"{what}: {_shown(given)} is not a list of whole numbers", hint="for example 0,1,2") from None


def number(given: Any, what: str) -> float:
    """Return one finite number.

    Raises:
        InputError: no such number.
    """
    try:
        value = nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        value = nan
    if not isfinite(value):
        raise InputError(f"{what} must be a number, not {_shown(given)}", hint=_share_hint(given))
    return value


def _share_hint(given: Any) -> str:
    """Return the share that a percentage is, where one was written.

    >>> _share_hint("90%"), _share_hint("ninety")
    ('for a share write 0.9', '')
    """
    text = given.strip() if isinstance(given, str) else ""
    digits = text.removesuffix("%").strip()
    is_percentage = text.endswith("%") and digits.replace(".", "", 1).isdecimal()
    return f"for a share write {float(digits) / 100:g}" if is_percentage else ""


def numbers(given: Any, what: str) -> tuple[float, ...]:
    """Return finite numbers, each once.

    Raises:
        InputError: not such a list.
    """
    try:
        read = tuple(dict.fromkeys(map(float, names(given, what))))
    except ValueError:
        read = (nan,)
    if not all(map(isfinite, read)):
        raise InputError(f"{what}: {_shown(given)} is not a list of numbers", hint="for example 1,2.5,4")
    return read


def share(given: Any, what: str) -> float:
    """Return a share of one, written as ``0.01`` or ``1%``.

    Raises:
        InputError: not a share from 0 to 1.
    """
    written = _written(given, what).strip()
    value = number(written.removesuffix("%"), what)
    value = value / 100 if written.endswith("%") else value
    if not 0 <= value <= 1:
        raise InputError(f"{what} must be from 0 to 1 (or 100%), not {written}")
    return value


def names(given: Any, what: str, *, each_once: bool = True) -> tuple[str, ...]:
    """Return the names of a list separated by commas.

    Raises:
        InputError: an empty name.

    >>> names("bf16, fp8", "kv-dtype")
    ('bf16', 'fp8')
    """
    written = _written(given, what)
    read = [name.strip() for name in written.split(",")]
    if not all(read):
        raise InputError(f"{what}: {_shown(written)} has an empty name", hint="names are separated by single commas")
    return tuple(dict.fromkeys(read) if each_once else read)


def names_each(given: Any, what: str) -> tuple[Any, ...]:
    """Return the names of an option that may be given several times, each time with a list; profiles pass through.

    Raises:
        InputError: an empty name.
    """
    each_given = given if isinstance(given, list | tuple) else (given,)
    read = (names(each, what, each_once=False) if isinstance(each, str) else (each,) for each in each_given)
    return tuple(name for each in read for name in each)


def flag(given: Any, what: str) -> bool:
    """Return true or false.

    Raises:
        InputError: neither.
    """
    if given in ("true", "false"):
        return bool(given == "true")
    if not isinstance(given, bool):
        raise InputError(f"{what} is true or false, not {_shown(given)}")
    return given


def memory(given: Any, what: str) -> int:
    """Return bytes, written with their unit as ``23.45GiB``; a number of Python is in bytes.

    Raises:
        InputError: not an amount of memory.
    """
    size = given if isinstance(given, int) and not isinstance(given, bool) else parse_bytes(_written(given, what))
    if size < 0:
        raise InputError(f"{what} must be 0 or more bytes, not {size:,}")
    return size


def rate(given: Any, what: str) -> float:
    """Return bytes (or FLOP) a second, written as ``3.35TB/s``; a number of Python is in that unit.

    Raises:
        InputError: not a rate, or a text without a unit.
    """
    if is_number(given):
        return float(given)
    written = _written(given, what)
    if _is_bare(written):
        raise InputError(f"{written.strip()[:40]!r} has no unit", hint="a rate as 80GB/s", parameter=what)
    return parse_rate(written)


def _is_bare(written: str) -> bool:
    """Say whether a text is a number alone."""
    try:
        float(written)
    except ValueError:
        return False
    return True


def duration(given: Any, what: str) -> float:
    """Return seconds, written as ``500ms``; a number of Python is in seconds.

    Raises:
        InputError: not a duration.
    """
    return float(given) if is_number(given) else parse_seconds(_written(given, what))


def unknown_or(read: Reader) -> Reader:
    """Return a reader that lets `UNKNOWN` stand for the quantity that is asked for."""

    def reader(given: Any, what: str) -> Any:
        return UNKNOWN if isinstance(given, str) and given.strip() == UNKNOWN else read(given, what)

    return reader


def is_number(given: Any) -> bool:
    """Say whether a value is a number; true and false are none."""
    return isinstance(given, int | float) and not isinstance(given, bool)


def _written(given: Any, what: str) -> str:
    """Return a value as a user would write it."""
    if isinstance(given, str):
        return given
    if isinstance(given, list | tuple | range):
        return ",".join(_written(each, what) for each in given)
    if given is None or isinstance(given, bool | dict):
        raise InputError(f"{what}: {given!r} is not a value that it takes")
    return str(given)


def _shown(given: Any) -> str:
    return repr(given[:_MAX_SHOWN] if isinstance(given, str) else given)
