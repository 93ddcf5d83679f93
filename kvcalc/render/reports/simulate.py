"""The tables and charts of ``kvcalc simulate``."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from kvcalc.core.reports.simulate import SERVED_RATE
from kvcalc.core.units import counted, number_text, request_rate, seconds_text, usd_text
from kvcalc.render.layout import Drawing, Text
from kvcalc.render.tables import facts, figure_grid, formats_text, gpus_text, grid, heading, note_lines
from kvcalc.render.terminal import line_chart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from kvcalc.core.reports.simulate import Capacity, ServerSetup, ServingSummary, SimulateReport, StepsReport
    from kvcalc.render.charts import Axis, Spec
    from kvcalc.render.layout import Part

__all__ = ["parts", "sentence", "spec", "steps_parts", "steps_sentence"]

_LATENCIES = {
    "ttft_s": "TTFT (first token)",
    "tpot_s": "TPOT (per output token)",
    "inter_token_s": "ITL (between tokens)",
    "e2e_s": "E2E (last token)",
    "queue_s": "queue",
}
_MIN_SLICES = 2
_LOADS = ("load", "ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s")


def sentence(report: SimulateReport) -> str:
    """Return throughput and latencies, after the highest load where it was searched for."""
    summary = report.summary
    rate, tokens = request_rate(summary.requests_per_s), number_text(summary.output_tokens_per_s)
    ttft, tpot = _seconds(summary.ttft_s["p95"]), _seconds(summary.tpot_s["p95"])
    text = f"{report.model} on {gpus_text(report)} serves {rate} ({tokens} output tokens/s)"
    text += f" at p95 TTFT {ttft} and p95 TPOT {tpot}."
    if report.loads:
        together, apart = (_seconds(row.ttft_s) for row in report.loads)
        text += f" Mean TTFT is {apart} to {together}, as users begin apart or together."
    return f"{_capacity(report.capacity)}{text}"


def parts(report: SimulateReport) -> list[Part]:
    """Return the figures of the run, its latencies, replicas, and the run over time."""
    summary = report.summary
    shown: list[Part] = [
        heading(f"Serving: {report.model} on {gpus_text(report)}  ({formats_text(report.formats)})"),
        facts([("load", report.workload), *_setup(report.setup)]),
        Text(),
        _latencies(summary),
        Text(),
        facts(_figures(summary)),
    ]
    if report.loads:
        shown += [Text(), heading("Users who begin together or apart"), figure_grid(report.loads, _LOADS)]
    if report.replicas:
        shown += [Text(), *_replicas(report)]
    if len(report.series) >= _MIN_SLICES:
        shown += [Text(), Drawing(partial(_over_time, report))]
    return [*shown, *note_lines(report.notes)]


def _capacity(capacity: Capacity | None) -> str:
    if capacity is None:
        return ""
    if not capacity.requests_per_s:
        return f"NO LOAD MEETS {capacity.slo}. At the lowest rate tried, "
    what = f"it misses {capacity.broken}"
    if capacity.broken == SERVED_RATE:
        what = "requests come faster than they are served"
    above = capacity.above_requests_per_s
    beyond = "" if above is None else f"; at {request_rate(above, '.4g')} {what}"
    return f"MEETS {capacity.slo} up to {request_rate(capacity.requests_per_s, '.4g')}{beyond}. There, "


def _setup(setup: ServerSetup) -> list[tuple[str, ...]]:
    cache = f"{counted(setup.num_blocks, 'block')} of {counted(setup.block_size, 'token')}"
    steps = f"{counted(setup.max_num_batched_tokens, 'token')}, {counted(setup.max_num_seqs, 'sequence')}"
    rows = [("KV cache per replica", cache), ("step limits", steps, f"time: {setup.step_times}")]
    if setup.gamma:
        drafted = f"{setup.gamma} draft tokens{f' by {setup.draft}' if setup.draft else ''}"
        rows.append(("speculation", drafted, f"acceptance: {setup.acceptance:g}"))
    if setup.preemption != "recompute":
        rows.append(("preemption", setup.preemption))
    if setup.routing:
        apart = f"{setup.prefill_replicas} prefill, {setup.replicas} decode" if setup.prefill_replicas else ""
        rows.append(("replicas", apart or str(setup.replicas), setup.routing))
    return rows


def _latencies(summary: ServingSummary) -> Part:
    names = ("p50", "p90", "p95", "p99", "mean")
    rows = [[name, *(_seconds(getattr(summary, field)[each]) for each in names)] for field, name in _LATENCIES.items()]
    return grid(["latency", *names], rows)


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else seconds_text(value) if value else "0 s"


def _figures(summary: ServingSummary) -> list[tuple[str, ...]]:
    refused = f"{number_text(summary.refused_requests)} can never run" if summary.refused_requests else ""
    rows: list[tuple[str, ...]] = [
        ("requests", number_text(summary.requests), refused),
        ("  per second", number_text(summary.requests_per_s), f"over {_seconds(summary.makespan_s)}"),
        ("output tokens/s", number_text(summary.output_tokens_per_s)),
        ("  per GPU", number_text(summary.output_tokens_per_s_per_gpu)),
        ("  per GiB of GPU memory", number_text(summary.output_tokens_per_s_per_gib)),
        ("prompt and output tokens/s", number_text(summary.total_tokens_per_s)),
    ]
    if summary.usd_per_million_output_tokens is not None:
        rows.append(("a million output tokens", usd_text(summary.usd_per_million_output_tokens), "at this load"))
    if summary.slo_share is not None and summary.goodput_requests_per_s is not None:
        share = f"{summary.slo_share:.1%} of requests"
        rows.append(("goodput, requests/s", number_text(summary.goodput_requests_per_s), share))
    limits = ", ".join(f"{name or 'unknown'} {share:.0%}" for name, share in summary.limiter_shares.items())
    return [
        *rows,
        (
            "running requests",
            number_text(summary.mean_running_requests),
            f"peak {number_text(summary.most_running_requests)}",
        ),
        ("KV cache in use", f"{summary.cache_used_share:.1%}", f"peak {summary.cache_peak_share:.1%}"),
        ("  of it wasted", "-" if summary.cache_waste_share is None else f"{summary.cache_waste_share:.1%}"),
        ("prefix-cache hits", _hits(summary.prefix_hit_ratio)),
        ("preemptions", number_text(summary.preemptions), _recomputed(summary)),
        ("steps", number_text(summary.steps), f"{summary.busy_share:.1%} of the time"),
        ("  limited by", limits or "-"),
    ]


def _recomputed(summary: ServingSummary) -> str:
    return f"{counted(summary.recomputed_tokens, 'token')} recomputed" if summary.recomputed_tokens else ""


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
    return [grid(["replica", "requests", "tokens", "busy", "KV cache", "hits", "preempted"], rows)]


def _over_time(report: SimulateReport, width: int, plain: bool) -> str:  # noqa: FBT001  as `Drawing` calls it
    middle = [((row.start_s + row.end_s) / 2, row) for row in report.series]
    running = [(time_s, row.running_requests) for time_s, row in middle]
    waiting = [(time_s, row.waiting_requests) for time_s, row in middle]
    return line_chart({"running": running, "waiting": waiting}, x="s", y="requests", plain=plain, width=width)


def _hits(ratio: float | None) -> str:
    return "not modelled" if ratio is None else f"{ratio:.1%}"


_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "inter_token": "ITL", "e2e": "E2E"}  # fmt: skip
_HEIGHT = 180
_MIN_S = 1e-6


def spec(report: SimulateReport) -> Spec:
    """Return four charts, one below the other."""
    from kvcalc.render.charts import Axis, chart

    time = Axis(field="time_s", title="time, s", format=",~r")
    over_time = [
        (
            _series_rows(report, {"running_requests": "running", "waiting_requests": "waiting"}),
            "requests",
            "Concurrent requests",
            "linear",
        ),
        (_series_rows(report, {"cache_used_share": "cache"}), "share of the blocks", "KV cache in use", "linear"),
        (_series_rows(report, {"ttft_s": "TTFT", "inter_token_s": "ITL"}), "s", "Latency", "log"),
    ]
    subtitle = [
        f"{report.workload}; {formats_text(report.formats)}; step times: {report.setup.step_times}",
        f"source: kvcalc simulate, profiles {report.model} and {report.gpu}",
    ]
    charts = [_panel(rows, time, y, title, scale) for rows, y, title, scale in over_time]
    charts.append(_panel(_distribution(report), Axis(field="time_s", title="latency, s", scale="log", format=",~r"),
                         "percent of requests or tokens", "Latency distribution", "linear"))  # fmt: skip
    whole = chart([], title=f"Serving: {report.model} on {gpus_text(report)}", subtitle=subtitle)
    for name in ("layer", "width", "height"):
        del whole[name]
    return whole | {"vconcat": charts, "resolve": {"scale": {"color": "independent", "strokeDash": "independent"}}}


def _panel(rows: list[Mapping[str, Any]], x: Axis, y: str, title: str, scale: Any) -> Spec:
    from kvcalc.render.charts import Axis, chart, line_layer

    up = Axis(field="value", title=y, scale=scale, format=",~r")
    panel = chart([line_layer(rows, x=x, y=up, series="what", title="", points=False)], title=title, height=_HEIGHT)
    del panel["$schema"], panel["config"]
    return panel


def _series_rows(report: SimulateReport, fields: Mapping[str, str]) -> list[Mapping[str, Any]]:
    return [
        {"time_s": (row.start_s + row.end_s) / 2, "value": getattr(row, field), "what": name}
        for field, name in fields.items()
        for row in report.series
        if getattr(row, field) is not None
    ]


def _distribution(report: SimulateReport) -> list[Mapping[str, Any]]:
    return [
        {"time_s": value_s, "value": percent, "what": name}
        for field, name in _NAMES.items()
        for percent, value_s in enumerate(report.percentiles_s[field], 1)
        if value_s > _MIN_S  # NaN is not
    ]


_MAX_STEPS = 40


def steps_sentence(report: StepsReport) -> str:
    """Count the steps that were replayed and the requests that finished."""
    totals, of = report.totals, f" of {report.name}" if report.name else ""
    finished, preempted = totals.get("finished", 0), totals.get("preemptions", 0)
    ended = f"{counted(finished, 'request')} finished, {counted(preempted, 'preemption')}"
    return f"Replayed {counted(len(report.steps), 'step')}{of}: {ended}."


def steps_parts(report: StepsReport) -> list[Part]:
    """Return the totals, and a row for each step in which something but decoding happened."""
    eventful = [step for step in report.steps if _eventful(step)]
    rows = [
        [
            number_text(step["step"]),
            number_text(sum(step["scheduled"].values())),
            number_text(step["running"]),
            number_text(step["waiting"]),
            number_text(step["free_blocks_end"]),
            " ".join(_events(step)),
        ]
        for step in eventful[:_MAX_STEPS]
    ]
    left = len(eventful) - len(rows)
    more = [Text(f"and {number_text(left)} more; --output csv or --json lists every step")] if left else []
    totals = ", ".join(f"{name.replace('_', ' ')} {number_text(value)}" for name, value in report.totals.items())
    columns = ["step", "tokens", "running", "waiting", "free blocks", "events"]
    return [
        heading(f"Steps of {report.name}" if report.name else "Steps"),
        Text(totals),
        grid(columns, rows, left=5),
        *more,
        *note_lines(report.notes),
    ]


def _eventful(step: Mapping[str, Any]) -> bool:
    return any(step[name] for name in ("new", "resumed", "preempted", "finished"))


def _events(step: Mapping[str, Any]) -> list[str]:
    signs = {"new": "+", "resumed": "^", "preempted": "!", "finished": "-"}
    return [sign + name for kind, sign in signs.items() for name in step[kind]]
