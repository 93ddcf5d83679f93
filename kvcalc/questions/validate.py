"""Do predictions hold: ``kvcalc validate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.readers import flag, texts
from kvcalc.questions.declared import Answer, Question, param

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvcalc.core.reports.validate import ValidateReport

__all__ = ["Validate", "validate"]


class Validate(Question):
    """Predictions against published measurements: no measurement may beat its bound.

    Example: kvcalc validate --suite decode
    """

    suite: tuple[str, ...] = param(
        "--suite", help="Suite to run. May be repeated.", read=texts, repeats=True, otherwise="all"
    )
    records: str | None = param(
        "--records", help="Measurements to use: YAML, or a known CSV table.", metavar="FILE", otherwise="those shipped"
    )
    rows: bool | None = param(
        "--rows", help="The prediction for each row of the file, in the order of the file.", read=flag
    )
    has_chart = True

    def answer(self) -> Answer:
        """Return the predictions beside the measurements."""
        report = validate(suites=self.suite, records=self.records, rows=bool(self.rows), progress=self.progress)
        return Answer(report, passed=report.holds)


def validate(
    *,
    suites: Sequence[str] = (),
    records: str | Path | None = None,
    rows: bool = False,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ValidateReport:
    """Return the predictions held against measurements: bounds that none may beat, estimates, exact bytes.

    Args:
        suites: names of suites; all of them if empty.
        records: a file of records in place of those that kvcalc ships: YAML, or a CSV table of a known form.
        rows: whether the prediction for each row is wanted.
        progress: told how many records are done.

    Raises:
        InputError: no such suite.
        ProfileError: a file that cannot be read.
    """
    from kvcalc.evidence.read import read_records
    from kvcalc.evidence.suites import run_suites

    read = None if records is None else read_records(records)
    return run_suites(
        suites,
        records=read,
        records_file=None if records is None else str(records),
        rows=rows,
        progress=progress,
    )
