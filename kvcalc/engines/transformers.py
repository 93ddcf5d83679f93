"""Hugging Face transformers 5: the tensors of its dynamic cache after a prefill."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Chunked, Compressed, Sliding

if TYPE_CHECKING:
    from kvcalc.core.model import Block, Mixer, ModelProfile

__all__ = ["VERSIONS", "as_cached"]

VERSIONS = "5.24"


def as_cached(model: ModelProfile) -> ModelProfile:
    """Return the model whose logical bytes are those of ``DynamicCache`` after one prefill.

    A windowed layer keeps window - 1 tokens (those the next token can still see), a chunked layer likewise; Falcon's
    new decoder architecture broadcasts its KV heads to the query heads before it caches them. Latent attention is
    cached compressed.

    Source: transformers 5.24, ``cache_utils`` and the attention of each model.
    """
    return replace(model, blocks=tuple(_as_cached(block, model.architecture) for block in model.blocks))


def _as_cached(block: Block, architecture: str) -> Block:
    return replace(block, mixers=tuple(_mixer_as_cached(mixer, architecture) for mixer in block.mixers))


def _mixer_as_cached(mixer: Mixer, architecture: str) -> Mixer:
    if isinstance(mixer, Sliding | Compressed):
        return replace(mixer, window=max(1, mixer.window - 1))
    if isinstance(mixer, Chunked):
        return replace(mixer, chunk=max(1, mixer.chunk - 1))
    if architecture == "falcon" and mixer.kind == "full" and mixer.kv_heads > 1:
        return replace(mixer, kv_heads=mixer.heads)
    return mixer
