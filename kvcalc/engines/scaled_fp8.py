"""Elements in fp8 with a scale for each 128: sparse latent attention and index keys, as vLLM and SGLang keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import ceil_div

if TYPE_CHECKING:
    from kvcalc.core.model import Latent
    from kvcalc.core.workload import Formats

__all__ = ["scaled_fp8_bytes", "scaled_latent_bytes"]

_SCALED_ELEMENTS = 128
_SCALE_BYTES = 4


def scaled_fp8_bytes(elements: int) -> int:
    """Return the bytes of elements in fp8 with their scales: e + 4 * ceil(e / 128).

    Source: vLLM 0.32, DeepseekV32IndexerCache; SGLang, ``mem_cache/memory_pool.py``, NSATokenToKVPool.

    >>> scaled_fp8_bytes(128)
    132
    """
    return elements + _SCALE_BYTES * ceil_div(elements, _SCALED_ELEMENTS)


def scaled_latent_bytes(mixer: Latent, formats: Formats) -> int:
    """Return the bytes of a token of sparse latent attention in fp8: the positions stay in the model's own format.

    Source: vLLM 0.32, the cache format ``fp8_ds_mla``; SGLang, NSATokenToKVPool.

    >>> from kvcalc.core.model import Latent
    >>> from kvcalc.core.workload import Formats
    >>> latent = Latent(heads=128, kv_lora_rank=512, rope_dim=64, nope_dim=128, value_head_dim=128)
    >>> scaled_latent_bytes(latent, Formats())
    656
    """
    return scaled_fp8_bytes(mixer.kv_lora_rank) + int(formats.hidden.bytes(mixer.rope_dim))
