"""``kvcalc sweep``: rows are printed as they are computed, or progress is shown until they are saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.questions.declared import Question

__all__ = ["run"]


def run(asked: type[Question], given: Mapping[str, Any], output: str, charts: dict[str, str | None]) -> None:
    """Sweep, and print the rows."""
    from kvcalc import api
    from kvcalc.cli.shared import emit, emit_blocks, progress

    del charts
    question: Any = asked(**given)
    if question.save is None and not question.pareto and output in ("csv", "jsonl"):
        columns = api.sweep_columns(question.asked(), workers=question.workers, scheduler=question.scheduler)
        emit_blocks((block for _, block in columns), output)
        return
    with progress("points") as report_progress:
        question.progress = report_progress
        answer = question.answer()
    emit(answer.report, output)
