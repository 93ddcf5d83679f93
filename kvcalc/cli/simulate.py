"""``kvcalc simulate``: progress on standard error, files checked before hours of work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.questions.declared import Question

__all__ = ["run"]


def run(asked: type[Question], given: Mapping[str, Any], output: str, charts: dict[str, str | None]) -> None:
    """Simulate, and print the report."""
    from kvcalc.cli.shared import draw, emit, progress, tell_rates
    from kvcalc.files import check_writable

    policy = given.get("policy")
    is_file = isinstance(policy, str) and policy.endswith(".py")
    question: Any = asked(**{name: value for name, value in given.items() if not (is_file and name == "policy")})
    question.policy_file = policy if is_file else None
    question.named += tuple(kind for kind, path in charts.items() if path is not None)
    check_writable((question.save_requests, question.save_trace))
    with tell_rates() as tried, progress("requests") as report_progress:
        question.progress, question.tried = report_progress or question.progress, tried
        answer = question.answer()
    draw(answer.report, charts)
    emit(answer.report, output)
