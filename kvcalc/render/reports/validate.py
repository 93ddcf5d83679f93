"""The table and chart of ``kvcalc validate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.units import counted, number_text, seconds_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import facts, grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.validate import Figures, Outcome, SourceFigures, ValidateReport
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["BOOK_COLUMNS", "COLUMNS", "book_cells", "figure_cells", "parts", "sentence", "spec"]

# What is printed of a group of records, in the order of `figure_cells`.
COLUMNS = ("records", "held", "beaten", "explained", "of bound", "scored", "fitted", "error", "p90", "|err|", "inside")
_RANKS = {"fitted": 4, "held": 3, "p90": 2, "explained": 1}
# What is printed of the estimates of a group by book, in the order of `book_cells`.
BOOK_COLUMNS = ("fitted", "|err|", "shipped", "|err|", "p90", "inside", "unseen", "|err|", "p90", "inside")
_MAX_SHOWN = 20
_SECOND_HAND = " (2nd)"
_SOURCE_WIDTH = 32
_BY_SOURCE = ("records", "beaten", "of bound", "scored", "error", "p90", "inside")


def sentence(report: ValidateReport) -> str:
    """Return whether any measurement beats its bound, and how close the estimates are."""
    whole = report.summary
    beaten, measurements = whole.bound_violations, counted(whole.held, "measurement")
    errors = [figures for figures in report.suites.values() if figures.median_abs_error is not None and figures.scored]
    text = f"{number_text(beaten) if beaten else 'None'} of {measurements} beat{'s' * (beaten < 2)} the lower bound"  # noqa: PLR2004
    if not errors:
        return f"{text}."
    low, high = (pick(figures.median_abs_error or 0.0 for figures in errors) for pick in (min, max))
    span = " to ".join(dict.fromkeys((f"{low:.1%}", f"{high:.1%}")))
    return (
        f"{text}; the median error of {number_text(whole.scored)} predictions is {span}{' by suite' * (low != high)}."
    )


def parts(report: ValidateReport) -> list[Part]:
    """Return the totals, each suite, each source, and every record that beats its bound."""
    whole = report.summary
    shown: list[Part] = [heading(f"Predictions against measurements: {report.records_file or 'shipped records'}")]
    shown.append(
        facts(
            [
                ("records", number_text(whole.records)),
                ("compared with a bound", number_text(whole.held), "or with an exact prediction"),
                ("  beat it", number_text(whole.bound_violations), "unexplained"),
                (
                    "  beat it, explained",
                    number_text(whole.explained),
                    "by a known effect, computed for each record",
                ),
                (
                    "with an estimate",
                    number_text(whole.scored),
                    "not fitted to them or their group: the errors below are of these",
                ),
                ("used in a fit", number_text(whole.fitted), "not counted in the errors"),
                ("bound only", number_text(whole.without_calibration), "no calibration applies"),
                ("without a profile", number_text(whole.without_profile), "not compared"),
                ("not usable", number_text(whole.excluded), "reasons below"),
            ]
        )
    )
    suites = [(name, *figure_cells(figures)) for name, figures in report.suites.items()]
    shown += [Text(), heading("By suite"), grid(["suite", *COLUMNS], suites, ranks=_RANKS)]
    books = [(name, *book_cells(figures)) for name, figures in report.suites.items() if figures.books]
    if books:
        title = "Estimates by kind of record: fitted, shipped but not fitted, unseen"
        shown += [Text(), heading(title), grid(["suite", *BOOK_COLUMNS], books)]
    shown += _row_parts(report)
    for suite in report.suites:
        rows = [_source_cells(entry) for entry in report.sources if entry.suite == suite]
        shown += [
            Text(),
            heading(f"{suite}, by source"),
            grid(["source", "of", *_BY_SOURCE], rows, left=2, ranks=_RANKS),
        ]
    shown += _beaten(report)
    slow = _reasons(report, "holds")
    if slow:
        shown += [Text(), heading("Why some measurements are far from the prediction"), facts(slow)]
    reasons = _reasons(report, "no profile", "excluded")
    if reasons:
        shown += [Text(), heading("Not compared"), facts(reasons)]
    return [*shown, *note_lines(report.notes)]


def book_cells(figures: Figures) -> tuple[str, ...]:
    """Return the errors of each book as text, in the order of `BOOK_COLUMNS`."""
    cells: list[str] = []
    for book in ("fitted", "shipped", "unseen"):
        figures_of_book = figures.books[book]
        cells += [f"{figures_of_book.records:,}", _percent(figures_of_book.median_abs_error)]
        if book != "fitted":
            cells += [_percent(figures_of_book.p90_abs_error), _percent(figures_of_book.interval_coverage)]
    return tuple(cells)


def _row_parts(report: ValidateReport) -> list[Part]:
    if not report.rows:
        return []
    columns = ["row", "book", "TPOT", "measured", "TTFT", "measured", "why"]
    rows = [
        (
            row.id,
            row.book,
            _seconds(row.predicted_tpot_s),
            _seconds(row.measured_tpot_s),
            _seconds(row.predicted_ttft_s),
            _seconds(row.measured_ttft_s),
            row.reason,
        )
        for row in report.rows
    ]
    return [Text(), heading("Rows"), grid(columns, rows, left=2)]


def _seconds(value: float | None) -> str:
    return "-" if value is None else seconds_text(value)


def _source_cells(entry: SourceFigures) -> tuple[str, ...]:
    cells = dict(zip(COLUMNS, figure_cells(entry.figures), strict=True))
    source = _short(entry.source, _SOURCE_WIDTH if entry.first_hand else _SOURCE_WIDTH - len(_SECOND_HAND))
    return f"{source}{'' if entry.first_hand else _SECOND_HAND}", entry.quantity, *(cells[name] for name in _BY_SOURCE)


def _short(source: str, width: int) -> str:
    """Return a long source without its owner, its repository, or its middle; ``--json`` has the whole."""
    name = source
    for mark in "/:":
        name = name if len(name) <= width else name.partition(mark)[2] or name
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[:half]}…{name[-half:]}"


def figure_cells(figures: Figures) -> tuple[str, ...]:
    """Return the figures of a group of records as text, in the order of `COLUMNS`."""
    return (
        f"{figures.records:,}",
        f"{figures.held:,}",
        f"{figures.bound_violations:,}",
        f"{figures.explained:,}",
        _percent(figures.median_share),
        f"{figures.scored:,}",
        f"{figures.fitted:,}",
        _percent(figures.median_error, signed=True),
        _percent(figures.p90_error, signed=True),
        _percent(figures.median_abs_error),
        _percent(figures.interval_coverage),
    )


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:+.1%}" if signed else f"{value:.1%}"


def _beaten(report: ValidateReport) -> list[Part]:
    shown: list[Part] = []
    unexplained = [outcome for outcome in report.outcomes if outcome.status == "violates"]
    if unexplained:
        rows = [_violation(outcome) for outcome in unexplained[:_MAX_SHOWN]]
        columns = ["record", "what", "on", "batch", "measured", "bound", "of bound"]
        shown += [Text(), Text("BOUND BEATEN, UNEXPLAINED", style="bold red"), grid(columns, rows, left=3)]
        if len(unexplained) > _MAX_SHOWN:
            shown.append(Text(f"and {len(unexplained) - _MAX_SHOWN} more; --json lists them"))
    causes = _reasons(report, "explained")
    if causes:
        shown += [Text(), heading("Bound beaten, explained by"), facts(causes)]
    return shown


def _violation(outcome: Outcome) -> tuple[str, ...]:
    on = f"{outcome.gpus} x {outcome.hardware}" if outcome.gpus > 1 else outcome.hardware
    return (
        outcome.id,
        f"{outcome.model} {outcome.quantity}".strip(),
        on,
        "-" if outcome.batch is None else f"{outcome.batch:,}",
        _amount(outcome.measured, outcome.unit),
        _amount(outcome.bound if outcome.bound is not None else outcome.estimate, outcome.unit),
        _percent(outcome.share),
    )


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return seconds_text(value) if unit == "s" else f"{number_text(value)} {unit}"


def _reasons(report: ValidateReport, *statuses: str) -> list[tuple[str, ...]]:
    """Count the records of each reason, the most frequent first."""
    counts: dict[str, int] = {}
    for outcome in report.outcomes:
        if outcome.status in statuses and outcome.reason:
            counts[outcome.reason] = counts.get(outcome.reason, 0) + 1
    return [(f"{count:,}", reason) for reason, count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))]


# How far the line reaches beyond the outermost records.
_MARGIN = 1.3


def spec(report: ValidateReport) -> Spec:
    """Return a point for each measured time over its bound, and the line that none may lie below.

    Raises:
        InputError: no record that was held against a bound.
    """
    from kvcalc.render.charts import Axis, chart, line_layer, point_layer

    x = Axis(field="bound_s", title="bound, s", scale="log")
    y = Axis(field="measured_s", title="measured, s", scale="log")
    rows: list[dict[str, Any]] = [
        {
            "suite": outcome.suite if outcome.status != "explained" else f"{outcome.suite}, bound beaten but explained",
            x.field: outcome.bound,
            y.field: outcome.measured,
            "of bound": f"{outcome.share:.0%}",
            "record": outcome.id,
            "model": outcome.model,
            "hardware": outcome.hardware,
            "cause": outcome.reason,
        }
        for outcome in report.outcomes
        if outcome.share is not None
    ]
    if not rows:
        raise InputError("no record was compared with a bound: nothing to draw")
    ends = (min(row[x.field] for row in rows) / _MARGIN, max(row[x.field] for row in rows) * _MARGIN)
    line = line_layer([{x.field: end, y.field: end} for end in ends], x=x, y=y, points=False)
    line["encoding"]["color"] = {"value": "black"}
    points = point_layer(rows, x=x, y=y, series="suite", title="suite", size=24)
    subtitle = [
        f"{counted(len(rows), 'record')}; below the line a measurement beats its bound",
        f"source: kvcalc validate, {report.records_file or 'shipped records'}",
    ]
    return chart([line, points], title="Measured over bound", subtitle=subtitle)
