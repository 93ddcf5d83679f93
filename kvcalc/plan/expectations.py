"""Expectations on figures of reports: finding a figure by its name, and holding it against what was asked for."""

from __future__ import annotations

from math import isclose, isfinite
from typing import TYPE_CHECKING, Any

from kvcalc.core.cost_types import LIMITERS
from kvcalc.core.errors import InputError, KvcalcError, did_you_mean
from kvcalc.core.units import number_text, parse_bytes, parse_count, parse_rate, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OPERATORS", "field_of", "outcome"]

# What an expectation may ask for, with the words of a message.
OPERATORS = {
    "min": "at least",
    "max": "at most",
    "equals": "equal to",
    "not": "other than",
    "in": "one of",
    "within": "within",
}
_MIN_DIFFERENCE = 1e-9
# What is never a share: figures with a unit, and counts.
_UNITS = ("bytes", "_per_s", "_per_token", "_per_million", "flop")
_COUNTS = ("_s", "batch", "context", "concurrency", "gpus", "tokens", "parameters", "blocks", ".p50", ".p90", ".p95",
           ".p99")  # fmt: skip
# The rows of a report, which need no name where there is one alone.
_LISTS = ("rows", "points")


def field_of(report: Mapping[str, Any], path: str) -> Any:
    """Return the figure of a report by its dotted name; the one row of a report needs no name.

    Raises:
        InputError: no such field, or several rows.

    >>> field_of({"kv": {"total_bytes": 8}}, "kv.total_bytes"), field_of({"rows": [{"batch": 2}]}, "batch")
    (8, 2)
    """
    value: Any = report
    for step in path.split("."):
        value = _step(value, step, path)
    return value


def _step(value: Any, step: str, path: str) -> Any:
    if isinstance(value, list):
        if step.isdigit() and int(step) < len(value):
            return value[int(step)]
        raise InputError(f"{path!r}: there are {len(value)} entries, and {step!r} is none of them")
    if not isinstance(value, dict):
        raise InputError(f"{path!r}: there is nothing below {step!r}")
    if step in value:
        return value[step]
    rows = next((value[name] for name in _LISTS if isinstance(value.get(name), list)), None)
    if rows is not None and len(rows) == 1 and step in rows[0]:
        return rows[0][step]
    if rows is not None and len(rows) > 1 and step in rows[0]:
        raise InputError(f"{path!r} is a field of each of {len(rows)} rows", hint=f"name one: rows.0.{path}")
    known = [*value, *(rows[0] if rows else ())]
    raise InputError(f"there is no field {path!r}", hint=did_you_mean(step, known) or f"fields: {', '.join(known)}")


def outcome(actual: Any, expected: Any, field: str) -> tuple[bool, str]:
    """Return whether a figure is as expected, and the expectation in words.

    Args:
        actual: the figure.
        expected: a value that it must equal, or a mapping of `OPERATORS` that must all hold; numbers may have units.
        field: its name, whose ending says the unit.

    Raises:
        InputError: an expectation that cannot be read, or that does not fit the figure.

    >>> outcome(30.0, {"min": 25, "max": "4e1"}, "decode.tokens_per_s")
    (True, 'at least 25 and at most 40')
    >>> outcome(0.05, {"min": "10%"}, "kv_headroom"), outcome(True, True, "fits")
    ((False, 'at least 0.1'), (True, 'True'))
    """
    if not isinstance(expected, dict):
        value = _value(expected, actual, field)
        return _equal(actual, value, 0), _text(value)
    unknown = [key for key in expected if key not in OPERATORS]
    if unknown or not set(expected) - {"within"}:
        hint = did_you_mean(str(unknown[0]), OPERATORS) if unknown else "add equals"
        raise InputError(f"an expectation is a value or has {', '.join(OPERATORS)}, not {expected}", hint=hint)
    _check_operators(expected, actual, field)
    slack = _slack(expected.get("within", 0), field)
    asked_values = {
        key: [_value(each, actual, field) for each in (asked if key == "in" and isinstance(asked, list) else [asked])]
        for key, asked in expected.items()
        if key != "within"
    }
    _check_limits(asked_values, field)
    verdicts, words = [], []
    for key, values in asked_values.items():
        verdicts.append(_holds(key, actual, values, slack))
        words.append(f"{OPERATORS[key]} {' or '.join(_text(value) for value in values)}")
    if slack:
        words.append(f"within {slack:.4g} of it")
    return all(verdicts), " and ".join(words)


