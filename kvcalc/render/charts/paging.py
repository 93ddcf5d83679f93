"""The chart of ``kvcalc demo paging``: tokens held over time, with and without blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.charts.pieces import Axis, chart, line_layer

if TYPE_CHECKING:
    from kvcalc.core.reports.lessons import PagingReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]


def spec(report: PagingReport) -> Spec:
    """Return memory set aside and memory used at each step, for both ways."""
    rows = [
        {"step": step.place, "tokens": tokens, "memory": f"{step.scheme}: {what}", "running": step.running_requests}
        for step in report.steps
        for what, tokens in (("set aside", step.reserved_tokens), ("used", step.used_tokens))
    ]
    lines = line_layer(
        rows,
        x=Axis(field="step", title="decode steps", format=",~r", whole=True),
        y=Axis(field="tokens", title="tokens of memory", format=",~r"),
        series="memory",
        title="memory",
        points=False,
    )
    told = [
        f"{report.requests} requests, memory for {report.memory_tokens:,} tokens, longest {report.longest_tokens:,}",
        f"blocks of {report.block_tokens}: {report.more_requests:.1f} times as many requests at once",
        "source: kvcalc, lengths from the Azure LLM inference trace of 2023 (CC-BY)",
    ]
    return chart([lines], title="The same requests with their longest length set aside, and in blocks", subtitle=told)
