"""Predictions held against what others measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvcalc.core.reports.validate import ValidateReport

__all__ = ["validate"]


def validate(*, suites: Sequence[str] = (), records: str | Path | None = None) -> ValidateReport:
    """Return the predictions held against measurements: bounds that none may beat, estimates, exact bytes.

    Args:
        suites: names of suites; all of them if empty.
        records: a file of records in place of those that kvcalc ships: YAML, or one of three CSV tables.

    Raises:
        InputError: no such suite.
        ProfileError: a file that cannot be read.
    """
    from kvcalc.evidence.read import read_records
    from kvcalc.evidence.suites import run_suites

    read = None if records is None else read_records(records)
    return run_suites(suites, records=read, records_file=None if records is None else str(records))
