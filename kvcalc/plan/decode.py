"""How fast decoding can possibly go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Mixture
from kvcalc.core.reports.speed import DecodeReport, DecodeRow, StepSpread
from kvcalc.core.units import GIB
from kvcalc.core.workload import decode_step
from kvcalc.plan.deployment import format_names, memory_needed
from kvcalc.plan.size import check_context, default_context
from kvcalc.plan.steps import cache_notes, hardware_notes, part_costs, pipeline_notes, required_hardware, timed_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.plan.deployment import Deployment

__all__ = ["decode_report", "decode_row"]


def decode_report(
    deployment: Deployment, *, batches: Sequence[int] = (1,), contexts: Sequence[int] | None = None
) -> DecodeReport:
    """Return the bound on decoding for each batch and context.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        batches: sequences decoded together.
        contexts: tokens attended by the new token, itself included.

    Raises:
        InputError: no accelerator, or a batch or context below one.
    """
    model, hardware = deployment.model, required_hardware(deployment)
    lengths = (default_context(model),) if contexts is None else tuple(contexts)
    notes: dict[str, None] = {}
    for context in lengths:
        notes |= dict.fromkeys(check_context(model, context))
    rows = tuple(decode_row(deployment, batch=batch, context=context) for context in lengths for batch in batches)
    return DecodeReport(
        model=model.name,
        gpu=hardware.name,
        gpus=deployment.parallel.gpus,
        memory_bytes=deployment.memory_bytes,
        formats=format_names(deployment.formats),
        rows=rows,
        notes=(
            *notes,
            *cache_notes(deployment, rows),
            *pipeline_notes(deployment),
            *hardware_notes(deployment),
            *model.notes,
        ),
    )


def decode_row(deployment: Deployment, *, batch: int, context: int) -> DecodeRow:
    """Return one decode step: its FLOP, bytes and bounds."""
    group = decode_step(batch=batch, context=context)
    step = timed_step(deployment, group)
    needed = memory_needed(deployment, tokens=context, batch=batch)
    rate = batch / step.time.ideal_s
    cost = step.cost
    return DecodeRow(
        batch=batch,
        context=context,
        flop=cost.flop,
        weight_bytes=cost.total("weight_bytes"),
        kv_read_bytes=cost.total("kv_read_bytes"),
        kv_write_bytes=cost.total("kv_write_bytes"),
        intensity_flop_per_byte=step.intensity_flop_per_byte,
        ideal_s=step.time.ideal_s,
        serial_s=step.time.serial_s,
        tokens_per_s=rate,
        tokens_per_s_per_sequence=1 / step.time.latency_s,
        tokens_per_s_per_gib=rate / (needed * deployment.parallel.gpus / GIB),
        limiter=step.time.limiter,
        shares=step.time.shares,
        fits=needed <= deployment.memory_bytes,
        memory_needed_bytes=needed,
        parts=part_costs(cost),
        experts=_expert_spread(deployment, batch=batch, context=context),
    )


def _expert_spread(deployment: Deployment, *, batch: int, context: int) -> StepSpread | None:
    if not any(isinstance(block.mlp, Mixture) for block in deployment.model.block_counts):
        return None
    group = decode_step(batch=batch, context=context)
    best, worst = (timed_step(deployment, group, routing=routing).time.ideal_s for routing in ("best", "worst"))
    return StepSpread(best_s=best, worst_s=worst)
