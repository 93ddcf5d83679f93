"""``kvcalc roofline``: models below an accelerator's ceilings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import about
from kvcalc.core.readers import names_each
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.deployments import placed
from kvcalc.questions.explaining import explain
from kvcalc.questions.groups import BATCHES, CONTEXTS, ENGINE, GPU, Engine, Run
from kvcalc.sources import load_hardware

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.roofline import RooflineReport
    from kvcalc.plan.deployment import Deployment
    from kvcalc.questions.arguments import Counts

__all__ = ["Roofline", "roofline"]


class Roofline(Engine, Run):
    """Roofline of an accelerator: ceilings and ridge points, with models placed under it.

    Example: kvcalc roofline --gpu h100 --model llama3.1-8b --batch 1,64 --context 4096
    """

    gpu: str = GPU
    model: tuple[str, ...] = param(
        "--model", "-m", help="Model to place under the roofline. May be repeated.", read=names_each, repeats=True
    )
    batch: tuple[int, ...] = BATCHES
    context: tuple[int, ...] | None = CONTEXTS
    engine: str | None = ENGINE
    has_chart = explains = True

    def answer(self) -> Answer:
        """Return the ceilings, with each model below them."""
        asked = {"gpu": self.gpu, "engine": self.engine} | self.given(Run)
        deployments = [placed(name, self.given(Engine), **asked) for name in self.model]
        first = deployments[0] if deployments else None
        if first is not None and first.hardware is not None:
            hardware, gpus = first.hardware, first.parallel.gpus
        else:
            with about("gpu"):
                hardware = load_hardware(self.gpu, settings=self.settings, memory_bytes=self.memory_bytes)
            gpus = self.gpus or 1
        report = roofline(hardware, deployments, gpus=gpus, batch=self.batch, context=self.context)
        return Answer(report, lambda: explain("roofline", hardware))


def roofline(
    gpu: str | Path | HardwareProfile,
    deployments: Sequence[Deployment] = (),
    *,
    gpus: int = 1,
    batch: Counts = 1,
    context: Counts | None = None,
    settings: Sequence[str] = (),
    batches: Counts | None = None,
    contexts: Counts | None = None,
) -> RooflineReport:
    """Return an accelerator's ceilings and ridge points, and where models sit below them.

    Raises:
        KvcalcError: an accelerator that cannot be found, or a batch or context below one.
    """
    from kvcalc.plan.roofline import roofline_report
    from kvcalc.questions.arguments import deployed, several, several_or_none

    return roofline_report(
        load_hardware(gpu, settings=settings),
        [deployed(each) for each in deployments],
        gpus=gpus,
        batches=several(batch, "batch", batches),
        contexts=several_or_none(context, "context", contexts),
    )
