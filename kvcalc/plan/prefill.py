"""How soon a first token can possibly come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.reports.speed import PrefillReport, PrefillRow
from kvcalc.core.workload import prefill_pass
from kvcalc.plan.deployment import format_names, memory_needed
from kvcalc.plan.size import check_context, default_context
from kvcalc.plan.steps import hardware_notes, part_costs, pipeline_notes, required_hardware, timed_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.plan.deployment import Deployment

__all__ = ["prefill_report", "prefill_row"]


def prefill_report(
    deployment: Deployment, *, batches: Sequence[int] = (1,), prompts: Sequence[int] | None = None
) -> PrefillReport:
    """Return the bound on prefill, and so on the time to first token, for each batch and prompt.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        batches: prompts prefilled together in one pass.
        prompts: tokens of each prompt.

    Raises:
        InputError: no accelerator, or a batch or prompt below one.
    """
    model, hardware = deployment.model, required_hardware(deployment)
    lengths = (default_context(model),) if prompts is None else tuple(prompts)
    notes: dict[str, None] = {}
    for prompt in lengths:
        notes |= dict.fromkeys(check_context(model, prompt, what="prompt"))
    rows = tuple(prefill_row(deployment, batch=batch, prompt=prompt) for prompt in lengths for batch in batches)
    return PrefillReport(
        model=model.name,
        gpu=hardware.name,
        gpus=deployment.parallel.gpus,
        memory_bytes=deployment.memory_bytes,
        formats=format_names(deployment.formats),
        rows=rows,
        notes=(*notes, *pipeline_notes(deployment), *hardware_notes(deployment), *model.notes),
    )


def prefill_row(deployment: Deployment, *, batch: int, prompt: int) -> PrefillRow:
    """Return one prefill: its FLOP, bytes and bounds."""
    step = timed_step(deployment, prefill_pass(batch=batch, prompt=prompt))
    needed = memory_needed(deployment, tokens=prompt, batch=batch)
    cost = step.cost
    return PrefillRow(
        batch=batch,
        prompt=prompt,
        flop=cost.flop,
        weight_bytes=cost.total("weight_bytes"),
        kv_write_bytes=cost.total("kv_write_bytes"),
        intensity_flop_per_byte=step.intensity_flop_per_byte,
        ideal_s=step.time.ideal_s,
        serial_s=step.time.serial_s,
        tokens_per_s=batch * prompt / step.time.ideal_s,
        limiter=step.time.limiter,
        shares=step.time.shares,
        fits=needed <= deployment.memory_bytes,
        memory_needed_bytes=needed,
        parts=part_costs(cost),
    )
