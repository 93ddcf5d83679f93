"""The table of ``kvcalc solve``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, counted, number_text, rate_text, seconds_text, usd_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import engine_text, facts, formats_text, gpus_text, grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.solve import SolveConstraint, SolveReport, SolveRow
    from kvcalc.render.layout import Part

__all__ = ["parts", "sentence"]

_NAMES = {
    "batch": "batch",
    "context": "context",
    "gpus": "GPUs",
    "bandwidth": "memory bandwidth",
    "price": "price per GPU-hour",
    "acceptance": "acceptance",
    "speedup": "speed-up",
    "memory_bytes": "KV-cache memory",
    "tokens_per_s": "tokens/s",
    "tokens_per_s_per_sequence": "tokens/s per sequence",
    "ttft_s": "TTFT",
    "usd_per_million_tokens": "cost per 1M tokens",
}


def parts(report: SolveReport) -> list[Part]:
    """Return the answer, what it is made of, and the constraints with the one that binds."""
    row = report.rows[0]
    where = f" on {row.gpus} x {row.gpu}" if row.gpu else ""
    title = f"{row.model}{where}, {engine_text(report.engine)}  ({formats_text(report.formats)})"
    return [
        heading(title),
        facts(_facts(row)),
        *_constraints(row),
        *note_lines(report.notes),
    ]


_UNITS = {"batch": "sequences", "context": "tokens"}


def sentence(report: SolveReport) -> str:
    """Return the value of what was left open, and what limits it; what does not fit is said first."""
    row = report.rows[0]
    name, warning = _NAMES[row.unknown], ""
    if not row.fits and not any(constraint.quantity == "memory_bytes" for constraint in row.constraints):
        warning = f"DOES NOT FIT: {row.misfit}. The answer is hypothetical: "
    if row.answer is None:
        return f"{warning}NO ANSWER for the {name} of {row.model}: {_in_words(row.reason)}."
    extreme = "highest" if row.unknown == "price" else row.extreme
    asked = [f"batch {number_text(row.batch)}"] * (row.unknown != "batch")
    asked += [f"context {number_text(row.context)}"] * (row.unknown != "context")
    where = f" on {gpus_text(row)}" if row.gpu and row.unknown != "gpus" else ""
    amount = f"{_amount(row.unknown, row.answer)} {_UNITS.get(row.unknown, '')}".rstrip()
    cards = f" ({gpus_text(row)})" if row.unknown == "gpus" else ""
    verb = "are" if row.unknown == "gpus" else "is"
    at = f" at {', '.join(asked)}"
    return f"{warning}The {extreme} {name} for {row.model}{where}{at} {verb} {amount}{cards}."


def _in_words(reason: str) -> str:
    """Return a reason with the table's own names of the quantities."""
    if reason == "context_limit":
        return "the model's limit, or --max-model-len"
    for quantity in sorted(_NAMES, key=len, reverse=True):
        if "_" in quantity:
            reason = reason.replace(quantity, _NAMES[quantity])
    return reason


def _amount(quantity: str, value: float) -> str:
    if quantity == "bandwidth":
        return rate_text(value)
    if quantity in ("price", "usd_per_million_tokens"):
        return usd_text(value)
    if quantity == "memory_bytes":
        return bytes_text(value)
    if quantity == "acceptance":
        return f"{value:.4g}"
    return seconds_text(value) if quantity == "ttft_s" else number_text(value)


def _facts(row: SolveRow) -> list[tuple[str, ...]]:
    sizes = {"tensor": row.tensor, "pipeline": row.pipeline, "expert": row.expert, "data": row.data}
    spread = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    rows: list[tuple[str, ...]] = [
        ("batch, context", f"{number_text(row.batch)} x {counted(row.context, 'token')}"),
        ("GPUs", number_text(row.gpus), spread),
    ]
    if row.tokens_per_s is not None and row.tokens_per_s_per_sequence is not None:
        rows.append(
            (
                "tokens/s (upper bound)",
                number_text(row.tokens_per_s),
                "" if row.fits else "hypothetical: it does not fit",
            )
        )
        rows.append(("  per sequence", number_text(row.tokens_per_s_per_sequence)))
    if row.usd_per_million_tokens is not None:
        rows.append(("cost per 1M tokens (lower bound)", usd_text(row.usd_per_million_tokens)))
    if row.expected_tokens_per_pass is not None:
        length = f"{row.expected_tokens_per_pass:.4g}"
        rows.append(("accepted length", length, f"tokens per pass, gamma {row.gamma}"))
    if row.answer is not None:
        rows.append(("limited by", _in_words(row.reason)))
    return rows


def _constraints(row: SolveRow) -> list[Part]:
    if not row.constraints:
        return []
    there = "on fewer GPUs" if row.unknown == "gpus" else "next step" if row.answer is not None else "further"
    rows = [
        [
            _NAMES[constraint.quantity],
            f"{constraint.relation} {_amount(constraint.quantity, constraint.target)}",
            _cell(constraint, constraint.reached),
            _further(constraint),
            "binds" if constraint.binds else "",
        ]
        for constraint in row.constraints
    ]
    return [Text(), grid(["constraint", "limit", "here", there, ""], rows)]


def _cell(constraint: SolveConstraint, value: float | None) -> str:
    return "-" if value is None else _amount(constraint.quantity, value)


def _further(constraint: SolveConstraint) -> str:
    """Return the value one step further, with the bound there where it is another."""
    value = _cell(constraint, constraint.beyond)
    if constraint.beyond_target in (None, constraint.target):
        return value
    return f"{value}, {constraint.relation} {_cell(constraint, constraint.beyond_target)}"
