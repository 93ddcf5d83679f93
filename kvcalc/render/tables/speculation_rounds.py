"""What ``kvcalc demo speculate`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import counted, number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables.pieces import grid, heading
from kvcalc.render.terminal import line_chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.reports.lessons import SpeculationReport
    from kvcalc.render.layout import Part

__all__ = ["parts", "picture", "steps"]


def parts(report: SpeculationReport) -> list[Part]:
    """Return a row for each draft."""
    rows = [
        ["none", "-", number_text(report.output_tokens), "-", "-", "1", "the reference"],
        *(
            [
                draft.name,
                f"{draft.quality:.0%}",
                number_text(draft.target_passes),
                number_text(draft.drafted_tokens),
                number_text(draft.accepted_tokens),
                f"{draft.mean_tokens_per_pass:.2f}",
                "identical" if draft.same_output else "DIFFERENT",
            ]
            for draft in report.drafts
        ),
    ]
    columns = ["draft", "right", "target passes", "drafted", "accepted", "tokens a pass", "output"]
    title = (
        f"Speculation: {counted(report.output_tokens, 'token')} after a prompt of {report.prompt_tokens},"
        f" {report.gamma} drafted for each pass"
    )
    rule = (
        "A drafted token is accepted while it is what the target would choose. At the first that is not, the target's\n"
        "own token takes its place; behind a draft accepted to its end it comes as a bonus: at least one token a pass."
    )
    return [heading(title), grid(columns, rows), Text(), Text(rule), Text(f"output: {_tokens(report.output)}")]


def steps(report: SpeculationReport) -> list[list[str]]:
    """Return the lines of each pass."""
    found = []
    for step in report.steps:
        lines = [f"draft {step.draft}, pass {step.place}: drafted {_tokens(step.drafted)}"]
        lines.append(f"  accepted {_tokens(step.accepted)}; {step.ending} {step.own}" + _instead(step.rejected))
        lines.append(f"  emitted {_tokens(step.emitted)}")
        found.append(lines)
    return found


def _instead(rejected: Sequence[int]) -> str:
    return f" instead of {_tokens(rejected)}" if rejected else ""


def _tokens(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens)) or "nothing"


def picture(report: SpeculationReport, *, plain: bool) -> str:
    """Return tokens emitted over passes of the target."""
    lines: dict[str, list[tuple[float, float]]] = {
        "without a draft": [(place, place) for place in range(report.output_tokens + 1)]
    }
    for step in report.steps:
        made = lines.setdefault(f"draft {step.draft}", [(0, 0)])
        made.append((step.place, made[-1][1] + len(step.emitted)))
    return line_chart(lines, x="passes of the target", y="tokens", plain=plain)
