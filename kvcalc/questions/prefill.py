"""``kvcalc prefill``: the bound on the time to first token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.readers import counts
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.explaining import explain, used_calibration
from kvcalc.questions.groups import BATCHES, CALIBRATION, ENGINE, ESTIMATE, GPU, MODEL, Costs, Engine, Run

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.reports.speed import PrefillReport
    from kvcalc.plan.deployment import Deployment
    from kvcalc.questions.arguments import Counts

__all__ = ["Prefill", "prefill"]


class Prefill(Costs, Engine, Run):
    """Bound on prefill: time to first token (TTFT), and what limits it.

    Example: kvcalc prefill --model llama3.1-8b --gpu h100-sxm --prompt 1024,8192
    """

    model: str = MODEL
    gpu: str = GPU
    batch: tuple[int, ...] = BATCHES
    prompt: tuple[int, ...] | None = param(
        "--prompt", help="Prompt length (ISL) in tokens: one, a list or a range.", read=counts
    )
    engine: str | None = ENGINE
    estimate: bool = ESTIMATE
    calibration: str | None = CALIBRATION
    has_chart = explains = True

    def answer(self) -> Answer:
        """Return the bound of each batch and prompt; the first row is the one that is explained."""
        deployment = self.deployment()
        report = prefill(
            deployment,
            batch=self.batch,
            prompt=self.prompt,
            estimate=self.estimate,
            calibration=self.calibration,
        )
        first, applied = report.rows[0], report.calibration
        used = self.calibration or (None if applied is None else applied.name)
        return Answer(
            report,
            lambda: explain("prefill", deployment, context=first.prompt, batch=first.batch, calibration=used),
        )


def prefill(
    deployment: Deployment,
    *,
    batch: Counts = 1,
    prompt: Counts | None = None,
    estimate: bool = False,
    calibration: str | Path | Calibration | None = None,
    batches: Counts | None = None,
    prompts: Counts | None = None,
) -> PrefillReport:
    """Return the bound on prefill for each batch and prompt; arguments and errors as `decode`."""
    from kvcalc.plan.prefill import prefill_report
    from kvcalc.questions.arguments import deployed, several, several_or_none

    deployment = deployed(deployment)
    applied, notes = used_calibration(deployment, calibration, wanted=estimate, phase="prefill")
    report = prefill_report(
        deployment,
        batches=several(batch, "batch", batches),
        prompts=several_or_none(prompt, "prompt", prompts),
        calibration=applied,
    )
    return replace(report, notes=(*report.notes, *notes))
