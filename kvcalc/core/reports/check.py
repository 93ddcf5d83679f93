"""Plausibility of a measured speed: the answer of ``kvcalc check --measured``."""

from __future__ import annotations

from dataclasses import dataclass

from kvcalc.core.reports.common import Report

__all__ = ["Assumption", "Check", "CheckReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """One assumption of a bound under whose change a speed beyond it would be possible.

    Args:
        assumption: ``weights``, ``cache``, ``speculation``, ``sequences``, ``accelerator`` or ``gpus``.
        text: the change that would do, for a reader.
        needed: how much of it is needed, at least (of weights: at most).
        unit: the unit of that.
        bound_share: share of the bound that the measurement would reach with the change.
    """

    assumption: str
    text: str
    needed: float
    unit: str
    bound_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One assertion.

    Args:
        name: what is asserted.
        passed: whether it holds.
        expected: what would have to be, in words and numbers.
        actual: what is.
        verdict: the outcome in one line.
        bound_s: the least time, where the check is of a measured speed.
        measured_s: the measured time.
        limiter: what the bound is made of: memory, compute or interconnect.
        assumptions: those that would have to be wrong for a speed that is impossible otherwise; each would be enough.
    """

    name: str
    passed: bool
    expected: str
    actual: str
    verdict: str = ""
    bound_s: float | None = None
    measured_s: float | None = None
    limiter: str = ""
    assumptions: tuple[Assumption, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckReport(Report):
    """Assertions, each with whether it holds.

    Args:
        checks: the assertions.
        notes: what a reader should know.
    """

    schema: str = "kvcalc.check_measured/1"
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all of them hold."""
        return all(check.passed for check in self.checks)
