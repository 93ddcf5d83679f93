"""Assertions for CI: files of checks, run and held against what they expect and against an earlier run."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, KvcalcError, ProfileError
from kvcalc.core.reports.checks import CheckChange, CheckResult, ChecksReport
from kvcalc.core.reports.fit import FitReport
from kvcalc.core.reports.size import SizeReport
from kvcalc.core.reports.speed import DecodeRow, PrefillRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kvcalc.profiles.checks import Assertion, Check

    Run = Callable[[str, Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]

__all__ = ["check_files", "check_schema", "report_of_field"]

# Whose fields need no report before them: the first that has one counts.
_OWNERS = {"fit": FitReport, "size": SizeReport, "decode": DecodeRow, "prefill": PrefillRow}
_SHORT = {
    "kv_bytes_per_token": "size.kv.bytes_per_token",
    "kv_bytes_per_sequence": "size.kv.bytes_per_sequence",
    "kv_total_bytes": "size.kv.total_bytes",
    "weight_bytes": "size.weights.total_bytes",
    "parameters": "size.weights.parameters",
    "ttft_s": "prefill.ideal_s",
    "speedup": "speculate.speedup",
}

# Ten thousand checks take some 5 MB.
_MOST_EARLIER_BYTES = 16 * 2**20


def report_of_field(name: str, reports: Iterable[str]) -> tuple[str, str]:
    """Return the report that a field belongs to, and its name there.

    Raises:
        InputError: a name that is in no report.

    >>> report_of_field("decode.rows.0.flop", ["decode"]), report_of_field("kv_bytes_per_token", ["size"])
    (('decode', 'rows.0.flop'), ('size', 'kv.bytes_per_token'))
    """
    known = list(reports)
    full = _SHORT.get(name, name)
    report, _, rest = full.partition(".")
    if report in known and rest:
        return report, rest
    for owner, kind in _OWNERS.items():
        if report in {field.name for field in fields(kind)}:
            return owner, full
    hint = f"name the report first ({', '.join(known)}), as decode.tokens_per_s, or use {', '.join(_SHORT)}"
    raise InputError(f"{name!r} is no field of a report", hint=hint)


def check_files(
    files: Sequence[Path],
    run: Run,
    reports: Iterable[str],
    *,
    against: Path | None = None,
    tolerance: float = 0.0,
) -> ChecksReport:
    """Return the outcome of the checks of some files.

    Args:
        files: files of checks.
        run: a function that returns a report as plain data: its name, the options of a check and those of all checks.
        reports: names of the reports there are.
        against: an earlier report of these checks, as JSON.
        tolerance: how much worse a figure may be than it was there, as a share.

    Raises:
        KvcalcError: a file that cannot be read, or a check that cannot be computed, with its line.
    """
    from kvcalc.profiles.checks import read_checks

    known = tuple(reports)
    results = [result for file in files for check in read_checks(file) for result in _results(check, run, known)]
    changes, notes = ((), ()) if against is None else _changes(results, against, tolerance)
    failures = sum(not result.passed for result in results)
    regressions = sum(change.worse for change in changes)
    return ChecksReport(
        passed=not failures and not regressions,
        failures=failures,
        regressions=regressions,
        checks=tuple(results),
        changes=changes,
        notes=notes,
    )


def _results(check: Check, run: Run, reports: Sequence[str]) -> Iterator[CheckResult]:
    used: set[str] = set()
    for assertion in check.assertions:
        try:
            report, field = report_of_field(assertion.field, reports)
            used.add(report)
            answer = run(report, check.settings, check.defaults)
            _refuse_shadows(answer["source"], check)
            yield _result(check, assertion, answer, report, field)
        except KvcalcError as error:
            what = f"{error.where}: {error.what}" if error.where else error.what
            raise ProfileError(f"{check.name}: {what}", where=assertion.where, hint=error.hint) from None


def _refuse_shadows(source: Mapping[str, Any], check: Check) -> None:
    """Refuse figures of a profile that stands in for one of kvcalc's own, unless the file of checks allows its name."""
    for name in source["shadowed"]:
        if name.strip().lower() not in check.may_shadow:
            path = next(names[name] for kind, names in source.items() if kind != "shadowed" and name in names)
            raise InputError(
                f"{name} was read from {path}, not from kvcalc's own profile of that name",
                hint=f"give the file's path, or write allow_shadowing: [{name}] at the top of the file of checks",
            )


