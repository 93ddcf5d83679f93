"""Predictions held against what others measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvcalc.core.reports.check import CheckReport
    from kvcalc.core.reports.validate import ValidateReport
    from kvcalc.plan.deployment import Deployment

__all__ = ["check_measured", "validate"]


def check_measured(
    deployment: Deployment, measured: str, *, phase: str = "decode", batch: int = 1, tokens: int | None = None
) -> CheckReport:
    """Return whether a measured speed is possible at all, and how near it comes to the bound.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        measured: tokens/s over all sequences (``3000tok/s``; ``50tok/s/user`` is of each), or a time (``12ms``): of a
            decode step, or to the first token.
        phase: ``decode`` or ``prefill``.
        batch: sequences at once.
        tokens: context of the decode step, or length of the prompt.

    Raises:
        InputError: a figure that cannot be read, another phase, or no accelerator.
    """
    from kvcalc.evidence.plausible import plausibility

    return plausibility(deployment, measured=measured, phase=phase, batch=batch, tokens=tokens)


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
