"""The tables and chart of ``kvcalc crosscheck``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.units import bytes_text, counted, flop_rate_text, number_text, rate_text, seconds_text
from kvcalc.render.layout import Text
from kvcalc.render.reports.bench import machine_text, reach_lines
from kvcalc.render.tables import facts, grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.measure import CrosscheckReport, CrosscheckRow, MeasuredSpeculation
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["parts", "sentence", "spec"]


def sentence(report: CrosscheckReport) -> str:
    """Count the checks that hold, and say how far the steps lie above their bounds."""
    passed = sum(check.passed for check in report.checks)
    text = f"{passed} of {counted(len(report.checks), 'check')} hold{'s' * (len(report.checks) == 1)}"
    if not report.rows:
        return f"{text}."
    ratios = [row.ratio for row in report.rows]
    ends = " to ".join(dict.fromkeys(f"{end:.2f}" for end in (min(ratios), max(ratios))))
    return f"{text}; measured steps take {ends} times their lower bound."


def parts(report: CrosscheckReport) -> list[Part]:
    """Return checks, steps, crossings, growth and what the estimates are worth."""
    shown: list[Part] = [heading(f"Measured: {machine_text(report)}"), *_ceilings(report), Text()]
    shown += [heading("Checks"), *_checks(report), Text()]
    shown += [heading("Decode steps: bytes"), _bytes(report), Text(), heading("Decode steps: time"), _times(report)]
    if report.loops:
        shown += [Text(), heading("Tokens in a row"), _loops(report)]
    if report.median_abs_error:
        shown += [Text(), heading("Error of the estimates"), _errors(report)]
    if report.crossings:
        shown += [Text(), heading("Smallest compute-bound batch"), _crossings(report)]
    if report.growth:
        shown += [Text(), heading("Step time per token of context"), _growth(report)]
    if report.speculation is not None:
        shown += [Text(), heading("Speculative decoding"), _speculation(report.speculation)]
    if report.calibration is not None:
        shown += [Text(), heading("Efficiency by operator"), reach_lines(report.calibration)]
    return [*shown, *note_lines(report.notes)]


def _ceilings(report: CrosscheckReport) -> list[Part]:
    hardware = report.ceilings
    peaks = ", ".join(f"{name} {flop_rate_text(rate)}" for name, rate in hardware.peak_flop_per_s.items())
    return [Text(f"ceilings of {hardware.name}: memory {rate_text(hardware.memory_bandwidth_bytes_per_s)}, {peaks}")]


def _checks(report: CrosscheckReport) -> list[Part]:
    lines: list[Part] = []
    for check in report.checks:
        mark, style = ("ok    ", "") if check.passed else ("FAILED", "bold red")
        lines.append(Text(f"{mark}  {check.name}: {check.detail}", style=style))
    return lines


def _where(row: CrosscheckRow) -> list[str]:
    variant = row.format if row.kernels == "plain" else f"{row.format}, {row.kernels}"
    return [row.model, variant, number_text(row.batch), number_text(row.context)]


def _bytes(report: CrosscheckReport) -> Part:
    rows = [
        [
            *_where(row),
            f"{row.predicted_kv_bytes:,}",
            f"{row.allocated_kv_bytes:,}",
            f"{row.predicted_weight_bytes:,}",
            f"{row.allocated_weight_bytes:,}",
            bytes_text(row.predicted_kv_bytes + row.predicted_weight_bytes),
        ]
        for row in report.rows
    ]
    columns = [
        "model",
        "format",
        "batch",
        "context",
        "KV, B",
        "KV allocated, B",
        "weights, B",
        "weights allocated, B",
        "both",
    ]
    return grid(columns, rows, left=2)


def _times(report: CrosscheckReport) -> Part:
    rows = [
        [
            *_where(row),
            seconds_text(row.bound_s),
            "-" if row.estimate_s is None else seconds_text(row.estimate_s),
            seconds_text(row.measured_s),
            f"{row.median_s / row.measured_s - 1:+.0%}",
            f"{row.ratio:.2f}",
            f"{row.serial_ratio:.2f}",
            "-" if row.estimate_error is None else f"{row.estimate_error:+.0%}",
            row.cause or ("in cache" if row.cache_resident else ""),
        ]
        for row in report.rows
    ]
    columns = [
        "model", "format", "batch", "context", "bound", "estimate", "measured", "median", "x bound", "x serial",
        "off", "reason",
    ]  # fmt: skip
    return grid(columns, rows, left=2)


def _loops(report: CrosscheckReport) -> Part:
    rows = [
        [
            loop.model,
            loop.format,
            loop.kernels,
            number_text(loop.batch),
            number_text(loop.context),
            number_text(loop.tokens),
            seconds_text(loop.bound_s),
            seconds_text(loop.measured_s),
            f"{loop.ratio:.2f}",
            f"{loop.tokens_per_s:,.1f}",
        ]
        for loop in report.loops
    ]
    columns = [
        "model", "format", "kernels", "batch", "context", "tokens", "bound", "measured", "x bound", "tokens/s",
    ]  # fmt: skip
    return grid(columns, rows, left=3)


def _errors(report: CrosscheckReport) -> Part:
    return facts(
        [
            (name, f"median {error:.1%}, p90 {report.p90_abs_error[name]:.1%}")
            for name, error in report.median_abs_error.items()
        ]
    )


def _crossings(report: CrosscheckReport) -> Part:
    rows = [
        [
            crossing.model,
            crossing.format,
            number_text(crossing.context),
            "none" if crossing.bound_batch is None else number_text(crossing.bound_batch),
            *("-" if batch is None else f"{batch:.1f}" for batch in (crossing.estimate_batch, crossing.measured_batch)),
            f"{crossing.largest_batch:,}: {crossing.largest_batch_limiter}",
        ]
        for crossing in report.crossings
    ]
    columns = ["model", "format", "context", "bound", "estimate", "measured", "largest batch: limiter"]
    return grid(columns, rows, left=2)


def _growth(report: CrosscheckReport) -> Part:
    rows = [
        [
            growth.model,
            growth.format,
            number_text(growth.batch),
            f"{growth.from_context:,} to {growth.to_context:,}",
            seconds_text(growth.bound_s_per_token),
            "-" if growth.estimate_s_per_token is None else seconds_text(growth.estimate_s_per_token),
            seconds_text(growth.measured_s_per_token),
        ]
        for growth in report.growth
    ]
    return grid(["model", "format", "batch", "context", "bound", "estimate", "measured"], rows, left=2)


def _speculation(measured: MeasuredSpeculation) -> Part:
    return facts(
        [
            (
                "target, draft",
                f"{measured.target}, {measured.draft} in {measured.format}",
                f"{measured.gamma_tokens} draft tokens per pass",
            ),
            ("acceptance", f"{measured.acceptance:.2f}", "of the verified draft tokens"),
            ("tokens per pass", f"{measured.tokens_per_pass:.2f}", f"{measured.expected_tokens_per_pass:.2f} expected"),
            ("plain step", seconds_text(measured.plain_s)),
            ("draft pass", seconds_text(measured.draft_s)),
            ("verification", seconds_text(measured.verify_s)),
            ("speed-up, measured", f"{measured.measured_speedup:.2f}"),
            ("speed-up, predicted", f"{measured.predicted_speedup:.2f}", "from that acceptance and these times"),
        ]
    )


def spec(report: CrosscheckReport) -> Spec:
    """Return points above the diagonal for the bounds, about it for the estimates."""
    from kvcalc.render.charts import Axis, chart, line_layer, point_layer

    x = Axis(field="predicted_s", title="predicted step, s", scale="log", format="~g")
    y = Axis(field="measured_s", title="measured step, s", scale="log", format="~g")
    rows: list[dict[str, Any]] = []
    for row in report.rows:
        what = {"model": row.model, "format": row.format, "batch": row.batch, "context": row.context}
        rows.append({"against": "bound", x.field: row.bound_s, y.field: row.measured_s, **what})
        if row.estimate_s is not None:
            rows.append({"against": "estimate", x.field: row.estimate_s, y.field: row.measured_s, **what})
    ends = [min(row[x.field] for row in rows), max(max(row[x.field], row[y.field]) for row in rows)] if rows else []
    diagonal = [{x.field: end, y.field: end, "line": "measured = predicted"} for end in ends]
    subtitle = [
        f"{report.title}, {report.date}",
        f"ceilings: {report.gpu}",
        f"source: kvcalc crosscheck on {report.device}",
    ]
    layers = [
        line_layer(diagonal, x=x, y=y, series="line", points=False),
        point_layer(rows, x=x, y=y, series="against", title="measured against", colour="black"),
    ]
    return chart(layers, title="Decode steps: measured against predicted", subtitle=subtitle)
