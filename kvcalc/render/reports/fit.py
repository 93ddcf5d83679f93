"""The table and chart of ``kvcalc fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.units import bytes_text, counted, number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import facts, formats_text, gpus_text, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.fit import Budget, FitReport
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["parts", "spec"]


def parts(report: FitReport) -> list[Part]:
    """Return the verdict, the budget of the fullest GPU, and what else would fit."""
    spread = f" ({report.layout})" if report.layout else ""
    where = f" on {report.gpus} x {report.gpu}{spread}" if report.gpu else f", {counted(report.gpus, 'GPU')}{spread}"
    asked = f"{number_text(report.batch)} x {counted(report.context, 'token')}"
    verdict = f"FITS: {asked}" if report.fits else f"DOES NOT FIT: {report.reason}"
    shown: list[Part] = [
        Text(verdict, style="bold green" if report.fits else "bold red"),
        Text(),
        heading(f"{report.model}{where}, {report.engine}{_drafted(report)}  ({formats_text(report.formats)})"),
    ]
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
        ("memory of a GPU", bytes_text(budget.memory_bytes), _interval(budget, "memory_bytes")),
        (f"  of it usable ({percent}%)", bytes_text(usable)),
        ("- weights", bytes_text(budget.weight_bytes), _drafting(budget)),
        ("- activation peak", bytes_text(budget.activation_bytes), _interval(budget, "activation_bytes")),
        ("- context, buffers, graphs", bytes_text(budget.overhead_bytes), _interval(budget, "overhead_bytes")),
        ("= for the cache", bytes_text(budget.kv_bytes_available), _worst(_interval(budget, "kv_bytes_available"))),
    ]
    if budget.outside_bytes:
        rows.insert(2, ("  left outside", bytes_text(budget.outside_bytes)))
    return rows


def _drafting(budget: Budget) -> str:
    return f"{bytes_text(budget.draft_weight_bytes)} of them the draft's" if budget.draft_weight_bytes else ""


def _worst(interval: str) -> str:
    return f"{interval}; worst case used" if interval else ""


def _interval(budget: Budget, term: str) -> str:
    least, most = budget.intervals[term]
    return "" if least == most else f"{bytes_text(least)} to {bytes_text(most)}"


def _capacity(report: FitReport) -> list[tuple[str, ...]]:
    # llama.cpp makes its cells for whole sequences when it starts
    whole = report.engine.startswith("llama.cpp")
    rows: list[tuple[str, ...]] = [
        ("cache of each GPU", bytes_text(report.kv_bytes_available)),
        ("needed by the batch, logical", bytes_text(report.logical_kv_bytes)),
        ("needed by the batch, reserved", bytes_text(report.reserved_kv_bytes)),
        ("capacity in whole sequences" if whole else "capacity", counted(report.kv_capacity_tokens, "token")),
    ]
    if report.window_capacity_tokens is not None:
        rows.append(("  of windowed layers", counted(report.window_capacity_tokens, "token")))
    if report.num_blocks is not None and report.block_size is not None:
        rows.append(("  in blocks", f"{number_text(report.num_blocks)} of {counted(report.block_size, 'token')}"))
    if report.max_running_requests is not None:
        slots = "" if report.state_slots is None else f"by {counted(report.state_slots, 'slot')} of recurrent states"
        rows.append(("requests at once, however short", number_text(report.max_running_requests), slots))
    if report.request_table_bytes:
        rows.append(("table of requests, outside", bytes_text(report.request_table_bytes)))
    longest = number_text(report.max_model_len)
    rows.append((f"sequences of {longest} at once", f"{report.max_concurrency:.2f}"))
    rows.append((f"most sequences of {number_text(report.context)}", number_text(report.max_batch)))
    batch = number_text(report.batch)
    limit = ""
    if report.max_context == report.max_model_len:
        limit = "no longer than --ctx-size asks for" if whole else "no longer than max-model-len"
    elif report.max_context and not report.max_batch:
        limit = "if --ctx-size asks for no more" if whole else "if max-model-len is no longer than that"
    rows.append((f"longest context at batch {batch}", counted(report.max_context, "token"), limit))
    return [*rows, *_fewest(report)]


def _fewest(report: FitReport) -> list[tuple[str, ...]]:
    """Return the rows of the fewest GPUs that hold the batch, with the flags that ask for them."""
    smallest, practical = report.smallest, report.practical
    if smallest is None:
        return [("fewest GPUs", report.min_gpus_reason)] if report.min_gpus_reason else []
    rows: list[tuple[str, ...]] = [("fewest GPUs", number_text(smallest.gpus), smallest.flags)]
    if practical is not None and practical != smallest:
        rows.append(("  as usually rented", number_text(practical.gpus), practical.flags))
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
        "left for the cache": max(0, budget.kv_bytes_available - report.reserved_kv_bytes),
    }
    rows: list[dict[str, Any]] = [{"part": part, "bytes": value, "gpu": report.gpu} for part, value in parts.items()]
    x = Axis(field="bytes", title="memory of the fullest GPU, bytes")
    subtitle = [
        f"{report.engine}; {formats_text(report.formats)}; batch {report.batch:,}, context {report.context:,}",
        f"line: the GPU's memory, of which the engine may use {budget.utilization:.0%}",
        f"source: kvcalc fit, profiles {report.model} and {report.gpu}",
    ]
    bars = bar_layer(rows, x=x, series="part", title="what takes it")
    verdict = "fits" if report.fits else "does not fit"
    return chart([bars, limit_layer(budget.memory_bytes, along=x, across=False)], height=_HEIGHT, subtitle=subtitle,
                 title=f"{report.model} on {gpus_text(report)}: {verdict}")  # fmt: skip
