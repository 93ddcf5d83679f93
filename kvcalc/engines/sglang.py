"""SGLang (0.4 to 0.5): the bytes of a token in its pool, and what a pool of so many tokens takes.

A rank keeps one pool of tokens for all its layers. Its size is the memory left for it divided by the bytes of a token,
rounded down to whole pages; the buffers have one page more than that, for padding. "GB" in its log is 2**30 bytes.
Models with windows, recurrent states or compressed attention have pools of several kinds, which are not described.

Source: SGLang, ``mem_cache/memory_pool.py`` (MHATokenToKVPool, MLATokenToKVPool, NSATokenToKVPool) and
``model_executor/pool_configurator.py`` (DefaultPoolConfigurator).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.model import Full, Latent, Shared
from kvcalc.cost.cache import kv_heads_per_rank
from kvcalc.engines.scaled_fp8 import scaled_fp8_bytes, scaled_latent_bytes

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer, ModelProfile
    from kvcalc.core.workload import Formats

__all__ = ["VERSIONS", "Buffers", "TokenBytes", "buffers", "max_total_tokens", "token_bytes"]

VERSIONS = "0.4 to 0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes of one token on one tensor-parallel rank, over all layers.

    Args:
        keys: keys; of latent attention, the one vector it keeps.
        values: values.
        index: keys of a sparse indexer, which SGLang's log leaves out (before 2025-10) or counts apart.
        draft: layers that draft, in a pool of their own of as many tokens.
    """

    keys: int
    values: int
    index: int
    draft: int = 0

    @property
    def total(self) -> int:
        """Bytes by which the memory is divided."""
        return self.keys + self.values + self.index + self.draft

    def with_draft(self, *, layers: int, drafting: int) -> TokenBytes:
        """Return the bytes with so many layers that draft: each is priced as one of the model's, whatever its size.

        Args:
            layers: layers of the model.
            drafting: layers that draft.

        Source: SGLang 0.5.23, ``pool_configurator.py``, the cell size with a draft worker.

        >>> TokenBytes(keys=73728, values=73728, index=0).with_draft(layers=36, drafting=1).total
        151552
        """
        return replace(self, draft=self.total * drafting // layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Bytes of the buffers of one rank's pool."""

    key_bytes: int
    value_bytes: int
    index_bytes: int


def token_bytes(model: ModelProfile, formats: Formats, *, tensor: int = 1) -> TokenBytes:
    """Return the bytes of a token: layers * kv heads of the rank * head_dim * b, for keys and values each.

    Latent attention keeps kv_lora_rank + rope_dim elements on every rank.

    Args:
        model: the model.
        formats: formats of keys and values.
        tensor: tensor-parallel ranks of the attention (``tp_size / dp_size`` with data-parallel attention).

    Raises:
        UnsupportedError: layers whose pool is not described.

    Source: SGLang, ``pool_configurator.py``, DefaultPoolConfigurator.

    >>> from kvcalc.core.model import Block, Full, ModelProfile
    >>> from kvcalc.core.workload import Formats
    >>> block = Block(mixers=(Full(heads=64, kv_heads=4, head_dim=128),))
    >>> model = ModelProfile(name="x", architecture="qwen3_moe", hidden_size=4096, context_limit=None,
    ...     blocks=(block,) * 94, embeddings=(), head=None)
    >>> token_bytes(model, Formats(), tensor=4).keys
    24064
    """
    keys = values = index = 0
    for block, count in model.block_counts.items():
        for mixer in block.mixers:
            layer = _layer(mixer, formats, tensor=tensor, model=model.name)
            keys, values, index = (
                keys + count * layer.keys,
                values + count * layer.values,
                index + count * layer.index,
            )
    return TokenBytes(keys=keys, values=values, index=index)


def _layer(mixer: Mixer, formats: Formats, *, tensor: int, model: str) -> TokenBytes:
    if isinstance(mixer, Shared):
        return TokenBytes(keys=0, values=0, index=0)
    if isinstance(mixer, Full) and mixer.indexer is None:
        heads = kv_heads_per_rank(mixer.kv_heads, tensor)
        return TokenBytes(
            keys=int(formats.key.bytes(heads * mixer.head_dim)),
            values=int(formats.value.bytes(heads * mixer.value_dim)),
            index=0,
        )
    if isinstance(mixer, Latent):
        return _latent(mixer, formats)
    raise UnsupportedError(
        f"the pools that SGLang makes for {mixer.kind} layers, as in {model}, are not described",
        hint="models whose layers all have full or latent attention are",
    )


def _latent(mixer: Latent, formats: Formats) -> TokenBytes:
    """Return a latent layer's bytes; with an indexer, fp8 has scales for the latent part and keeps bf16 positions."""
    keys = int(formats.key.bytes(mixer.kv_lora_rank + mixer.rope_dim))
    if mixer.indexer is None:
        return TokenBytes(keys=keys, values=0, index=0)
    if formats.key.unit == "fp8":
        keys = scaled_latent_bytes(mixer, formats)
    index = scaled_fp8_bytes(mixer.indexer.kept_dim) if mixer.indexer.stored else 0
    return TokenBytes(keys=keys, values=0, index=index)


def max_total_tokens(token: TokenBytes, *, memory_bytes: int, page_size: int = 1) -> int:
    """Return ``max_total_num_tokens``: memory // bytes of a token, rounded down to whole pages.

    Raises:
        InputError: a page of no tokens, or a model that keeps nothing.

    Source: SGLang, ``pool_configurator.py``, calculate_pool_sizes.

    >>> max_total_tokens(TokenBytes(keys=1000, values=1000, index=0), memory_bytes=200_000, page_size=64)
    64
    """
    if page_size < 1 or token.total < 1:
        raise InputError(f"a pool of {token.total} bytes a token in pages of {page_size} tokens cannot be sized")
    return memory_bytes // token.total // page_size * page_size


def buffers(token: TokenBytes, *, tokens: int, page_size: int = 1) -> Buffers:
    """Return the bytes of the buffers of a pool: its tokens and one page more.

    Source: SGLang, ``memory_pool.py``, MHATokenToKVPool._create_buffers: ``size + page_size`` rows.
    """
    rows = tokens + page_size
    return Buffers(key_bytes=rows * token.keys, value_bytes=rows * token.values, index_bytes=rows * token.index)
