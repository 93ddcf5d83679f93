"""``kvcalc levers``: ways to shrink the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.readers import count
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.groups import BATCH, CONTEXT, MODEL, WITH, Run

if TYPE_CHECKING:
    from kvcalc.core.reports.levers import LeversReport
    from kvcalc.plan.deployment import Deployment
    from kvcalc.questions.arguments import Count

__all__ = ["Levers", "levers"]


class Levers(Run):
    """Every known way to shrink the KV cache: bytes held and read, and what each requires.

    Example: kvcalc levers --model llama2-7b --context 4096 --batch 8 --with gqa,fp8,window=1024
    """

    model: str = MODEL
    gpu: str | None = param("--gpu", help="Accelerator; adds tokens/s and tokens/s per GiB.")
    context: int | None = CONTEXT
    batch: int = BATCH
    with_levers: str = WITH
    max_model_len: int | None = param(
        "--max-model-len",
        help="Tokens reserved per sequence without paging.",
        read=count,
        otherwise="the model's limit",
    )
    has_chart = True

    def answer(self) -> Answer:
        """Return each way's bytes."""
        deployment = self.deployment()
        report = levers(
            deployment,
            context=self.context,
            batch=self.batch,
            with_levers=self.with_levers,
            max_model_len=self.max_model_len,
        )
        return Answer(report)


def levers(
    deployment: Deployment,
    *,
    context: Count | None = None,
    batch: Count = 1,
    with_levers: str = "",
    max_model_len: int | None = None,
) -> LeversReport:
    """Return the bytes of a cache held and read with each known way to shrink it, or with chosen ones together.

    Args:
        deployment: model, formats and parallel sizes; with an accelerator also speeds.
        context: tokens of each sequence.
        batch: sequences.
        with_levers: for example ``gqa,fp8,window=4096``, added one after another; each known one alone where left out.
        max_model_len: tokens that memory is set aside for where it is not paged; the model's limit where left out.

    Raises:
        UnknownNameError: no such lever.
        InputError: a context or batch below one, or a chosen lever that has nothing to act on.
    """
    from kvcalc.plan.levers.report import levers_report
    from kvcalc.questions.arguments import deployed, one, one_or_none

    return levers_report(
        deployed(deployment),
        context=one_or_none(context, "context"),
        batch=one(batch, "batch"),
        levers=with_levers,
        longest=max_model_len,
    )
