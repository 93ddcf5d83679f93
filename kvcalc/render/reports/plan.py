"""The table of ``kvcalc plan``, and its chart on a page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.reports.simulate import SERVED_RATE, limit_text
from kvcalc.core.units import MILLISECOND, number_text, request_rate, seconds_text, usd_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import facts, grid, heading, note_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.reports.plan import DaySavings, Interval, PlanOption, PlanReport, Role
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Grid, Part

__all__ = ["parts", "sentence", "spec"]

_LEFT = 5
# Formats and dollars are told where options differ in them.
_WHERE_UNLIKE = (4, 5, 6)
# Whether times are estimates or bounds is told where some are bounds.
_TIMES = 12
_BOUND = "bound"

_COLUMNS = (
    "",
    "GPUs",
    "replicas",
    "layout",
    "formats",
    "$/h",
    "$/M out",
    "TTFT p95",
    "TPOT p95",
    "carries/s",
    "margin",
    "binds",
    "times",
)


def sentence(report: PlanReport) -> str:
    """Return the recommendation, or why there is none."""
    return report.answer if report.options else f"NO PLAN: {report.answer}"


def parts(report: PlanReport) -> list[Part]:
    """Return the options, and the command of the first."""
    if not report.options:
        return []
    first = report.options[0]
    shown: list[Part] = [
        heading(f"{report.model}, {report.workload}; {report.slo}"),
        _options(report),
        *_legend(report),
        Text(),
        facts(_facts(first)),
        Text(),
        *([] if first.prefill is None else [Text(first.prefill.command, wraps=False)]),
        Text(first.command, wraps=False),
    ]
    if report.day is not None:
        shown += [Text(), *_day(report.day)]
    shown += [Text(f"why: {line}") for line in report.why]
    shown += [Text(f"out: {line}") for line in report.reasons]
    shown += [Text(f"written: {file}") for file in report.files]
    counts = report.counts
    looked = (
        f"{counts.candidates:,} candidates: {counts.refused:,} refused by the engine, {counts.pruned:,} below a bound, "
        f"{counts.ranked:,} estimated, {counts.simulated} simulated"
    )
    return [*shown, *note_lines((looked, *first.notes, *report.notes))]


def _options(report: PlanReport) -> Grid:
    """Return a row for each option; a column in which all are alike is left out."""
    columns = list(zip(*(_row(option) for option in report.options), strict=True))
    kept = [index for index, cells in enumerate(columns) if _is_told(index, set(cells))]
    rows = [[columns[index][row] for index in kept] for row in range(len(report.options))]
    left = sum(index < _LEFT for index in kept)
    return grid([_COLUMNS[index] for index in kept], rows, left=left)


def _is_told(index: int, cells: set[str]) -> bool:
    if index == _TIMES:
        return _BOUND in cells
    return index not in _WHERE_UNLIKE or len(cells) > 1


def _legend(report: PlanReport) -> list[Part]:
    """Return the meaning of the star, and of a bound where there is one."""
    star = "* no other option is better in price, TTFT and TPOT together"
    bounds = [not option.calibration for option in report.options]
    outrun = any(option.binds == SERVED_RATE for option in report.options)
    faster = [Text(f"{limit_text(SERVED_RATE)}: above it requests come faster than they are served")] if outrun else []
    if not any(bounds):
        return [Text(star), *faster]
    alike = "" if all(bounds) else "; a bound is not taken to be better than an estimate"
    bound = Text("bound: the card has no calibration, and a real run takes longer")
    return [Text(f"{star}{alike}"), *faster, bound]


def _layout(replica: PlanOption | Role) -> str:
    return " ".join(f"{name}{size}" for name, size in replica.parallel_sizes.items()) or "TP1"


def _row(option: PlanOption) -> list[str]:
    layout = _layout(option) if option.prefill is None else f"{_layout(option.prefill)}+{_layout(option)}"
    drafted = f" +{option.draft or 'ngram'}" if option.gamma else ""
    return [
        f"{option.rank}{'*' if option.pareto else ''}",
        option.rented,
        str(option.replicas) if option.prefill is None else f"{option.prefill.replicas}+{option.replicas}",
        f"{option.engine} {layout}{drafted}",
        f"{option.weights}, KV {option.kv_dtype}",
        "-" if option.usd_per_hour is None else f"{option.usd_per_hour:,.2f}",
        "-" if option.usd_per_million_output_tokens is None else usd_text(option.usd_per_million_output_tokens),
        seconds_text(option.ttft_p95_s),
        seconds_text(option.tpot_p95_s),
        ("" if option.binds else "at least ") + number_text(option.capacity_requests_per_s),
        f"{option.margin:.0%}",
        limit_text(option.binds) or "-",
        "estimate" if option.calibration else _BOUND,
    ]


def _facts(option: PlanOption) -> Iterator[tuple[str, ...]]:
    """Yield the figures of the first option."""
    yield (
        "load",
        request_rate(option.load_requests_per_s),
        f"{option.mean_running_requests:.0f} running on a replica",
    )
    for name, latency in (("TTFT", option.ttft_s), ("TPOT", option.tpot_s), ("end to end", option.e2e_s)):
        values = ", ".join(f"{each} {seconds_text(latency[each])}" for each in ("p50", "p95", "p99"))
        yield (
            name,
            values,
            _interval(
                option.ttft_p95_interval if name == "TTFT" else option.tpot_p95_interval if name == "TPOT" else None
            ),
        )
    if option.holds_at_high_end is not None:
        yield "at the interval's high end", "the limits hold" if option.holds_at_high_end else "a limit breaks"
    if option.usd_per_hour is not None and option.usd_per_month is not None:
        yield "price", f"{usd_text(option.usd_per_hour)} an hour", f"{usd_text(option.usd_per_month)} a month"
    tokens = option.usd_per_million_tokens
    if tokens is not None:
        cached = "" if tokens.cached_usd is None else f", cached {usd_text(tokens.cached_usd)}"
        yield (
            "a million tokens",
            f"input {usd_text(tokens.input_usd)}{cached}, output {usd_text(tokens.output_usd)}",
            "by the time that steps spend on them",
        )
    if option.cheaper_than_api_from_requests_per_s is not None:
        yield "cheaper than the API", f"from {request_rate(option.cheaper_than_api_from_requests_per_s)} on"


def _interval(interval: Interval | None) -> str:
    return (
        ""
        if interval is None or math.isnan(interval.low_s)
        else f"p95 {seconds_text(interval.low_s)} to {seconds_text(interval.high_s)} (80% interval)"
    )


def _day(day: DaySavings) -> list[Part]:
    rows = [
        [
            f"{int(row.start_s // 3600):02d}:{int(row.start_s % 3600 // 60):02d}",
            number_text(row.requests_per_s),
            str(row.replicas),
            str(row.gpus),
        ]
        for row in day.rows
    ]
    saved = (
        f"autoscaling: {day.valley_gpus} to {day.peak_gpus} GPUs, {day.gpu_hours:.0f} instead of "
        f"{day.fixed_gpu_hours:.0f} GPU-hours, {day.saved_share:.0%} saved with a cold start of "
        f"{seconds_text(day.cold_start_s)}"
    )
    return [heading(saved), grid(("from", "requests/s", "replicas", "GPUs"), rows, left=1)]


def spec(report: PlanReport) -> Spec:
    """Return a point for each option over its price, or its accelerators where none is given, and its time per token.

    Raises:
        InputError: a plan without an option.
    """
    from kvcalc.render.charts import Axis, chart, point_layer

    if not report.options:
        raise InputError("without an option there is nothing to draw")
    priced = all(option.usd_per_hour is not None for option in report.options)
    x = Axis(field="usd_per_hour", title="$/h") if priced else Axis(field="gpus", title="GPUs", whole=True)
    y = Axis(field="tpot_p95_ms", title="TPOT p95, ms")
    rows = [
        {
            x.field: option.usd_per_hour if priced else option.gpus,
            y.field: option.tpot_p95_s / MILLISECOND,
            "option": f"{option.rented}, TP {option.tensor_parallel}",
            "TTFT p95, ms": round(option.ttft_p95_s / MILLISECOND, 1),
            "carries, requests/s": round(option.capacity_requests_per_s, 2),
            "binds": limit_text(option.binds) or "nothing found",
            "front": "no other is better in all" if option.pareto else "another is better in all",
        }
        for option in report.options
    ]
    layer = point_layer(rows, x=x, y=y, series="front", title="price, TTFT and TPOT", size=120)
    subtitle = [f"limits: {report.slo}", f"source: kvcalc plan, profile {report.model}"]
    return chart([layer], title=f"Ways to serve {report.model}", subtitle=subtitle, height=260)
