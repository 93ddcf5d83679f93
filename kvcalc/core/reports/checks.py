"""Assertions with their outcome: the answer of ``kvcalc check``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvcalc.core.reports.common import Report

__all__ = ["CheckChange", "CheckResult", "ChecksReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One assertion, or one figure that is only recorded.

    Args:
        name: the check, its place in the matrix and the field.
        field: the report and the field that is asserted, for example ``decode.tokens_per_s``.
        passed: whether it holds.
        expected: what was asked for: a value, or a mapping of ``min``, ``max`` and the like; none where it is recorded.
        actual: what is.
        where: file and line of the assertion.
        message: the same in words.
    """

    name: str
    field: str
    passed: bool
    expected: Any
    actual: Any
    where: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckChange:
    """A figure that is another than it was.

    Args:
        name: the check it belongs to.
        before: what it was.
        after: what it is.
        ratio: after over before, where both are numbers.
        worse: whether that is a regression.
        message: the same in words.
        where: file and line of the assertion.
    """

    name: str
    before: Any
    after: Any
    ratio: float | None
    worse: bool
    message: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ChecksReport(Report):
    """Assertions with their outcome, and changes since an earlier run where one was given.

    Args:
        passed: whether all hold and nothing got worse.
        failures: how many do not hold.
        regressions: how many figures got worse.
        checks: each assertion.
        changes: each figure that changed.
        notes: what a user should know.
    """

    schema: str = "kvcalc.check/1"
    passed: bool
    failures: int
    regressions: int
    checks: tuple[CheckResult, ...]
    changes: tuple[CheckChange, ...] = ()
    notes: tuple[str, ...] = ()
