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

# Seconds between two lines on how far a long run has come.
_TELL_S = 2.0


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
<<<<<<< HEAD
        report = validate(suites=self.suite, records=self.records, progress=self.progress)
        return Answer(report, passed=report.holds)


def validate(
    *,
    suites: Sequence[str] = (),
    records: str | Path | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ValidateReport:
=======
        report = validate(suites=self.suite, records=self.records, rows=bool(self.rows))
        return Answer(report, passed=report.holds)


def validate(*, suites: Sequence[str] = (), records: str | Path | None = None, rows: bool = False) -> ValidateReport:
>>>>>>> 2e491b1 (Served steps are estimated from kernels on their own and the floors of an engine, and books keep what a fit has seen apart)
    """Return the predictions held against measurements: bounds that none may beat, estimates, exact bytes.

    Args:
        suites: names of suites; all of them if empty.
<<<<<<< HEAD
        records: a file of records in place of those that kvcalc ships: YAML, or one of three CSV tables.
        progress: told how many records are done.
=======
        records: a file of records in place of those that kvcalc ships: YAML, a CSV table of a known form, or the
            requests of a served run (or a folder of such runs).
        rows: whether the prediction for each row is wanted.
>>>>>>> 2e491b1 (Served steps are estimated from kernels on their own and the floors of an engine, and books keep what a fit has seen apart)

    Raises:
        InputError: no such suite.
        ProfileError: a file that cannot be read.
    """
    from kvcalc.evidence.read import read_records
    from kvcalc.evidence.suites import run_suites

    read = None if records is None else read_records(records)
<<<<<<< HEAD
    return run_suites(suites, records=read, records_file=None if records is None else str(records), progress=progress)
=======
    return run_suites(
        suites,
        records=read,
        records_file=None if records is None else str(records),
        rows=rows,
        progress=None if read is None else _progress(len(read)),
    )


def _progress(records: int) -> Callable[[int], None]:
    """Return a function that tells on stderr, each two seconds, how many of the records are done."""
    import sys
    from time import monotonic

    told = [monotonic()]

    def tell(done: int) -> None:
        now = monotonic()
        if now - told[0] >= _TELL_S:
            told[0] = now
            sys.stderr.write(f"{done:,} of {records:,} records\n")

    return tell
>>>>>>> 2e491b1 (Served steps are estimated from kernels on their own and the floors of an engine, and books keep what a fit has seen apart)
