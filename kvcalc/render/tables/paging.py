"""What ``kvcalc demo paging`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables.pieces import grid, heading
from kvcalc.render.terminal import line_chart

if TYPE_CHECKING:
    from kvcalc.core.reports.lessons import PagingReport, PagingScheme
    from kvcalc.render.layout import Part

__all__ = ["parts", "picture", "steps"]


def parts(report: PagingReport) -> list[Part]:
    """Return both ways side by side, and what happens to shared blocks."""
    title = (
        f"Paging: {report.requests} requests of real lengths, memory for {number_text(report.memory_tokens)} tokens,"
        f" blocks of {report.block_tokens}, longest length {number_text(report.longest_tokens)}"
    )
    columns = ["memory handed out", "requests at once", "most", "useful", "wasted inside", "between", "each", "steps",
               "thrown out"]  # fmt: skip
    rows = [_row(scheme) for scheme in (report.reserved, report.paged)]
    told = [
        f"{report.more_requests:.1f} times as many requests at once. Shares are of the memory, while requests wait.",
        f"each: tokens set aside and not used for each request; with blocks less than one of {report.block_tokens}.",
    ]
    if report.refused_requests:
        told.append(
            f"{report.refused_requests} requests are longer than {number_text(report.longest_tokens)} tokens: refused."
        )
    sharing = [
        [event.what, f"{event.blocks} of {event.unshared_blocks}", "  ".join(_table(table) for table in event.tables)]
        for event in report.sharing
    ]
    return [
        heading(title),
        grid(columns, rows),
        *(Text(line) for line in told),
        Text(),
        heading("Sharing, and copy on write"),
        grid(["what happens", "blocks", "block tables"], sharing, left=3),
    ]


def _row(scheme: PagingScheme) -> list[str]:
    return [
        "the longest length" if scheme.name == "reserved" else "in blocks",
        f"{scheme.mean_running_requests:.1f}",
        number_text(scheme.most_running_requests),
        f"{scheme.useful_share:.1%}",
        f"{scheme.inside_share:.1%}",
        f"{scheme.between_share:.1%}",
        number_text(round(scheme.mean_wasted_tokens, 1)),
        number_text(scheme.decode_steps),
        number_text(scheme.preempted_requests),
    ]


def _table(table: tuple[int, ...]) -> str:
    return "[" + " ".join(map(str, table)) + "]"


def steps(report: PagingReport) -> list[list[str]]:
    """Return the memory at each step shown, as a bar: used, set aside, free."""
    width = 50
    found = []
    for step in report.steps:
        used = round(width * step.used_tokens / report.memory_tokens)
        aside = round(width * step.reserved_tokens / report.memory_tokens) - used
        bar = "#" * used + "-" * aside + "." * (width - used - aside)
        numbers = f"{step.running_requests} running, {step.waiting_requests} waiting"
        kept = f"{number_text(step.used_tokens)} of {number_text(step.reserved_tokens)} tokens set aside are used"
        found.append([f"{step.scheme}, step {step.place}: {numbers}; {kept}", f"  [{bar}]"])
    return found


def picture(report: PagingReport, *, plain: bool) -> str:
    """Return requests at once over steps."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for step in report.steps:
        name = "the longest length set aside" if step.scheme == "reserved" else "in blocks"
        lines.setdefault(name, []).append((step.place, step.running_requests))
    return line_chart(lines, x="steps", y="requests", plain=plain)
