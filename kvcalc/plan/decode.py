"""The bound on decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Mixture
from kvcalc.core.ranges import check_combinations
from kvcalc.core.reports.speed import DecodeReport, DecodeRow, StepSpread
from kvcalc.core.units import GIB
from kvcalc.core.workload import decode_step
from kvcalc.plan.contexts import default_context
from kvcalc.plan.steps import cache_notes, first_misfit, report_fields, row_fields, timed_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.plan.deployment import Deployment

__all__ = ["decode_report", "decode_row"]


def decode_report(
    deployment: Deployment,
    *,
    batches: Sequence[int] = (1,),
    contexts: Sequence[int] | None = None,
    calibration: Calibration | None = None,
) -> DecodeReport:
    """Return the bound on decoding for each batch and context.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        batches: sequences decoded together.
        contexts: tokens attended by the new token, itself included.
        calibration: what times are estimated with beside the bound.

    Raises:
        InputError: no accelerator, a batch or context below one, or too many rows.
    """
    check_combinations("rows of batch and context", batches, contexts or (0,))
    lengths = (default_context(deployment.model, deployment.engine),) if contexts is None else tuple(contexts)
    fields = report_fields(deployment, lengths, what="context", calibration=calibration)
    rows = tuple(
        decode_row(deployment, batch=batch, context=context, calibration=calibration)
        for context in lengths
        for batch in batches
    )
    fields["notes"] = (*fields["notes"], *cache_notes(deployment, rows))
    return DecodeReport(rows=rows, fit_reason=first_misfit(deployment, rows), **fields)


def decode_row(
    deployment: Deployment, *, batch: int, context: int, calibration: Calibration | None = None
) -> DecodeRow:
    """Return one decode step: its FLOP, bytes and bounds."""
    step = timed_step(deployment, decode_step(batch=batch, context=context))
    fields = row_fields(deployment, step, batch=batch, tokens=context, calibration=calibration)
    memory_gib = fields["memory_needed_bytes"] * deployment.parallel.gpus / GIB
    estimate = fields.get("estimate_s")
    # pipeline stages have as many batches under way at the estimated speed as at the bound's
    slowed = None if estimate is None else step.time.latency_s / estimate
    return DecodeRow(
        context=context,
        estimate_tokens_per_s=None if slowed is None else fields["tokens_per_s"] * slowed,
        kv_read_bytes=step.cost.total("kv_read_bytes"),
        tokens_per_s_per_sequence=1 / step.time.latency_s,
        tokens_per_s_per_gib=fields["tokens_per_s"] / memory_gib,
        experts=_expert_spread(deployment, batch=batch, context=context),
        **fields,
    )


def _expert_spread(deployment: Deployment, *, batch: int, context: int) -> StepSpread | None:
    if not any(isinstance(block.mlp, Mixture) for block in deployment.model.block_counts):
        return None
    group = decode_step(batch=batch, context=context)
    best, worst = (timed_step(deployment, group, routing=routing).time.ideal_s for routing in ("best", "worst"))
    return StepSpread(best_s=best, worst_s=worst)
