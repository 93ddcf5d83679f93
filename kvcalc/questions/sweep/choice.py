"""Choices from a sweep: the front of speed for one against speed for all, and the best point within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.plan.sweep import pareto_front

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.simulate.metrics import Limit

    Row = Mapping[str, Any]

__all__ = ["best_row", "check_choice", "front_rows"]

# Reports whose points have both speeds: tokens/s of a sequence, and of an accelerator.
_REPORTS = ("decode", "simulate")


def check_choice(report: str, slo: str | None) -> None:
    """Refuse what cannot be chosen by, before anything is computed.

    Raises:
        InputError: a report without these speeds, or limits that it says nothing of.
    """
    from kvcalc.simulate.metrics import parse_slo

    if report not in _REPORTS:
        raise InputError(f"{report} has no two speeds to choose by", hint=f"reports: {', '.join(_REPORTS)}")
    foreign = [str(limit) for limit in parse_slo(slo) if limit.latency != "tpot"] if slo and report == "decode" else []
    if foreign:
        raise InputError(f"slo: decode says nothing of {foreign[0]}", hint="limit tpot_p95, or add --report simulate")


def front_rows(report: str, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows that no other beats in both speeds, the fastest for one sequence first."""
    able = [row for row in rows if _speeds(report, row) is not None]
    return tuple(able[place] for place in pareto_front([_speeds(report, row) or (0.0, 0.0) for row in able]))


def best_row(report: str, rows: Sequence[Row], slo: str) -> Row | None:
    """Return the row with the most tokens/s of an accelerator among those within limits; none where none is.

    Args:
        report: the report of the rows.
        rows: rows of a sweep; those that do not fit are passed over.
        slo: limits such as ``tpot_p95=50ms``. In a decode step every sequence waits alike: its statistics are one.
    """
    from kvcalc.simulate.metrics import parse_slo

    limits = parse_slo(slo)
    kept = [(speeds, row) for row in rows if (speeds := _speeds(report, row)) and _within(report, row, limits)]
    return max(kept, key=lambda pair: (pair[0][1], pair[0][0]))[1] if kept else None


def _speeds(report: str, row: Row) -> tuple[float, float] | None:
    """Return tokens/s of a sequence and of an accelerator; none where a point has no answer or does not fit."""
    if row.get("error") is not None:
        return None
    if report == "decode":
        return (row["tokens_per_s_per_sequence"], row["tokens_per_s_per_gpu"]) if row["fits"] else None
    tpot_s = row.get("summary.tpot_s.p50")
    return (1 / tpot_s, row["summary.output_tokens_per_s_per_gpu"]) if tpot_s else None


def _within(report: str, row: Row, limits: Sequence[Limit]) -> bool:
    return all((found := _latency(report, row, limit)) is not None and found <= limit.most_s for limit in limits)


def _latency(report: str, row: Row, limit: Limit) -> float | None:
    if report == "decode":
        return float(1 / row["tokens_per_s_per_sequence"])
    return row.get(f"summary.{limit.latency}_s.{limit.statistic}")
