"""The table of ``kvcalc simulate``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvcalc.core.units import counted, number_text, seconds_text
from kvcalc.render.layout import Text
from kvcalc.render.tables.pieces import facts, grid, heading, note_lines
from kvcalc.render.terminal import line_chart
from kvcalc.render.words import formats_text, gpus_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.reports.simulate import Capacity, ServerSetup, ServingSummary, SimulateReport
    from kvcalc.render.layout import Part

__all__ = ["parts"]

_LATENCIES = {
    "ttft_s": "to first token (TTFT)",
    "tpot_s": "per output token (TPOT)",
    "inter_token_s": "between tokens",
    "e2e_s": "to last token",
    "queue_s": "in the queue",
}
_LEAST_SLICES = 2


def parts(report: SimulateReport) -> list[Part]:
    """Return the figures of the run, its latencies, replicas, and the run over time."""
    summary = report.summary
    shown: list[Part] = [*_capacity(report.capacity)]
    shown += [
        heading(f"Serving: {report.model} on {gpus_text(report)}  ({formats_text(report.formats)})"),
        facts([("load", report.workload), *_setup(report.setup)]),
        Text(),
        _latencies(summary),
        Text(),
        facts(_figures(summary)),
    ]
    if report.replicas:
        shown += [Text(), *_replicas(report)]
    if len(report.series) >= _LEAST_SLICES:
        shown += [Text(), Text(_over_time(report))]
    return [*shown, *note_lines(report.notes)]


def _capacity(capacity: Capacity | None) -> list[Part]:
    if capacity is None:
        return []
    if not capacity.requests_per_s:
        return [Text(f"NO LOAD KEEPS {capacity.slo}", style="bold red"), Text()]
    above = "" if capacity.above_requests_per_s is None else (
        f"; at {capacity.above_requests_per_s:.4g} requests/s {capacity.broken} breaks"
    )  # fmt: skip
    told = f"KEEPS {capacity.slo} up to {capacity.requests_per_s:.4g} requests/s{above}"
    return [Text(told, style="bold green"), Text()]


def _setup(setup: ServerSetup) -> list[tuple[str, ...]]:
    cache = f"{counted(setup.num_blocks, 'block')} of {counted(setup.block_size, 'token')}"
    steps = f"{counted(setup.max_num_batched_tokens, 'token')}, {counted(setup.max_num_seqs, 'sequence')} at most"
    rows = [("cache of a replica", cache), ("a step", steps, f"time: {setup.step_times}")]
    if setup.gamma:
        drafted = f"{setup.gamma} draft tokens{f' by {setup.draft}' if setup.draft else ''}"
        rows.append(("speculation", drafted, f"accepted: {setup.acceptance:g}"))
    if setup.preemption != "recompute":
        rows.append(("preemption", setup.preemption))
    if setup.routing:
        apart = f"{setup.prefill_replicas} prefill, {setup.replicas} decode" if setup.prefill_replicas else ""
        rows.append(("replicas", apart or str(setup.replicas), setup.routing))
    return rows


def _latencies(summary: ServingSummary) -> Part:
    names = ("p50", "p90", "p95", "p99", "mean")
    rows = [[name, *(_seconds(getattr(summary, field)[each]) for each in names)] for field, name in _LATENCIES.items()]
    return grid(["time", *names], rows)


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else seconds_text(value) if value else "0 s"


def _figures(summary: ServingSummary) -> list[tuple[str, ...]]:
    refused = f"{number_text(summary.refused_requests)} can never run" if summary.refused_requests else ""
    rows: list[tuple[str, ...]] = [
        ("requests", number_text(summary.requests), refused),
        ("  per second", number_text(summary.requests_per_s), f"over {_seconds(summary.makespan_s)}"),
        ("output tokens/s", number_text(summary.output_tokens_per_s)),
        ("  per GPU", number_text(summary.output_tokens_per_s_per_gpu)),
        ("  per GiB of the GPUs", number_text(summary.output_tokens_per_s_per_gib)),
        ("prompt and output tokens/s", number_text(summary.total_tokens_per_s)),
    ]
    if summary.slo_share is not None and summary.goodput_requests_per_s is not None:
        share = f"{summary.slo_share:.1%} of the requests"
        rows.append(("goodput, requests/s", number_text(summary.goodput_requests_per_s), share))
    limits = ", ".join(f"{name or 'not told'} {share:.0%}" for name, share in summary.limiter_shares.items())
    return [
        *rows,
        (
            "running at once",
            number_text(summary.mean_running_requests),
            f"at most {number_text(summary.most_running_requests)}",
        ),
        ("cache in use", f"{summary.cache_used_share:.1%}", f"at most {summary.cache_peak_share:.1%}"),
        ("  of it without a token", "-" if summary.cache_waste_share is None else f"{summary.cache_waste_share:.1%}"),
        ("prompt tokens found in it", _hits(summary.prefix_hit_ratio)),
        ("preemptions", number_text(summary.preemptions), _recomputed(summary)),
        ("steps", number_text(summary.steps), f"{summary.busy_share:.1%} of the time"),
        ("  limited by", limits or "-"),
    ]


def _recomputed(summary: ServingSummary) -> str:
    return f"{counted(summary.recomputed_tokens, 'token')} computed again" if summary.recomputed_tokens else ""


def _replicas(report: SimulateReport) -> Sequence[Part]:
    rows = [
        [
            f"{row.replica}{f' {row.role}' if row.role else ''}",
            number_text(row.requests),
            number_text(row.output_tokens),
            f"{row.busy_share:.1%}",
            f"{row.cache_used_share:.1%}",
            _hits(row.prefix_hit_ratio),
            number_text(row.preemptions),
        ]
        for row in report.replicas
    ]
    return [grid(["replica", "requests", "tokens", "busy", "cache", "found", "preempted"], rows)]


def _over_time(report: SimulateReport) -> str:
    middle = [((row.start_s + row.end_s) / 2, row) for row in report.series]
    running = [(time_s, row.running_requests) for time_s, row in middle]
    waiting = [(time_s, row.waiting_requests) for time_s, row in middle]
    return line_chart({"running": running, "waiting": waiting}, x="s", y="requests")


def _hits(ratio: float | None) -> str:
    return "not modelled" if ratio is None else f"{ratio:.1%}"
