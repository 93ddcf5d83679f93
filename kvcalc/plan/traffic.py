"""Bytes read to generate n tokens after a prompt: the weights n times, the cache of every length on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.ranges import check_between
from kvcalc.core.reports.traffic import TrafficReport, TrafficRow
from kvcalc.plan.contexts import check_batch, check_context
from kvcalc.plan.formats import format_names
from kvcalc.plan.levers.catalogue import apply_levers, parse_levers

if TYPE_CHECKING:
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.levers.layout import Layout

__all__ = ["growth_exponent", "kv_reads", "traffic_report"]

_MAX_TOKENS = 10**9


def kv_reads(layout: Layout, *, prompt_tokens: int, output_tokens: int, batch: int) -> int:
    """Return the cache read by all decode steps: the sum over t = p+1 … p+n of the cache read at context t.

    Source: the definition of total KV read; each step is `forward_cost`'s, summed along the straight lines it follows.
    """
    after = layout.reads_up_to(prompt_tokens + output_tokens, batch=batch)
    return after - layout.reads_up_to(prompt_tokens, batch=batch)


def growth_exponent(layout: Layout, *, prompt_tokens: int, output_tokens: int, batch: int) -> float | None:
    """Return d log(KV bytes read) / d log(tokens generated): 2 where each token adds to the cache, 1 where none does.

    The slope is that of the chord over one period on either side (one token, or a chunk where reads come in chunks):
    for a quadratic the derivative itself. None where nothing is read.
    """
    step = min(layout.period, output_tokens)
    before, here, after = (
        kv_reads(layout, prompt_tokens=prompt_tokens, output_tokens=tokens, batch=batch)
        for tokens in (output_tokens - step, output_tokens, output_tokens + step)
    )
    return output_tokens * (after - before) / (2 * step * here) if here else None


def traffic_report(
    deployment: Deployment, *, prompt_tokens: int = 0, output_tokens: int, batch: int = 1, levers: str = ""
) -> TrafficReport:
    """Return the bytes read to generate tokens after a prompt.

    Args:
        deployment: model, formats and parallel sizes.
        prompt_tokens: tokens of each prompt; 0 for none.
        output_tokens: tokens generated for each sequence.
        batch: sequences; they share the reads of the weights, not those of the cache.
        levers: changes to the cache, as `parse_levers` reads them.

    Raises:
        InputError: fewer than 0 prompt tokens, fewer than 1 output token or sequence, or a lever that does nothing.
    """
    check_between("prompt", prompt_tokens, 0, _MAX_TOKENS)
    check_between("output-tokens", output_tokens, 1, _MAX_TOKENS)
    check_batch(batch)
    notes = check_context(deployment.model, prompt_tokens + output_tokens, what="prompt and output")
    wanted = parse_levers(levers)
    layout, lever_notes = apply_levers(deployment, wanted, context=prompt_tokens + output_tokens)
    per_step = layout.step_cost(context=prompt_tokens + output_tokens, batch=batch).total("weight_bytes")
    counts = [2**power for power in range(output_tokens.bit_length()) if 2**power < output_tokens]
    rows = tuple(_row(layout, prompt_tokens, tokens, batch, per_step) for tokens in (*counts, output_tokens))
    whole = rows[-1]
    return TrafficReport(
        model=deployment.model.name,
        formats=format_names(layout.formats),
        batch=batch,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        levers=tuple(lever.text for lever in wanted),
        weight_bytes=whole.weight_bytes,
        kv_read_bytes=whole.kv_read_bytes,
        growth_exponent=whole.growth_exponent,
        kv_bytes=whole.kv_bytes,
        rows=rows,
        notes=(*notes, *lever_notes, *deployment.model.notes),
    )


def _row(layout: Layout, prompt_tokens: int, output_tokens: int, batch: int, per_step: float) -> TrafficRow:
    return TrafficRow(
        output_tokens=output_tokens,
        context=prompt_tokens + output_tokens,
        kv_bytes=layout.held_bytes(context=prompt_tokens + output_tokens, batch=batch),
        weight_bytes=output_tokens * per_step,
        kv_read_bytes=kv_reads(layout, prompt_tokens=prompt_tokens, output_tokens=output_tokens, batch=batch),
        growth_exponent=growth_exponent(layout, prompt_tokens=prompt_tokens, output_tokens=output_tokens, batch=batch),
    )
