"""The bound on the time to first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.ranges import check_combinations
from kvcalc.core.reports.speed import PrefillReport, PrefillRow
from kvcalc.core.workload import prefill_pass
from kvcalc.plan.contexts import default_context
from kvcalc.plan.steps import first_misfit, report_fields, row_fields, timed_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.plan.deployment import Deployment

__all__ = ["prefill_report", "prefill_row"]


def prefill_report(
    deployment: Deployment,
    *,
    batches: Sequence[int] = (1,),
    prompts: Sequence[int] | None = None,
    calibration: Calibration | None = None,
) -> PrefillReport:
    """Return the bound on prefill, and so on the time to first token, for each batch and prompt.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        batches: prompts prefilled together in one pass.
        prompts: tokens of each prompt.
        calibration: what times are estimated with beside the bound.

    Raises:
        InputError: no accelerator, a batch or prompt below one, or too many rows.
    """
    check_combinations("rows of batch and prompt", batches, prompts or (0,))
    lengths = (default_context(deployment.model, deployment.engine),) if prompts is None else tuple(prompts)
    fields = report_fields(deployment, lengths, what="prompt", calibration=calibration)
    rows = tuple(
        prefill_row(deployment, batch=batch, prompt=prompt, calibration=calibration)
        for prompt in lengths
        for batch in batches
    )
    return PrefillReport(rows=rows, fit_reason=first_misfit(deployment, rows), **fields)


def prefill_row(
    deployment: Deployment, *, batch: int, prompt: int, calibration: Calibration | None = None
) -> PrefillRow:
    """Return one prefill: its FLOP, bytes and bounds."""
    step = timed_step(deployment, prefill_pass(batch=batch, prompt=prompt))
    return PrefillRow(
        prompt=prompt, **row_fields(deployment, step, batch=batch, tokens=prompt, calibration=calibration)
    )
