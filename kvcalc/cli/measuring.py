"""``kvcalc bench`` and ``kvcalc crosscheck``: what was measured is written and printed, whatever fails on the way."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from typer import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.questions.declared import Answer, Question

__all__ = ["run"]

_INTERRUPTED = 130


def run(asked: type[Question], given: Mapping[str, Any], output: str, charts: Mapping[str, str | None]) -> None:
    """Measure, write the files that were asked for, print the report; 130 interrupted, 1 a check failed."""
    from kvcalc.files import check_writable

    question: Any = asked(**given)
    check_writable((question.write_gpu, question.write_calibration))
    question.progress = _tell
    answer = question.answer()
    _hand_over(answer, output, charts)
    if answer.report.interrupted:
        raise Exit(_INTERRUPTED)
    if not answer.passed:
        raise Exit(1)


def _tell(step: str) -> None:
    sys.stderr.write(f"measuring: {step}\n")
    sys.stderr.flush()


def _hand_over(answer: Answer, output: str, charts: Mapping[str, str | None]) -> None:
    """Write the files and print the report; what cannot be written holds up nothing else.

    Raises:
        Exception: what came of the first file that could not be written, once the report is printed.
    """
    from kvcalc.cli.shared import draw, emit

    failed: list[Exception] = []
    steps = (
        *(partial(_write, *pair) for pair in answer.profiles),
        *(partial(draw, answer.report, {kind: path}) for kind, path in charts.items()),
    )
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001  raised below, when nothing is lost any more
            failed.append(error)
    emit(answer.report, output)
    if failed:
        raise failed[0]


def _write(profile: HardwareProfile | Calibration | None, path: str | None) -> None:
    from kvcalc import api

    if path is None:
        return
    if profile is None:
        sys.stderr.write(f"nothing was written to {path}: no calibration was fitted\n")
        return
    api.write_profile(profile, path)
    sys.stderr.write(f"wrote {path}\n")
