"""Hugging Face transformers: the tensors of its dynamic and static caches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.formats import parse_format
from kvcalc.core.model import Chunked, Compressed, Cross, Full, Latent, Shared, Sliding, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.model import Block, Mixer, ModelProfile

__all__ = ["VERSION", "as_cached", "decompressed"]

VERSION = "5.24"

# Index keys that are computed and kept in 32 bits whatever the model's format.
_INDEX_KEYS_IN_32_BITS = frozenset({"dots3_note_text"})
# Positions of a token (time, height, width) as 64-bit integers, kept beside its index key.
_BYTES_BESIDE_INDEX_KEYS = {"qwen4_exp_text": 3 * 8}
# From this version on latent attention is cached compressed; before, as full heads.
_FIRST_COMPRESSED = 5


def as_cached(model: ModelProfile, version: str = VERSION) -> ModelProfile:
    """Return the model whose logical bytes are those of ``DynamicCache`` after one prefill.

    A windowed layer keeps window - 1 tokens (those the next token can still see), a chunked layer likewise; Falcon's
    new decoder architecture broadcasts its KV heads to the query heads before it caches them. Latent attention is
    cached compressed from version 5 on.

    Source: transformers 5.24, ``cache_utils`` and the attention of each model.

    Raises:
        InputError: not a version.
    """
    return _mapped(
        decompressed(model, version), lambda mixer: _mixer_as_cached(_keys_as_cached(mixer, model), model.architecture)
    )


def decompressed(model: ModelProfile, version: str) -> ModelProfile:
    """Return the model with latent attention as the version caches it: before 5 as full keys and values for each head.

    Raises:
        InputError: not a version.
    """
    major = version.partition(".")[0]
    if not major.isdecimal():
        raise InputError(f"{version!r} is not a version of transformers", hint="for example 5.24 or 4.57")
    return model if int(major) >= _FIRST_COMPRESSED else _mapped(model, _expanded)


def _mapped(model: ModelProfile, change: Callable[[Mixer], Mixer]) -> ModelProfile:
    changed: dict[Block, Block] = {
        block: replace(block, mixers=tuple(change(mixer) for mixer in block.mixers)) for block in model.block_counts
    }
    return replace(model, blocks=tuple(changed[block] for block in model.blocks))


def _expanded(mixer: Mixer) -> Mixer:
    if not isinstance(mixer, Latent):
        return mixer
    width = mixer.nope_dim + mixer.rope_dim
    return Full(heads=mixer.heads, kv_heads=mixer.heads, head_dim=width, value_head_dim=mixer.value_head_dim)


def _keys_as_cached(mixer: Mixer, model: ModelProfile) -> Mixer:
    """Return a layer with what is kept beside or instead of its index keys, in elements of the model's own format."""
    if not isinstance(mixer, Full | Latent) or mixer.indexer is None or not mixer.indexer.stored:
        return mixer
    element = parse_format(model.dtype).bytes(1)
    kept = mixer.indexer.kept_dim
    if model.architecture in _INDEX_KEYS_IN_32_BITS:
        kept = int(kept * 4 / element)
    kept += int(_BYTES_BESIDE_INDEX_KEYS.get(model.architecture, 0) / element)
    return replace(mixer, indexer=replace(mixer.indexer, stored_dim=kept))


def _mixer_as_cached(mixer: Mixer, architecture: str) -> Mixer:
    match mixer:
        case Compressed(index_from_entries=True):
            raise UnsupportedError("transformers 5.24 has no class of this model")
        case Sliding() | Compressed():
            return replace(mixer, window=max(1, mixer.window - 1))
        case Chunked():
            return replace(mixer, chunk=max(1, mixer.chunk - 1))
        case Full():
            broadcast = architecture == "falcon" and mixer.kv_heads > 1
            return replace(mixer, kv_heads=mixer.heads) if broadcast else mixer
        case Shared() | Cross() | Latent() | State():
            return mixer
        case _:
            assert_never(mixer)
