"""The table and chart of ``kvcalc fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.units import bytes_text, counted, number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import engine_text, facts, formats_text, gpus_text, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.fit import Budget, FitReport
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["parts", "sentence", "spec"]


def sentence(report: FitReport) -> str:
    """Return whether it fits, and how full the cache is or why it does not."""
    asked = f"{number_text(report.batch)} x {counted(report.context, 'token')}"
    where = f"{report.model}{_where(report)}, {engine_text(report.engine)}"
    if not report.fits:
        return f"DOES NOT FIT: {where}, {asked}: {report.reason}.{_remedy(report)}"
    room = f"{bytes_text(report.reserved_kv_bytes)} of {bytes_text(report.kv_bytes_available)} of KV cache per GPU"
    return f"FITS: {where}, {asked}: {room}."


def _remedy(report: FitReport) -> str:
    """Return the smallest change that would make it fit: a shorter limit, else more GPUs."""
    if report.max_context and not report.max_batch and report.max_context >= report.context:
        return f" {_length_flag(report)} {report.max_context} would fit."
    other = report.practical or report.smallest
    return f" {counted(other.gpus, 'GPU')} would hold it: {other.flags}." if other and other.gpus > report.gpus else ""


def _length_flag(report: FitReport) -> str:
    return "--ctx-size" if report.engine.startswith("llama.cpp") else "--max-model-len"


def _where(report: FitReport) -> str:
    spread = f" ({report.layout})" if report.layout else ""
    return f" on {report.gpus} x {report.gpu}{spread}" if report.gpu else f" on {counted(report.gpus, 'GPU')}{spread}"


def parts(report: FitReport) -> list[Part]:
    """Return the memory budget per GPU, and what else would fit."""
    started = f"{engine_text(report.engine)}{_drafted(report)}"
    title = f"{report.model}{_where(report)}, {started}  ({formats_text(report.formats)})"
    shown: list[Part] = [heading(title)]
    if report.budget is not None:
        shown += [facts(_budget(report.budget)), Text()]
    assumed = (report.assumed,) if report.assumed else ()
    return [*shown, facts(_capacity(report)), *note_lines((*assumed, *report.notes))]


def _drafted(report: FitReport) -> str:
    return f", {report.method} drafts {report.gamma}" if report.method else ""


def _budget(budget: Budget) -> list[tuple[str, ...]]:
    usable = budget.utilization * budget.memory_bytes
    percent = f"{100 * budget.utilization:.1f}".removesuffix(".0")
    rows: list[tuple[str, ...]] = [
        ("memory per GPU", bytes_text(budget.memory_bytes), _interval(budget, "memory_bytes")),
        (f"  usable ({percent}%)", bytes_text(usable)),
        ("- weights", bytes_text(budget.weight_bytes), _drafting(budget)),
        ("- activation peak", bytes_text(budget.activation_bytes), _interval(budget, "activation_bytes")),
        ("- context, buffers, graphs", bytes_text(budget.overhead_bytes), _interval(budget, "overhead_bytes")),
        ("= KV cache", bytes_text(budget.kv_bytes_available), _worst(_interval(budget, "kv_bytes_available"))),
    ]
    if budget.outside_bytes:
        rows.insert(2, ("  not used by the engine", bytes_text(budget.outside_bytes)))
    return rows


def _drafting(budget: Budget) -> str:
    return f"{bytes_text(budget.draft_weight_bytes)} of them for the draft" if budget.draft_weight_bytes else ""


def _worst(interval: str) -> str:
    return f"{interval}; worst case used" if interval else ""


def _interval(budget: Budget, term: str) -> str:
    low, high = budget.intervals[term]
    return "" if low == high else f"{bytes_text(low)} to {bytes_text(high)}"


def _capacity(report: FitReport) -> list[tuple[str, ...]]:
    # llama.cpp makes its cells for whole sequences when it starts
    whole = report.engine.startswith("llama.cpp")
    rows: list[tuple[str, ...]] = [
        ("KV cache per GPU", bytes_text(report.kv_bytes_available)),
        ("needed, logical", bytes_text(report.logical_kv_bytes)),
        ("needed, reserved", bytes_text(report.reserved_kv_bytes)),
        ("capacity in whole sequences" if whole else "capacity", counted(report.kv_capacity_tokens, "token")),
    ]
    if report.window_capacity_tokens is not None:
        rows.append(("  sliding-window layers", counted(report.window_capacity_tokens, "token")))
    if report.num_blocks is not None and report.block_size is not None:
        rows.append(("  in blocks", f"{number_text(report.num_blocks)} of {counted(report.block_size, 'token')}"))
    if report.max_running_requests is not None:
        slots = "" if report.state_slots is None else f"{counted(report.state_slots, 'slot')} for recurrent states"
        rows.append(("requests at once, at most", number_text(report.max_running_requests), slots))
    if report.request_table_bytes:
        rows.append(("request table, outside the budget", bytes_text(report.request_table_bytes)))
    longest = number_text(report.max_model_len)
    rows.append((f"concurrent sequences of {longest}", f"{report.max_concurrency:.2f}"))
    rows.append((f"largest batch at {number_text(report.context)}", number_text(report.max_batch)))
    batch = number_text(report.batch)
    limit = ""
    if report.max_context == report.max_model_len:
        limit = "limited by --ctx-size" if whole else "limited by --max-model-len"
    elif report.max_context and not report.max_batch:
        limit = f"needs {_length_flag(report)} {report.max_context} or less"
    rows.append((f"longest context at batch {batch}", counted(report.max_context, "token"), limit))
    return [*rows, *_fewest(report)]


def _fewest(report: FitReport) -> list[tuple[str, ...]]:
    """Return the rows of the fewest GPUs that hold the batch, with the flags that ask for them."""
    smallest, practical = report.smallest, report.practical
    if smallest is None:
        return [("fewest GPUs", report.min_gpus_reason)] if report.min_gpus_reason else []
    rows: list[tuple[str, ...]] = [("fewest GPUs", number_text(smallest.gpus), smallest.flags)]
    if practical is not None and practical != smallest:
        rows.append(("  in common sizes", number_text(practical.gpus), practical.flags))
    return rows


_HEIGHT = 60


def spec(report: FitReport) -> Spec:
    """Return one bar of the budget's terms beside each other, with the memory as a line.

    Raises:
        InputError: a report without a budget.
    """
    from kvcalc.render.charts import Axis, bar_layer, chart, limit_layer

    budget = report.budget
    if budget is None:
        raise InputError("without a budget there is nothing to draw", hint="give --gpu instead of --kv-memory")
    parts = {
        "weights": budget.weight_bytes,
        "activations": budget.activation_bytes,
        "overhead": budget.overhead_bytes,
        "cache": report.reserved_kv_bytes,
        "free": max(0, budget.kv_bytes_available - report.reserved_kv_bytes),
    }
    rows: list[dict[str, Any]] = [{"part": part, "bytes": value, "gpu": report.gpu} for part, value in parts.items()]
    x = Axis(field="bytes", title="memory per GPU, bytes")
    subtitle = [
        f"{engine_text(report.engine)}; {formats_text(report.formats)}",
        f"batch {report.batch:,}, context {report.context:,}",
        f"line: GPU memory; the engine may use {budget.utilization:.0%}",
        f"source: kvcalc fit, profiles {report.model} and {report.gpu}",
    ]
    bars = bar_layer(rows, x=x, series="part", title="part")
    verdict = "fits" if report.fits else "does not fit"
    return chart([bars, limit_layer(budget.memory_bytes, along=x, across=False)], height=_HEIGHT, subtitle=subtitle,
                 title=f"{report.model} on {gpus_text(report)}: {verdict}")  # fmt: skip
