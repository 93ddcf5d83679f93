"""What the cache costs to read, and ways to shrink it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcalc.core.reports.levers import LeversReport
    from kvcalc.core.reports.traffic import TrafficReport
    from kvcalc.plan.deployment import Deployment

__all__ = ["levers", "traffic"]


def traffic(
    deployment: Deployment, *, output_tokens: int, prompt_tokens: int = 0, batch: int = 1, with_levers: str = ""
) -> TrafficReport:
    """Return the bytes read to generate tokens after a prompt: weights once a step, the cache at every length.

    Args:
        deployment: model, formats and parallel sizes; no accelerator is needed.
        output_tokens: tokens generated for each sequence.
        prompt_tokens: tokens of each prompt; 0 for none.
        batch: sequences.
        with_levers: changes to the cache, as for `levers`.

    Raises:
        InputError: fewer than one output token or sequence, or a lever that has nothing to act on.
    """
    from kvcalc.plan.traffic import traffic_report

    return traffic_report(
        deployment, prompt_tokens=prompt_tokens, output_tokens=output_tokens, batch=batch, levers=with_levers
    )


def levers(
    deployment: Deployment,
    *,
    context: int | None = None,
    batch: int = 1,
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

    return levers_report(deployment, context=context, batch=batch, levers=with_levers, longest=max_model_len)