def _result(check: Check, assertion: Assertion, report: Mapping[str, Any], name: str, field: str) -> CheckResult:
    from kvcalc.plan.expectations import field_of, outcome

    actual = field_of(report, field)
    full = f"{name}.{field}"
    if isinstance(actual, dict | list):
        raise InputError(f"{full} is not one figure", hint=f"name one below it: {full}.{next(iter(actual), 0)}"
                         if isinstance(actual, dict) else f"name one of its entries: {full}.0")  # fmt: skip
    passed, words = (True, "") if assertion.recorded else outcome(actual, assertion.expected, full)
    shown = _shown(actual)
    message = f"{full} is {shown}" if passed else f"{full} is {shown}, expected {words}"
    return CheckResult(
        name=f"{check.name}: {assertion.field}",
        field=full,
        passed=passed,
        expected=assertion.expected,
        actual=actual,
        where=assertion.where,
        message=message,
    )


def _shown(value: Any) -> str:
    from kvcalc.core.units import number_text

    if isinstance(value, bool) or not isinstance(value, int | float):
        return {None: "not known", True: "true", False: "false"}.get(value, str(value))
    return number_text(value)


def _changes(
    results: Sequence[CheckResult], against: Path, tolerance: float
) -> tuple[tuple[CheckChange, ...], tuple[str, ...]]:
    earlier = _earlier(against)
    now = {result.name for result in results}
    for result in results:
        if result.name in earlier and not _comparable(result.actual, earlier[result.name]):
            what = (
                f"{result.name}: {_shown(earlier[result.name])} is not a figure to hold {_shown(result.actual)} against"
            )
            raise ProfileError(what[:300], where=str(against))
    notes = [f"{name}: not checked any more" for name in earlier if name not in now]
    notes += [f"{result.name}: new, nothing to hold it against" for result in results if result.name not in earlier]
    found = [
        _change(result, earlier[result.name], tolerance)
        for result in results
        if result.name in earlier and not _same(result.actual, earlier[result.name])
    ]
    return tuple(found), tuple(notes)


def _earlier(path: Path) -> dict[str, Any]:
    from kvcalc.files import read_json

    data = read_json(path, max_bytes=_MOST_EARLIER_BYTES, what="the JSON of `kvcalc check`")
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
    return None in (one, other) or (type(one) is type(other)) or (_is_number(one) and _is_number(other))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(one: Any, other: Any) -> bool:
    from math import isclose

    numbers = _is_number(one) and _is_number(other)
    return isclose(one, other, rel_tol=1e-9) if numbers else one == other


def _change(result: CheckResult, before: Any, tolerance: float) -> CheckChange:
    after = result.actual
    numbers = _is_number(before) and _is_number(after)
    ratio = after / before if numbers and before else None
    better = _better_end(result)
    if numbers:
        grown = after - before
        far = abs(grown) > tolerance * abs(before)
        worse = far and ((better == "lower" and grown > 0) or (better == "higher" and grown < 0))
        word = "grew" if grown > 0 else "fell"
        times = "" if ratio is None else f" {'' if grown > 0 else 'to '}{ratio:,.3g}x"
        message = f"{result.field} {word}{times}: {_shown(before)} -> {_shown(after)}"
    else:
        worse = (before is True and after is False) or (before is not None and after is None)
        message = f"{result.field} changed: {_shown(before)} -> {_shown(after)}"
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
    """Which end is better: what the assertion says, else what the figure is."""
    from kvcalc.core.figures import figure_at

    asked = set(result.expected) & {"min", "max"} if isinstance(result.expected, dict) else set()
    if len(asked) == 1:
        return "higher" if "min" in asked else "lower"
    declared = figure_at(result.field)
    return "" if declared is None else declared.better


def check_schema(options: Mapping[str, str], reports: Iterable[str]) -> dict[str, Any]:
    """Return the JSON Schema of files of checks.

    Args:
        options: the options that checks may set, with their help.
        reports: names of the reports there are.
    """
    from kvcalc.plan.expectations import OPERATORS
    from kvcalc.profiles.checks import checks_schema

    known = {name: f"Short for {full}." for name, full in _SHORT.items() if full.partition(".")[0] in set(reports)}
    for owner, kind in _OWNERS.items():
        for field in fields(kind):
            if field.type in ("int", "float", "bool", "str", "float | None", "int | None"):
                known.setdefault(f"{owner}.{field.name}", f"A field of kvcalc {owner} --json.")
    return checks_schema(options, known, OPERATORS)
