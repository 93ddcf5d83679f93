"""vLLM's tables of rotary positions: sines and cosines of every position a model was made for, whatever is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Attention, Cross, Latent, Sliding
from kvcalc.engines.terms import Interval

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats

__all__ = ["position_tables"]


def position_tables(model: ModelProfile, formats: Formats) -> Interval:
    """Return the bytes of the tables on every rank: the model's limit x the width of a head x bytes of an element.

    Windowed and global layers have tables of their own, the latter for all positions that the model is stretched to
    (Gemma 3: eight times the limit, 0.56 GiB for the 4B model). A profile does not say whether positions are rotary,
    nor over how much of a head: none at least. Llama-4-Scout's take 2.5 GiB, which its log has beside the weights.

    Source: vLLM 0.33, ``RotaryEmbeddingBase._compute_cos_sin_cache`` and its scaled kinds.

    >>> from kvcalc.core.model import Block, Full, ModelProfile
    >>> from kvcalc.core.workload import Formats
    >>> block = Block(mixers=(Full(heads=32, kv_heads=8, head_dim=128),))
    >>> model = ModelProfile(name="x", architecture="x", hidden_size=1, context_limit=131072, blocks=(block,),
    ...     embeddings=(), head=None)
    >>> position_tables(model, Formats()).most
    33554432
    """
    mixers = model.mixers
    widths = {isinstance(mixer, Sliding): 0 for mixer in mixers}
    for mixer in mixers:
        width = 0
        if isinstance(mixer, Latent):
            width = mixer.rope_dim
        elif isinstance(mixer, Attention) and not isinstance(mixer, Cross):
            width = mixer.head_dim
        widths[isinstance(mixer, Sliding)] = max(widths[isinstance(mixer, Sliding)], width)
    limit = model.context_limit or 0
    elements = widths.get(True, 0) * limit + widths.get(False, 0) * (model.rotary_positions or limit)
    return Interval(least=0, most=int(formats.hidden.bytes(elements)))
