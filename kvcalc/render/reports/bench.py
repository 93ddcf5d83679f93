"""The tables and chart of ``kvcalc bench``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, flop_rate_text, number_text, rate_text, seconds_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import facts, grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.calibration import Calibration, Reach
    from kvcalc.core.reports.measure import BenchReport, BenchRow
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["machine_text", "parts", "reach_lines", "sentence", "spec"]


def machine_text(report: object) -> str:
    """Return the device, threads, versions and day of a measurement."""
    threads = getattr(report, "threads", 0)
    versions = getattr(report, "versions", {})
    details = [f"{threads} threads"] if threads else []
    details += [f"{name} {version}" for name, version in versions.items()]
    return f"{getattr(report, 'title', '')}  ({', '.join([*details, getattr(report, 'date', '')])})"


def sentence(report: BenchReport) -> str:
    """Return the bandwidth and the peaks that the device reaches."""
    peaks = [f"{flop_rate_text(rate)} in {name}" for name, rate in report.hardware.peak_flop_per_s.items()]
    bandwidth = rate_text(report.hardware.memory_bandwidth_bytes_per_s)
    return f"{report.title} reaches {', '.join([f'{bandwidth} of memory bandwidth', *peaks])}."


def parts(report: BenchReport) -> list[Part]:
    """Return ceilings, benchmarks and the calibration."""
    ceilings: list[tuple[str, ...]] = [
        ("memory bandwidth", rate_text(report.hardware.memory_bandwidth_bytes_per_s), "fastest stream")
    ]
    if report.weight_read_bytes_per_s is not None:
        remark = "read once; --host-bandwidth takes it" if report.device == "cpu" else "read once"
        ceilings.append(("weights", rate_text(report.weight_read_bytes_per_s), remark))
    ceilings += [
        (f"peak {name}", flop_rate_text(rate), "fastest matrix multiplication")
        for name, rate in report.hardware.peak_flop_per_s.items()
    ]
    shown: list[Part] = [heading(f"Measured: {machine_text(report)}"), facts(ceilings), Text()]
    groups = (
        ("Streams through memory", ("read", "write", "copy")),
        ("Matrices", ("matrix",)),
        ("Attention over a cache", ("attention",)),
    )
    for title, kinds in groups:
        rows = [row for row in report.rows if row.kind in kinds]
        if rows:
            shown += [heading(title), _table(rows), Text()]
    if report.calibration is not None:
        shown += [heading("Efficiency by operator"), reach_lines(report.calibration)]
    return [*shown, *note_lines(report.notes)]


def _table(rows: list[BenchRow]) -> Part:
    lines = [
        [
            row.kind if row.kind == row.name else f"{row.kind}: {row.name}",
            row.format,
            "" if row.batch is None else number_text(row.batch),
            "" if row.context is None else number_text(row.context),
            bytes_text(row.working_set_bytes),
            seconds_text(row.measured_s),
            f"{row.median_s / row.measured_s - 1:+.0%}",
            "" if row.bytes_per_s is None else rate_text(row.bytes_per_s),
            "" if not row.flop or row.flop_per_s is None else flop_rate_text(row.flop_per_s),
            "" if row.ratio is None else f"{row.ratio:.2f}",
        ]
        for row in rows
    ]
    columns = ["benchmark", "format", "batch", "context", "set", "time", "median", "bytes/s", "FLOP/s", "x bound"]
    return grid(columns, lines, left=2, ranks={"median": 3, "context": 2, "batch": 1})


def reach_lines(calibration: Calibration) -> Part:
    """Return the parameters of a calibration."""
    rows: list[tuple[str, ...]] = [(name, _reached(reach)) for name, reach in calibration.reach.items() if ":" in name]
    rows += [
        ("overhead per layer", seconds_text(calibration.layer_s)),
        ("overhead per step", seconds_text(calibration.step_s)),
    ]
    return facts(rows)


def _reached(reach: Reach) -> str:
    shares = f"{reach.bandwidth_share:.0%} of bandwidth, {reach.flop_share:.0%} of peak"
    return f"{shares}, at least {reach.sum_share:.0%} of their sum, {seconds_text(reach.call_s)} per call"


def spec(report: BenchReport) -> Spec:
    """Return a line for each way to stream through memory, over working sets from those that caches hold."""
    from kvcalc.render.charts import Axis, chart, line_layer

    x = Axis(field="working_set_bytes", title="working set, B", scale="log")
    y = Axis(field="bytes_per_s", title="bytes moved, B/s")
    rows = [
        {"stream": f"{row.kind}: {row.name}", x.field: row.working_set_bytes, y.field: row.bytes_per_s}
        for row in report.rows
        if row.kind in ("read", "write", "copy")
    ]
    rows.sort(key=lambda row: (str(row["stream"]), float(row[x.field] or 0)))
    subtitle = [f"{report.title}, {report.date}", f"source: kvcalc bench on {report.device}"]
    return chart(
        [line_layer(rows, x=x, y=y, series="stream", title="stream")], title="Bandwidth reached", subtitle=subtitle
    )
