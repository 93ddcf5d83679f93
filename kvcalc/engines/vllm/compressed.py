"""DeepSeek-V4 as vLLM lays it out: raw entries of the window, compressed entries, and what is not yet compressed.

Every layer keeps its window. One that compresses keeps an entry for each ``ratio`` tokens, index keys where it has an
indexer, and the running sums of its compressor, in 32 bits. Blocks are outermost, so that pages differ in size.

Source: vLLM 0.33, ``models/deepseek_v4/attention.py``, ``models/deepseek_v4/compressor.py``,
``v1/attention/backends/mla/sparse_swa.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import ceil_div
from kvcalc.engines.scaled_fp8 import scaled_fp8_bytes
from kvcalc.engines.vllm.pages import Spec, not_modelled

if TYPE_CHECKING:
    from kvcalc.core.model import Compressed, Sliding
    from kvcalc.engines.vllm.pages import Kind

__all__ = ["COMPRESSED_BLOCK", "compressed_specs", "window_spec"]

# Tokens of a block of compressed entries, and of raw ones.
COMPRESSED_BLOCK, _WINDOW_BLOCK = 256, 64
# An entry of 512 elements (``fp8_ds_mla``): 448 in fp8, 64 rotated ones in 16 bits, 7 scales and a byte of padding.
_ENTRY_ELEMENTS, _ENTRY_BYTES = 512, 584
# Pages begin where the kernels can copy them.
_ALIGNMENT = 576
# Tokens of a block of a compressor's sums, by its ratio.
_SUMS_BLOCK = {4: 4, 128: 8}
_SUM_BYTES = 4


def window_spec(mixer: Sliding | Compressed) -> Spec:
    """Return the spec of a layer's raw entries, the same on every rank.

    Raises:
        UnsupportedError: another width than DeepSeek-V4's.
    """
    if mixer.head_dim != _ENTRY_ELEMENTS:
        raise not_modelled(f"entries of {mixer.head_dim} elements beside compressed ones")
    return _spec("sliding", _WINDOW_BLOCK, _WINDOW_BLOCK * _ENTRY_BYTES, reach=mixer.window, width=mixer.head_dim)


def compressed_specs(mixer: Compressed) -> tuple[Spec, ...]:
    """Return the specs of a layer that compresses: its window, its entries, its index keys, and its sums.

    Raises:
        UnsupportedError: another width or ratio than DeepSeek-V4's.
    """
    sums = _SUMS_BLOCK.get(mixer.ratio)
    if sums is None:
        raise not_modelled(f"one entry for {mixer.ratio} tokens")
    reach = mixer.ratio * (2 if mixer.overlap else 1)
    entries, branches = COMPRESSED_BLOCK // mixer.ratio, 2 if mixer.overlap else 1
    specs = [window_spec(mixer)]
    widths = [mixer.head_dim]
    specs.append(_spec("latent", COMPRESSED_BLOCK, entries * _ENTRY_BYTES, width=mixer.head_dim))
    if mixer.indexer is not None and mixer.indexer.stored:
        token = scaled_fp8_bytes(mixer.indexer.kept_dim)
        specs.append(_spec("index", COMPRESSED_BLOCK, entries * token, width=token))
        widths.append(mixer.indexer.kept_dim)
    for width in widths:
        # keys and their scores, of each branch
        kept = 2 * branches * width
        specs.append(_spec("sliding", sums, sums * kept * _SUM_BYTES, reach=reach, width=kept))
    return tuple(specs)


def _spec(kind: Kind, block_size: int, content_bytes: int, *, width: int, reach: int = 0) -> Spec:
    return Spec(
        kind=kind,
        block_size=block_size,
        page_bytes=ceil_div(content_bytes, _ALIGNMENT) * _ALIGNMENT,
        reach=reach,
        shape=(1, width, 0),
        packed=True,
    )
