"""The table of ``kvcalc sweep``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.units import bytes_text, counted, number_text, seconds_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import grid, heading, note_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.reports.sweep import SweepReport
    from kvcalc.render.layout import Part

__all__ = ["parts"]

_MAX_ROWS = 200
# Columns that a table has room for, of those that the rows have.
_SHOWN = (
    "model", "gpu", "engine", "gpus", "tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel",
    "kv_dtype", "draft", "method", "gamma", "acceptance", "accepted_length", "draft_rate",
    "replicas", "routing", "rate", "seed", "max_num_seqs", "max_num_batched_tokens", "batch", "context", "prompt",
    "tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_sequence", "ideal_s", "limiter", "fits", "max_batch",
    "max_context", "kv.total_bytes", "weights.total_bytes", "summary.ttft_s.p95", "summary.tpot_s.p95",
    "summary.output_tokens_per_s", "summary.cache_used_share", "summary.preemptions", "error",
)  # fmt: skip
# Of these, the ones that vary.
_VARIED = ("engine", "draft", "method", "gamma", "acceptance", "accepted_length", "draft_rate")
_NAMES = {
    "summary.ttft_s.p95": "TTFT p95",
    "summary.tpot_s.p95": "TPOT p95",
    "summary.output_tokens_per_s": "tokens/s",
    "summary.cache_used_share": "cache",
    "summary.preemptions": "preempted",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_gpu": "per GPU",
    "tokens_per_s_per_sequence": "per seq.",
    "ideal_s": "ideal",
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "expert_parallel": "ep",
    "data_parallel": "dp",
}


def parts(report: SweepReport) -> list[Part]:
    """Return the first rows, with the columns that matter most; the other formats print all."""
    if report.saved:
        title = f"{report.report}: {counted(report.points, 'point')} saved to {report.saved}"
        return [heading(title), *note_lines(report.notes)]
    rows = report.rows[:_MAX_ROWS]
    columns = [name for name in _SHOWN if _is_shown(name, rows)]
    cells = [[_text(name, row.get(name)) for name in columns] for row in rows]
    names = [_NAMES.get(name, name) for name in columns]
    notes = [*report.notes]
    if len(report.rows) > len(rows):
        notes.append(f"{len(report.rows) - len(rows):,} more rows; --output csv prints all, with every column")
    words = sum(isinstance(value, str) for value in (rows[0].get(name) for name in columns)) if rows else 0
    kept = "" if len(report.rows) == report.points else f", {len(report.rows):,} kept"
    return [
        heading(f"{report.report}: {counted(report.points, 'point')}{kept}"),
        grid(names, cells, left=min(words, 2)),
        *_best(report, columns),
        *note_lines(notes),
    ]


def _is_shown(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    values = {row.get(name) for row in rows}
    return len(values) > 1 if name in _VARIED else values != {None} and bool(values)


def _best(report: SweepReport, columns: list[str]) -> list[Part]:
    """Return the best point within the limits, named by what the columns show of it."""
    if not report.slo:
        return []
    if report.best is None:
        return [Text(f"NO POINT is within {report.slo}", style="bold red")]
    cells = [
        f"{_NAMES.get(name, name)} {_text(name, report.best[name])}"
        for name in columns
        if report.best.get(name) is not None
    ]
    return [Text(f"best within {report.slo}: {', '.join(cells)}", style="bold green")]


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if name.endswith("share"):
        return f"{value:.1%}"
    if name.endswith("_bytes"):
        return bytes_text(value)
    return seconds_text(value) if "_s." in name or name.endswith("ideal_s") else number_text(value)
