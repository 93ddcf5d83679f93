"""``kvcalc layers``: a pass by kinds of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.groups import BATCH, CONTEXT, ENGINE, GPU, MODEL, Engine, Run

if TYPE_CHECKING:
    from kvcalc.core.reports.layers import LayersReport
    from kvcalc.plan.deployment import Deployment
    from kvcalc.questions.arguments import Count

__all__ = ["Layers", "layers"]


class Layers(Engine, Run):
    """A pass by kinds of layers: bytes, FLOP, intensity and the place of each on the roofline.

    Example: kvcalc layers --model gemma-3-27b --gpu h100-sxm --batch 8 --context 32768
    """

    model: str = MODEL
    gpu: str = GPU
    batch: int = BATCH
    context: int | None = CONTEXT
    phase: str = param("--phase", help="decode, or prefill of a prompt of the context's length.", default="decode")
    engine: str | None = ENGINE
    has_chart = True

    def answer(self) -> Answer:
        """Return the costs of each kind."""
        deployment = self.deployment()
        report = layers(deployment, batch=self.batch, context=self.context, phase=self.phase)
        return Answer(report)


def layers(
    deployment: Deployment, *, batch: Count = 1, context: Count | None = None, phase: str = "decode"
) -> LayersReport:
    """Return the costs of each kind of layer in a pass, on one accelerator.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        batch: sequences.
        context: tokens attended by the new token, itself included; of a prefill, tokens of the prompt.
        phase: ``decode`` or ``prefill``.

    Raises:
        InputError: no accelerator, another phase, or a batch or context below one.
    """
    from kvcalc.plan.layers import PHASES, layers_report
    from kvcalc.questions.arguments import deployed, one

    if phase not in PHASES:
        raise InputError(f"phase is {' or '.join(PHASES)}, not {phase!r}", parameter="phase")
    return layers_report(
        deployed(deployment),
        batch=one(batch, "batch"),
        context=None if context is None else one(context, "context"),
        phase=phase,
    )
