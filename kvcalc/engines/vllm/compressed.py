"""DeepSeek-V4 and V4.1 as vLLM lays them out: raw entries of the window, compressed entries, and what waits for them.

Every layer keeps its window. One that compresses keeps an entry for each ``ratio`` tokens, index keys where it has an
indexer, and the running sums of its compressor, in 32 bits. Blocks are outermost, so that pages differ in size. In V4.1
only the sources keep entries and keys, and what waits is a ring of one block a request.

Source: vLLM 0.33, ``models/deepseek_v4/attention.py``, ``models/deepseek_v4/compressor.py``, the same of
``models/deepseek_v41``, ``v1/attention/backends/mla/sparse_swa.py``.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import TYPE_CHECKING

from kvcalc.core.units import ceil_div
from kvcalc.engines.scaled_fp8 import scaled_fp8_bytes
from kvcalc.engines.vllm.pages import Spec, not_modelled

if TYPE_CHECKING:
    from kvcalc.core.model import Compressed, Sliding
    from kvcalc.engines.vllm.pages import Kind

__all__ = ["COMPRESSED_BLOCK", "compressed_specs", "shared_block", "shared_specs", "window_spec"]

# Tokens of a block of compressed entries, and of raw ones.
COMPRESSED_BLOCK, _WINDOW_BLOCK = 256, 64
# An entry of 512 elements (``fp8_ds_mla``): 448 in fp8, 64 rotated ones in 16 bits, 7 scales and a byte of padding.
_ENTRY_ELEMENTS, _ENTRY_BYTES = 512, 584
# Pages begin where the kernels can copy them.
_ALIGNMENT = 576
# Tokens of a block of a compressor's sums, by its ratio.
_SUMS_BLOCK = {4: 4, 128: 8}
_SUM_BYTES = 4
# DeepSeek-V4.1: tokens of a block of the window; rows of a ring at least; and, on B200 and its like, an entry of the
# window (512 elements in fp8 and 16 scales), one of NVFP4 (256 bytes and 32 scales), and the step of their pages.
_SHARED_WINDOW_BLOCK, _MIN_RING = 32, 8
_SM10X_ENTRY_BYTES, _NARROW_ENTRY_BYTES, _SM10X_ALIGNMENT = 528, 288, 512
_SM10X = ("blackwell", "blackwell-ultra")
# Cards whose kernels read such a cache, beside these.
_OTHERS = ("", "hopper", "blackwell-rtx")


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


def shared_block(generation: str) -> int:
    """Return the tokens of a block of entries that several layers read: those of the card's kernel.

    Source: vLLM 0.33, ``models/deepseek_v41/sparse_mla.py: get_supported_kernel_block_sizes``.
    """
    return 64 if generation in ("", "hopper") else 128


def shared_specs(mixer: Compressed, *, cache_format: str, generation: str, speculative_tokens: int) -> tuple[Spec, ...]:
    """Return the specs of a layer of DeepSeek-V4.1: its window and, of a source, entries, index keys and the ring.

    Args:
        mixer: the layer's attention.
        cache_format: the format of the cache, by vLLM's name.
        generation: generation of the card; Hopper's where left out.
        speculative_tokens: draft tokens of each verification, which the ring holds too.

    Raises:
        UnsupportedError: another width, ratio or card.
    """
    if mixer.head_dim != _ENTRY_ELEMENTS or mixer.ratio > 2:  # noqa: PLR2004
        raise not_modelled(f"one entry of {mixer.head_dim} elements for {mixer.ratio} tokens")
    if generation not in (*_SM10X, *_OTHERS):
        raise not_modelled(f"entries that several layers read on a {generation} card")
    if cache_format == "nvfp4_ds_mla" and not generation:
        generation = _SM10X[0]
    wide = _SM10X_ENTRY_BYTES if generation in _SM10X else _ENTRY_BYTES
    # plain fp8 means the format that the card's own kernel prefers
    narrow = _NARROW_ENTRY_BYTES if generation in _SM10X and cache_format != "fp8_ds_mla" else wide
    step, stride = (_SM10X_ALIGNMENT, lcm(wide, narrow)) if generation in _SM10X else (_ALIGNMENT, 1)
    block, width = shared_block(generation), mixer.head_dim
    raw = _SHARED_WINDOW_BLOCK
    window = _spec("sliding", raw, raw * wide, reach=mixer.window, width=width, step=step)
    specs = [replace(window, stride=stride)]
    if mixer.entries != "own":
        return tuple(specs)
    entries = block // mixer.ratio
    specs.append(_spec("latent", block, entries * narrow, width=width, step=step))
    if mixer.indexer is not None:
        token = scaled_fp8_bytes(mixer.indexer.kept_dim)
        specs.append(_spec("index", block, entries * token, width=token, step=step))
    if mixer.ratio > 1:
        # drafts, the token after them and the row before, as a power of two
        rows = max(_MIN_RING, 1 << (speculative_tokens + 1).bit_length())
        ring = _spec("ring", rows, rows * 2 * width * _SUM_BYTES, width=2 * width, step=1)
        specs.append(replace(ring, held_blocks=1))
    return tuple(specs)


def _spec(
    kind: Kind, block_size: int, content_bytes: int, *, width: int, reach: int = 0, step: int = _ALIGNMENT
) -> Spec:
    return Spec(
        kind=kind,
        block_size=block_size,
        page_bytes=ceil_div(content_bytes, step) * step,
        reach=reach,
        shape=(1, width, 0),
        packed=True,
    )
