"""Small computations that show how the KV cache, speculation, paging and self-feeding generation work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.reports.lessons import (
        DecoderShape,
        DriftReport,
        KvCacheReport,
        PagingReport,
        SpeculationReport,
    )

__all__ = ["demo_drift", "demo_kv_cache", "demo_paging", "demo_speculate"]


def demo_kv_cache(
    *,
    shape: DecoderShape | None = None,
    prompt_tokens: int = 3,
    output_tokens: int = 20,
    batch: int = 1,
    seed: int = 0,
) -> KvCacheReport:
    """Generate with a small random decoder, without and with a cache, and compare tokens, outputs and work.

    Args:
        shape: layers, heads and widths of the decoder.
        prompt_tokens: tokens of each prompt.
        output_tokens: tokens to make.
        batch: sequences.
        seed: of weights and prompts.

    Raises:
        InputError: no tokens, sizes above what a demonstration holds, or heads that do not divide.
    """
    from kvcalc.core.reports.lessons import DecoderShape
    from kvcalc.simulate.attention import kv_cache_report

    return kv_cache_report(
        shape or DecoderShape(), prompt_tokens=prompt_tokens, output_tokens=output_tokens, batch=batch, seed=seed
    )


def demo_speculate(
    *,
    prompt_tokens: int = 3,
    output_tokens: int = 20,
    gamma: int = 4,
    seed: int = 0,
    qualities: Sequence[float] | None = None,
) -> SpeculationReport:
    """Make the same text with drafts that are always, half the time and seldom right, round by round.

    Args:
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens to make.
        gamma: tokens drafted for a pass.
        seed: of the target's weights and of the drafts' errors.
        qualities: shares of contexts at which a draft proposes the target's choice; 1, 0.5 and 0.1 where left out.

    Raises:
        InputError: no tokens, more than a demonstration makes, or a share outside 0 to 1.
    """
    from kvcalc.simulate.drafts import speculation_report

    return speculation_report(
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, gamma=gamma, seed=seed, qualities=qualities
    )


def demo_paging(
    *,
    lengths: Sequence[tuple[int, int]] | None = None,
    memory_tokens: int = 32_768,
    block_tokens: int = 16,
    longest_tokens: int = 4096,
) -> PagingReport:
    """Serve requests with their longest length set aside for each, and in blocks; share blocks and copy on write.

    Args:
        lengths: prompt and output tokens of each request; 80 conversations of a public trace where left out.
        memory_tokens: tokens that the memory holds.
        block_tokens: tokens of a block.
        longest_tokens: the longest length that is served.

    Raises:
        InputError: no requests, or a memory that does not hold one of the longest length.
    """
    from kvcalc.simulate.lengths import CONVERSATIONS
    from kvcalc.simulate.paging import paging_report

    return paging_report(
        CONVERSATIONS if lengths is None else lengths,
        memory_tokens=memory_tokens,
        block_tokens=block_tokens,
        longest_tokens=longest_tokens,
    )


def demo_drift(
    *, steps: int = 100, horizon_steps: int = 8, consistency: float = 1.0, trainings: int = 3, seed: int = 0
) -> DriftReport:
    """Train a small generator without and with a consistency loss, and let it feed on its own states.

    Args:
        steps: steps that it runs free.
        horizon_steps: steps that the consistency loss lets it run in training.
        consistency: weight of that loss.
        trainings: trainings that errors are means over.
        seed: of all that is random.

    Raises:
        InputError: sizes below one or above what a demonstration takes.
    """
    from kvcalc.simulate.drift import drift_report

    return drift_report(steps=steps, horizon=horizon_steps, consistency=consistency, trainings=trainings, seed=seed)
