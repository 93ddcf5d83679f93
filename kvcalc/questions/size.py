"""``kvcalc size``: bytes of cache and weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.readers import count_from_zero
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.engine_names import engine_name
from kvcalc.questions.explaining import explain
from kvcalc.questions.groups import BATCH, ENGINE_NAMES, MODEL, Engine, Run
from kvcalc.questions.local import Local

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.common import ExplainedStep
    from kvcalc.core.reports.size import SizeReport
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment
    from kvcalc.questions.arguments import Count

__all__ = ["Size", "size"]


class Size(Local, Engine, Run):
    """Bytes of the KV cache per token, per sequence and in total, and of the weights.

    Example: kvcalc size --model llama2-70b --context 8000 --batch 32
    """

    model: str = MODEL
    context: int | None = param(
        "--context", help="Context length in tokens, per sequence (llama.cpp: of all together).", read=count_from_zero
    )
    batch: int = BATCH
    gpu: str | None = param("--gpu", help="With --engine: the accelerator that sets its defaults.")
    engine: str | None = param(
        "--engine", help=f"Also show what this engine reserves: {ENGINE_NAMES}.", read=engine_name, otherwise="none"
    )
    explains = True

    def answer(self) -> Answer:
        """Return the bytes."""
        if self.is_local:
            from kvcalc.plan.local.memory import with_places

            deployment = self.local_deployment()
            answer = self.placed_answer(deployment, context=self.context, batch=self.batch, together=True)
            placed, context = answer.report, self.context
            if context is None and deployment.options.front:
                context = placed.context * placed.parallel

            def explained() -> tuple[ExplainedStep, ...]:
                steps = () if answer.explained is None else answer.explained()
                return *explain("size", deployment, context=context, batch=self.batch), *steps

            return Answer(with_places(size(deployment, context=context, batch=self.batch), placed), explained)
        if self.engine is None and self.context is None and self.ctx_size:
            self.context, self.ctx_size = self.ctx_size, None  # no engine: all names of a context mean the same
        deployment = self.deployment()
        report = size(deployment, context=self.context, batch=self.batch)
        return Answer(report, lambda: explain("size", deployment, context=self.context, batch=self.batch))


def size(
    deployment: Deployment | ModelProfile | str | Path,
    *,
    context: Count | None = None,
    batch: Count = 1,
    engine: str | None = None,
    options: EngineOptions | None = None,
) -> SizeReport:
    """Return the bytes of cache and weights; with an engine, also what that engine reserves.

    Args:
        deployment: model, formats and parallel sizes, or a model alone.
        context: tokens of each sequence: ``8192`` or ``"8k"``; for llama.cpp, of all ``options.parallel`` sequences
            together, as its tools take it.
        batch: sequences.
        engine: another engine than the deployment's.
        options: that engine's options.

    Raises:
        InputError: a batch or context below one, or an engine that is not known.
        UnsupportedError: a model that the engine's memory model does not describe.
    """
    from kvcalc.plan.size import size_report
    from kvcalc.questions.arguments import check_options, deployed, one, one_or_none

    check_options(options)
    return size_report(
        deployed(deployment),
        context=one_or_none(context, "context"),
        batch=one(batch, "batch"),
        engine=engine,
        options=options,
    )
