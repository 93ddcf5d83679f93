"""``kvcalc decode``: the bound on decoding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.questions.declared import Answer
from kvcalc.questions.explaining import explain, used_calibration
from kvcalc.questions.groups import BATCHES, CALIBRATION, CONTEXTS, ENGINE, ESTIMATE, GPU, MODEL, Costs, Engine, Run

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.reports.speed import DecodeReport
    from kvcalc.plan.deployment import Deployment
    from kvcalc.questions.arguments import Counts

__all__ = ["Decode", "decode"]


class Decode(Costs, Engine, Run):
    """Bound on decode: tokens/s, step time, and what limits it.

    Example: kvcalc decode --model llama3.1-8b --gpu h100-sxm --batch 1-256*4 --context 8192
    """

    model: str = MODEL
    gpu: str = GPU
    batch: tuple[int, ...] = BATCHES
    context: tuple[int, ...] | None = CONTEXTS
    engine: str | None = ENGINE
    estimate: bool = ESTIMATE
    calibration: str | None = CALIBRATION
    has_chart = explains = True

    def answer(self) -> Answer:
        """Return the bound of each batch and context; the first row is the one that is explained."""
        deployment = self.deployment()
        report = decode(
            deployment,
            batch=self.batch,
            context=self.context,
            estimate=self.estimate,
            calibration=self.calibration,
        )
        first, applied = report.rows[0], report.calibration
        used = self.calibration or (None if applied is None else applied.name)
        return Answer(
            report,
            lambda: explain("decode", deployment, context=first.context, batch=first.batch, calibration=used),
        )


def decode(
    deployment: Deployment,
    *,
    batch: Counts = 1,
    context: Counts | None = None,
    estimate: bool = False,
    calibration: str | Path | Calibration | None = None,
    batches: Counts | None = None,
    contexts: Counts | None = None,
) -> DecodeReport:
    """Return the bound on decoding for each batch and context.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        batch: sequences decoded together: a number, a list, or a text such as ``"1-256*2"``.
        context: tokens attended by the new token, itself included: a number, a list, or a text such as ``"8k"``.
        estimate: estimate the time as well, with the calibration that applies.
        calibration: estimate with this one: a name, a file or a calibration.
        batches: another name of ``batch``.
        contexts: another name of ``context``.

    Raises:
        InputError: no accelerator, or a batch or context below one.
        UnknownNameError: no such calibration.
    """
    from kvcalc.plan.decode import decode_report
    from kvcalc.questions.arguments import deployed, several, several_or_none

    deployment = deployed(deployment)
    applied, notes = used_calibration(deployment, calibration, wanted=estimate, phase="decode")
    report = decode_report(
        deployment,
        batches=several(batch, "batch", batches),
        contexts=several_or_none(context, "context", contexts),
        calibration=applied,
    )
    return replace(report, notes=(*report.notes, *notes))