def _check_operators(expected: Mapping[str, Any], actual: Any, field: str) -> None:
    """Refuse operators that would do nothing, or hold of nothing, or are for numbers where the figure is a word."""
    if isinstance(actual, str) and set(expected) & {"min", "max"}:
        raise InputError(f"{field} is a word, {actual!r}: min and max are for numbers", hint="use equals, not or in")
    if "within" in expected and not set(expected) & {"equals", "not", "in"}:
        raise InputError(f"{field}: within has nothing to be within of", hint="it is for equals, not and in")
    if expected.get("in") == []:
        raise InputError(f"{field}: no figure is one of none", hint="for example in: [compute, memory]")


def _check_limits(asked: Mapping[str, list[Any]], field: str) -> None:
    """Refuse a least and a largest value that are no numbers, or leave nothing between them."""
    limits = [asked[key][0] for key in ("min", "max") if key in asked]
    for limit in limits:
        if isinstance(limit, bool) or not isinstance(limit, int | float):
            raise InputError(f"{field}: {limit!r} is not a number")
    if len(limits) == len(("min", "max")) and limits[0] > limits[1]:
        raise InputError(f"{field}: nothing is at least {_text(limits[0])} and at most {_text(limits[1])}")


def _slack(asked: Any, field: str) -> float:
    """Return the share by which a figure may differ; one of 1 or more would let any figure pass."""
    try:
        slack = _number(asked, "share")
    except KvcalcError as error:
        raise InputError(f"{field}: within: {error.what}", hint=error.hint) from None
    if not 0 <= slack < 1:
        raise InputError(
            f"{field}: within must be from 0 to less than 100%, not {asked}", hint="for example within: 5%"
        )
    return slack


def _holds(key: str, actual: Any, values: list[Any], slack: float) -> bool:
    if key in ("equals", "in"):
        return any(_equal(actual, value, slack) for value in values)
    if key == "not":
        return not _equal(actual, values[0], slack)
    if isinstance(actual, bool) or not isinstance(actual, int | float):
        return False
    limit: float = values[0]
    return actual >= limit if key == "min" else actual <= limit


def _equal(actual: Any, value: Any, slack: float) -> bool:
    if isinstance(actual, bool) or isinstance(value, bool):
        return actual is value
    if isinstance(actual, int) and isinstance(value, int) and not slack:
        return actual == value
    if isinstance(actual, int | float) and isinstance(value, int | float):
        return isclose(actual, value, rel_tol=max(slack, _MIN_DIFFERENCE), abs_tol=0)
    return bool(actual == value)


def _value(asked: Any, actual: Any, field: str) -> Any:
    """Return the expected value, a text of a number with its unit as a number in the field's own unit."""
    numeric = isinstance(actual, int | float) and not isinstance(actual, bool)
    if isinstance(asked, str) and (numeric or actual is None):
        try:
            return _number(asked, field)
        except KvcalcError as error:
            if numeric:
                raise InputError(f"{field}: {error.what}", hint=error.hint) from None
            return asked
    if numeric and (asked is None or isinstance(asked, bool | list | dict)):
        raise InputError(f"{field} is a number, and {asked!r} is none")
    if isinstance(actual, bool) and not isinstance(asked, bool):
        raise InputError(f"{field} is true or false, not {asked!r}")
    if isinstance(asked, list | dict):
        raise InputError(f"{field}: {asked!r} is not a value that a figure can have")
    if actual in LIMITERS and field.endswith("limiter") and asked not in LIMITERS:
        hint = did_you_mean(str(asked), LIMITERS) or f"limiters: {', '.join(LIMITERS)}"
        raise InputError(f"{field} is never {asked!r}", hint=hint)
    return asked


def _number(asked: Any, field: str) -> float:
    """Return the expected value as a finite number, in the field's own unit.

    Raises:
        InputError: not a number, or one that no figure can have.
    """
    plain = isinstance(asked, int | float) and not isinstance(asked, bool)
    number: float = asked if plain else _spelled_number(str(asked).strip(), field)
    if not isfinite(number):
        raise InputError(f"{asked!r} is not a finite number")
    return number


def _spelled_number(text: str, field: str) -> float:
    if text.endswith("%"):
        if field.endswith(_COUNTS) or any(unit in field for unit in _UNITS):
            raise InputError(
                f"{text!r} is a share, and this figure is none", hint="write a number, with its unit if it has one"
            )
        return _plain_number(text[:-1]) / 100
    if "bytes" in field and not field.endswith("_per_s"):
        return parse_bytes(text)
    if field.endswith(("bytes_per_s", "flop_per_s")):
        return parse_rate(text)
    if field.endswith(("_s", ".p50", ".p90", ".p95", ".p99", ".mean")) and not field.endswith("_per_s"):
        return parse_seconds(text)
    return _plain_number(text)


def _plain_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return parse_count(text)


def _text(value: Any) -> str:
    return number_text(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
