"""Figures of checks beside those of an earlier run: what changed, and what got worse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError
from kvcalc.core.figures import figure_at
from kvcalc.core.readers import is_number
from kvcalc.core.reports.checks import CheckChange

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvcalc.core.reports.checks import CheckResult

__all__ = ["changes_since", "figure_text"]

# Ten thousand checks take some 5 MB.
_MAX_EARLIER_BYTES = 16 * 2**20


def changes_since(
    results: Sequence[CheckResult], against: Path, tolerance: float
) -> tuple[tuple[CheckChange, ...], tuple[str, ...]]:
    """Return the figures that are others than in an earlier run, and notes on checks that only one run has.

    Args:
        results: the checks of this run.
        against: the JSON of the earlier one.
        tolerance: how much worse a figure may be, as a share.

    Raises:
        ProfileError: a file that is no such JSON, or a figure of another kind there.
    """
    earlier = _earlier(against)
    now = {result.name for result in results}
    for result in results:
        if result.name in earlier and not _comparable(result.actual, earlier[result.name]):
            before, after = figure_text(earlier[result.name]), figure_text(result.actual)
            what = f"{result.name}: {before} is not a figure to hold {after} against"
            raise ProfileError(what[:300], where=str(against))
    notes = [f"{name}: not checked any more" for name in earlier if name not in now]
    notes += [f"{result.name}: new, nothing to hold it against" for result in results if result.name not in earlier]
    changes = [
        _change(result, earlier[result.name], tolerance)
        for result in results
        if result.name in earlier and not _same(result.actual, earlier[result.name])
    ]
    return tuple(changes), tuple(notes)


def _earlier(path: Path) -> dict[str, Any]:
    from kvcalc.files import read_json

    data = read_json(path, max_bytes=_MAX_EARLIER_BYTES, what="the JSON of `kvcalc check`")
    if not isinstance(data, dict) or not str(data.get("schema", "")).startswith("kvcalc.check/"):
        hint = "an earlier run writes it: kvcalc check --json > OLD.json"
        raise ProfileError("this is not the JSON of `kvcalc check`", where=str(path), hint=hint)
    checks = data.get("checks")
    if not isinstance(checks, list) or not all(map(_is_result, checks)):
        raise ProfileError("its checks cannot be read", where=str(path))
    return {str(each["name"]): each["actual"] for each in checks}


def _is_result(entry: Any) -> bool:
    return (
        isinstance(entry, dict) and {"name", "actual"} <= entry.keys() and not isinstance(entry["actual"], dict | list)
    )


def _comparable(one: Any, other: Any) -> bool:
    """Whether both are numbers, words, or true or false; what was not known, or is not, compares with anything."""
    return None in (one, other) or (type(one) is type(other)) or (is_number(one) and is_number(other))


def _same(one: Any, other: Any) -> bool:
    from math import isclose

    numbers = is_number(one) and is_number(other)
    return isclose(one, other, rel_tol=1e-9) if numbers else one == other


def _change(result: CheckResult, before: Any, tolerance: float) -> CheckChange:
    after = result.actual
    numbers = is_number(before) and is_number(after)
    ratio = after / before if numbers and before else None
    better = _better_end(result)
    if numbers:
        grown = after - before
        far = abs(grown) > tolerance * abs(before)
        worse = far and ((better == "lower" and grown > 0) or (better == "higher" and grown < 0))
        word = "grew" if grown > 0 else "fell"
        times = "" if ratio is None else f" {'' if grown > 0 else 'to '}{ratio:,.3g}x"
        message = f"{result.field} {word}{times}: {figure_text(before)} -> {figure_text(after)}"
    else:
        worse = (before is True and after is False) or (before is not None and after is None)
        message = f"{result.field} changed: {figure_text(before)} -> {figure_text(after)}"
    return CheckChange(
        name=result.name,
        before=before,
        after=after,
        ratio=ratio,
        worse=worse,
        message=message,
        where=result.where,
    )


def _better_end(result: CheckResult) -> str:
    """Return the better end of a figure: by the assertion, else by the figure's own declaration."""
    asked = set(result.expected) & {"min", "max"} if isinstance(result.expected, dict) else set()
    if len(asked) == 1:
        return "higher" if "min" in asked else "lower"
    declared = figure_at(result.field)
    return "" if declared is None else declared.better


def figure_text(value: Any) -> str:
    """Return a figure as messages say it."""
    from kvcalc.core.units import number_text

    if isinstance(value, bool) or not isinstance(value, int | float):
        return {None: "not known", True: "true", False: "false"}.get(value, str(value))
    return number_text(value)
