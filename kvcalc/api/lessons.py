"""Small computations that show how the KV cache, speculation, paging and self-feeding generation work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcalc.core.reports.lessons import DecoderShape, KvCacheReport

__all__ = ["demo_kv_cache"]


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
