"""Windowed and chunked layers as engines hold them that know no windows: in full."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Attention, Full

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer, ModelProfile

__all__ = ["held_in_full", "without_windows"]


def held_in_full(mixer: Mixer) -> Mixer:
    """Return a mixer with every token of the context in its cache.

    >>> from kvcalc.core.model import Sliding
    >>> held_in_full(Sliding(heads=8, kv_heads=4, head_dim=64, window=512)) == Full(heads=8, kv_heads=4, head_dim=64)
    True
    """
    if isinstance(mixer, Attention) and mixer.entry is not None and mixer.span is not None:
        return Full(
            heads=mixer.heads, kv_heads=mixer.kv_heads, head_dim=mixer.head_dim, value_head_dim=mixer.value_head_dim
        )
    return mixer


def without_windows(model: ModelProfile) -> ModelProfile:
    """Return a model whose windowed and chunked layers have full attention."""
    blocks = tuple(replace(block, mixers=tuple(map(held_in_full, block.mixers))) for block in model.blocks)
    return replace(model, blocks=blocks)
