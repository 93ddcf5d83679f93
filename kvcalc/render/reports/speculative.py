"""The tables and chart of ``kvcalc speculate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, count_text, number_text, seconds_text
from kvcalc.render.layout import Drawing, Text
from kvcalc.render.tables import facts, figure_grid, formats_text, gpus_text, grid, heading, note_lines
from kvcalc.render.terminal import heat_map

if TYPE_CHECKING:
    from kvcalc.core.reports.speculative import MapCell, PayingRange, SpeculativeReport
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["parts", "sentence", "spec"]

_SPEEDUPS = ("expected_tokens_per_pass", "speedup", "serial_speedup", "break_even_acceptance")
_ESTIMATES = ("estimate_speedup", "estimate_low_speedup", "estimate_high_speedup")
_ROWS = ("batch", "context", "gamma", *_SPEEDUPS, "draft_ratio", "verify_ratio", "tokens_per_s", "fits")
_LENGTHS = ("gamma", "draft_tokens", *_SPEEDUPS)
_VERDICTS = {"pays": "PAYS", "may pay": "MAY PAY", "does not pay": "DOES NOT PAY"}


def sentence(report: SpeculativeReport) -> str:
    """Return whether it pays, and how much: a speed-up only of what fits."""
    where = f"batch {number_text(report.batch)}, context {number_text(report.context)}, gamma {report.gamma}"
    row = report.rows[0]
    if not row.fits:
        needed, memory = bytes_text(row.memory_needed_bytes), bytes_text(report.memory_bytes)
        largest = report.by_context[0].largest_fitting_batch
        until = f"it fits up to batch {number_text(largest)}" if largest else "no batch fits"
        return f"DOES NOT FIT: {where} needs {needed} of {memory} per GPU, plus what the engine needs; {until}."
    if report.verdict is not None and report.estimate_speedup is not None:
        return (
            f"{_VERDICTS[report.verdict]}: {report.model} decodes {_times(report.estimate_speedup)} as fast with "
            f"speculation (80%: {_interval(report)}; {where})."
        )
    if report.speedup <= 1:
        return f"DOES NOT PAY: {report.model} decodes {_times(report.speedup)} as fast with speculation ({where})."
    return (
        f"PAYS IN IDEAL TIMES: {report.model} decodes {_times(report.speedup)} as fast with speculation ({where}); "
        "engines gain less: --estimate."
    )


def parts(report: SpeculativeReport) -> list[Part]:
    """Return the numbers, rows, draft lengths, batches, quoted rules and the map over batch and acceptance."""
    drafted = f"{report.method}, {report.draft}" if report.draft else report.method
    title = f"Speculation ({drafted}): {report.model} on {gpus_text(report)}  ({formats_text(report.formats)})"
    shown: list[Part] = [
        heading(title),
        facts(_facts(report)),
    ]
    estimates = () if report.calibration is None else _ESTIMATES
    if len(report.rows) > 1:
        shown += [Text(), heading("Rows"), figure_grid(report.rows, (*_ROWS[:3], *estimates, *_ROWS[3:]))]
    shown += [
        Text(),
        heading(f"Draft lengths at batch {number_text(report.batch)}"),
        figure_grid(report.by_gamma, (*_LENGTHS[:2], *estimates[:1], *_LENGTHS[2:])),
    ]
    shown += [Text(), heading("Batches where it pays"), _limits(report)]
    shown += [Text(), heading("Rules of thumb against the exact answer"), *_rules(report)]
    shown += [
        Text(),
        heading(f"{_mapped(report)} by batch and acceptance at context {number_text(report.context)}"),
        _map(report),
    ]
    return [*shown, *note_lines(report.notes)]


def _times(value: float) -> str:
    return f"{value:.2f} times"


def _interval(report: SpeculativeReport) -> str:
    return f"{report.estimate_low_speedup:.2f} to {report.estimate_high_speedup:.2f}"


def _estimate_facts(report: SpeculativeReport) -> list[tuple[str, ...]]:
    """Return the estimate, and what a round is made of; nothing where nothing is estimated."""
    row, used = report.rows[0], report.calibration
    if used is None or report.estimate_speedup is None:
        return []
    parts = {
        "draft": row.estimate_draft_s,
        "verification": row.estimate_verify_s,
        "host": row.estimate_host_s,
    }
    made = ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in parts.items() if seconds)
    plain = "" if row.estimate_plain_s is None else seconds_text(row.estimate_plain_s)
    return [
        ("speed-up, estimate", f"{report.estimate_speedup:.3f}", f"{_interval(report)} (80%), calibration {used.name}"),
        ("  plain step", plain, f"a round: {made}"),
    ]


def _rate(value: float | None) -> str:
    return "never breaks even" if value is None else f"breaks even at {value:.3f}"


def _facts(report: SpeculativeReport) -> list[tuple[str, ...]]:
    row, memory, largest = report.rows[0], report.memory, report.largest_draft
    constant = len(set(report.acceptance)) == 1
    rates = ", ".join(f"{rate:.4g}" for rate in report.acceptance[: 1 if constant else None])
    best = f"{report.best_gamma}" if report.best_gamma else "none: plain decode is faster"
    bound = "without speculation"
    ahead, limit = bytes_text(memory.lookahead_bytes), report.by_context[0]
    fitting = f"up to {number_text(limit.largest_fitting_batch)}" if limit.largest_fitting_batch else "at no batch"
    return [
        ("acceptance", rates if constant else f"{rates} (conditional)", _rate(report.break_even_acceptance)),
        ("tokens per pass", f"{report.expected_tokens_per_pass:.3f}", f"of at most {row.gamma + 1}"),
        *_estimate_facts(report),
        ("speed-up", f"{report.speedup:.3f}", "ideal: everything overlapped"),
        ("  serial", f"{report.serial_speedup:.3f}", "without overlap"),
        ("tokens/s (upper bound)", number_text(row.tokens_per_s), f"{number_text(row.plain_tokens_per_s)} {bound}"),
        ("plain step", seconds_text(row.plain_s), ""),
        ("draft", seconds_text(row.draft_s), f"c = {row.draft_ratio:.3f} plain steps each")
        if row.draft_s
        else ("draft", "free", ""),
        ("verification", seconds_text(row.verify_s), f"v = {row.verify_ratio:.3f} plain steps, {row.verify_limiter}"),
        ("best gamma", best, "longest tried" if report.best_gamma == report.by_gamma[-1].gamma else ""),
        (
            "batches where it pays",
            _paying(limit.paying),
            f"of up to {number_text(limit.searched_batch)}; it fits {fitting}",
        ),
        (
            "largest draft that pays",
            f"c = {largest.draft_ratio:.3f}" if largest.draft_ratio else "none",
            f"{count_text(largest.parameters)} parameters in {largest.weight_format}, gamma {largest.gamma}"
            if largest.draft_ratio else "not even a free one",
        ),
        (
            "memory added",
            bytes_text(memory.total_bytes),
            f"weights {bytes_text(memory.weight_bytes)}, KV {bytes_text(memory.kv_bytes)}, draft slots {ahead}",
        ),
    ]  # fmt: skip


def _paying(ranges: tuple[PayingRange, ...]) -> str:
    """Return at which batches it pays, as ``1 to 209`` or ``1, 14 on``."""
    return ", ".join(_range(each) for each in ranges) or "never"


def _range(paying: PayingRange) -> str:
    first = number_text(paying.first_batch)
    if paying.last_batch is None:
        return "all" if paying.first_batch == 1 else f"{first} on"
    return first if paying.last_batch == paying.first_batch else f"{first} to {number_text(paying.last_batch)}"


def _limits(report: SpeculativeReport) -> Part:
    estimated = [limit.estimate_paying for limit in report.by_context]
    columns = ["context", "gamma", "ideal", "serial", "largest batch that fits"]
    if report.calibration is not None:
        columns.insert(2, "estimate, whole interval")
    rows = [
        [
            number_text(limit.context),
            "best" if limit.gamma is None else number_text(limit.gamma),
            *([] if paying is None else [_paying(paying)]),
            _paying(limit.paying),
            _paying(limit.serial_paying),
            number_text(limit.largest_fitting_batch),
        ]
        for limit, paying in zip(report.by_context, estimated, strict=True)
    ]
    return grid(columns, rows, left=0)


def _rules(report: SpeculativeReport) -> list[Part]:
    shown: list[Part] = []
    for rule in report.rules:
        speedup = "" if rule.speedup is None else f", {_times(rule.speedup)}"
        verdict = f"it {'pays' if rule.pays else 'does not pay'}{speedup}"
        shown.append(Text(f"{rule.name}: {verdict}{'' if rule.agrees else '; wrong here'}"))
        shown.append(Text(f"    {rule.why}", style="dim"))
    return shown


def _mapped(report: SpeculativeReport) -> str:
    return "Speed-up" if report.calibration is None else "Estimated speed-up"


def _shown(cell: MapCell) -> float:
    """Return the estimate where there is one, else the speed-up of ideal times."""
    return cell.speedup if cell.estimate_speedup is None else cell.estimate_speedup


def _map(report: SpeculativeReport) -> Part:
    cells = {
        (f"{cell.acceptance:g}", number_text(cell.batch)): _shown(cell) if cell.fits else None for cell in report.map
    }
    legend = "" if all(cell.fits for cell in report.map) else "\n- does not fit into memory"

    def drawn(width: int, plain: bool) -> str:  # noqa: FBT001  as `Drawing` calls it
        return heat_map(cells, across="acceptance", down="batch", middle=1.0, width=width, plain=plain) + legend

    return Drawing(drawn)


def spec(report: SpeculativeReport) -> Spec:
    """Return a cell for each batch and rate of acceptance, at the report's first context; a dash where none fits."""
    from kvcalc.render.charts import Axis, chart, heat_map

    fitting, beyond = (
        [
            {
                "batch": f"{cell.batch:,}",
                "acceptance": f"{cell.acceptance:g}",
                "speedup": _shown(cell),
                "gamma": cell.gamma,
            }
            for cell in report.map
            if cell.fits is fits
        ]
        for fits in (True, False)
    )
    field = heat_map(
        fitting,
        x=Axis(field="acceptance", title="acceptance", scale="names"),
        y=Axis(field="batch", title="batch, sequences", scale="names"),
        value=Axis(field="speedup", title="speed-up", format=".2f"),
        middle=1.0,
        without=beyond,
    )
    drafted = f"{report.method}, draft {report.draft}" if report.draft else report.method
    gammas = {cell.gamma for cell in report.map}
    times = "ideal times" if report.calibration is None else f"estimates by {report.calibration.name}"
    subtitle = [
        f"{drafted}; gamma {gammas.pop() if len(gammas) == 1 else 'the best of each cell'}; context {report.context:,}",
        f"{formats_text(report.formats)}; {times}, against plain decode: below 1 it does not pay",
        *(["–: does not fit into memory"] if beyond else []),  # noqa: RUF001
        f"source: kvcalc, profiles {report.model}{f', {report.draft}' if report.draft else ''} and {report.gpu}",
    ]
    return chart([field], title=f"Speculation: {report.model} on {gpus_text(report)}", subtitle=subtitle)
