"""The table of ``kvcalc sweep``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.units import bytes_text, counted, number_text, seconds_text, usd_text
from kvcalc.render.tables import grid, note_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.reports.sweep import SweepReport
    from kvcalc.render.layout import Part

__all__ = ["parts", "sentence"]

_MAX_ROWS = 200
# Columns that a table has room for, of those that the rows have.
_SHOWN = (
    "model", "gpu", "engine", "gpus", "tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel",
    "kv_dtype", "draft", "method", "gamma", "acceptance", "accepted_length", "draft_rate",
    "replicas", "routing", "rate", "seed", "max_num_seqs", "max_num_batched_tokens", "batch", "context", "prompt",
    "tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_sequence", "usd_per_million_tokens", "ideal_s",
    "limiter", "fits", "max_batch", "max_context", "kv.total_bytes", "weights.total_bytes",
    "summary.ttft_s.p95", "summary.tpot_s.p95", "summary.output_tokens_per_s",
    "summary.usd_per_million_output_tokens", "summary.cache_used_share",
    "summary.preemptions", "error",
)  # fmt: skip
# Of these, what is varied, not answered.
_AXES = _SHOWN[: _SHOWN.index("prompt") + 1]
# Of these, the ones that are shown where they vary.
_VARIED = ("engine", "draft", "method", "gamma", "acceptance", "accepted_length", "draft_rate")
# Columns that give way where there is no room.
_RANKS = {"per GPU": 1, "preempted": 2, "cache": 3}
_NAMES = {
    "summary.ttft_s.p95": "TTFT p95",
    "summary.tpot_s.p95": "TPOT p95",
    "summary.output_tokens_per_s": "tokens/s",
    "summary.cache_used_share": "cache",
    "summary.preemptions": "preempted",
    "usd_per_million_tokens": "$/M",
    "summary.usd_per_million_output_tokens": "$/M out",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_gpu": "per GPU",
    "tokens_per_s_per_sequence": "per seq.",
    "ideal_s": "ideal",
    "tensor_parallel": "tp",
    "pipeline_parallel": "pp",
    "expert_parallel": "ep",
    "data_parallel": "dp",
}


# What the best row of a sweep is told by: the first of them that its rows have, and whether more is better.
_HEADLINES = {
    "tokens_per_s": ("fastest", True),
    "summary.output_tokens_per_s": ("fastest", True),
    "max_batch": ("largest", True),
    "ideal_s": ("fastest", False),
    "kv.total_bytes": ("smallest", False),
}


def sentence(report: SweepReport) -> str:
    """Count the points and name the best of them, within the limits where there are any."""
    count = f"{counted(report.points, 'point')} of {report.report}"
    if report.saved:
        return f"{count} saved to {report.saved}."
    if report.slo and report.best is None:
        return f"NO POINT of {counted(report.points, 'point')} meets {report.slo}."
    kept = "" if len(report.rows) == report.points else f", {len(report.rows):,} kept"
    columns = [name for name in _SHOWN if _is_shown(name, report.rows)]
    if report.best is not None:
        return f"{count}{kept}; the best that meets {report.slo} has {_told(report.best, columns)}."
    name = next((name for name in _HEADLINES if any(row.get(name) for row in report.rows)), "")
    if not name:
        return f"{count}{kept}."
    word, is_higher = _HEADLINES[name]
    pick = max if is_higher else min
    best = pick((row for row in report.rows if row.get(name)), key=lambda row: row[name])
    varied = [each for each in columns if len({row.get(each) for row in report.rows}) > 1 and each in _AXES]
    amount = f"{_NAMES.get(name, name)} {_text(name, best[name])}"
    return f"{count}{kept}; the {word} has {amount}{_at(best, varied)}."


def _at(row: Mapping[str, Any], names: Sequence[str]) -> str:
    point = _told(row, names)
    return f" ({point})" if point else ""


def _told(row: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(
        f"{_NAMES.get(name, name)} {_text(name, row[name])}" for name in names if row.get(name) is not None
    )


def parts(report: SweepReport) -> list[Part]:
    """Return the first rows, with the columns that matter most; the other formats print all."""
    if report.saved:
        return note_lines(report.notes)
    rows = report.rows[:_MAX_ROWS]
    columns = [name for name in _SHOWN if _is_shown(name, rows)]
    cells = [[_text(name, row.get(name)) for name in columns] for row in rows]
    names = [_NAMES.get(name, name) for name in columns]
    notes = [*report.notes]
    if len(report.rows) > len(rows):
        notes.append(f"{len(report.rows) - len(rows):,} more rows; --output csv prints all, with every column")
    words = sum(isinstance(value, str) for value in (rows[0].get(name) for name in columns)) if rows else 0
    return [
        grid(names, cells, left=min(words, 2), ranks=_RANKS),
        *note_lines(notes),
    ]


def _is_shown(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    values = {row.get(name) for row in rows}
    return len(values) > 1 if name in _VARIED else values != {None} and bool(values)


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
    if "usd_per" in name:
        return usd_text(value)
    return seconds_text(value) if "_s." in name or name.endswith("ideal_s") else number_text(value)
