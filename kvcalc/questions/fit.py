"""Does it fit: ``kvcalc fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.readers import count_from_zero, memory
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.explaining import explain
from kvcalc.questions.groups import BATCH, ENGINE, GPU_OR_NONE, KV_MEMORY, MODEL, Drafting, Engine, Run
from kvcalc.questions.local import Local

if TYPE_CHECKING:
    from kvcalc.core.reports.fit import FitReport
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment
    from kvcalc.questions.arguments import Count

__all__ = ["Fit", "fit"]


class Fit(Local, Drafting, Engine, Run):
    """Does it fit: the memory budget, the largest batch and context, the fewest GPUs.

    With --device, llama.cpp's placement on unlike devices and the host: bytes of each, and the command.

    Example: kvcalc fit --model llama3.1-8b --gpu rtx-4090 --context 8192 --max-model-len 8192
    """

    model: str = MODEL
    gpu: str | None = GPU_OR_NONE
    context: int | None = param("--context", help="Context length in tokens, per sequence.", read=count_from_zero)
    batch: int = BATCH
    engine: str | None = ENGINE
    kv_memory: int | None = KV_MEMORY
    activation_memory: int | None = param(
        "--activation-memory", heading="Engine", help="Peak of activations, if known.", read=memory
    )
    overhead_memory: int | None = param(
        "--overhead-memory", heading="Engine", help="CUDA context, buffers and graphs, if known.", read=memory
    )
    has_chart = is_started = explains = True

    def answer(self) -> Answer:
        """Return whether it fits."""
        if self.is_local:
            deployment = self.local_deployment()
            return self.placed_answer(deployment, context=self.context, batch=self.batch)
        deployment = self.drafted(self.deployment(), self.kv_dtype)
        report = fit(
            deployment,
            context=self.context,
            batch=self.batch,
            kv_memory_bytes=self.kv_memory,
            activation_bytes=self.activation_memory,
            overhead_bytes=self.overhead_memory,
        )
        return Answer(
            report,
            lambda: explain("size", deployment, context=report.context, batch=self.batch),
        )


def fit(
    deployment: Deployment,
    *,
    engine: str | None = None,
    options: EngineOptions | None = None,
    context: Count | None = None,
    batch: Count = 1,
    kv_memory_bytes: int | None = None,
    activation_bytes: int | None = None,
    overhead_bytes: int | None = None,
) -> FitReport:
    """Return whether a model, its cache and an engine's overhead fit, and the largest that would.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        engine: another engine whose memory model is used: ``vllm``, ``llama.cpp``, ``sglang``, ``transformers`` or
            ``ideal``; that of the deployment where left out.
        options: that engine's options.
        context: tokens of each sequence.
        batch: sequences.
        kv_memory_bytes: memory for the cache on each GPU; skips the budget, and no accelerator is needed.
        activation_bytes: peak of activations, where it is known.
        overhead_bytes: context, buffers and graphs, where they are known.

    Raises:
        InputError: neither an accelerator nor a memory for the cache, or sizes that make no sense.
        UnsupportedError: a model or arrangement that the engine's memory model does not describe.
    """
    from kvcalc.plan.fit import fit_report
    from kvcalc.plan.room import BudgetTerms
    from kvcalc.questions.arguments import bytes_or_none, check_options, deployed, one, one_or_none

    check_options(options)
    terms = BudgetTerms(
        kv_bytes=bytes_or_none(kv_memory_bytes, "kv-memory"),
        activation_bytes=bytes_or_none(activation_bytes, "activations"),
        overhead_bytes=bytes_or_none(overhead_bytes, "overhead"),
    )
    tokens, sequences = one_or_none(context, "context"), one(batch, "batch")
    return fit_report(
        deployed(deployment), engine=engine, options=options, terms=terms, context=tokens, batch=sequences
    )
