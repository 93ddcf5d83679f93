"""DeepSeek-V4 in SGLang: a pool of tokens, one of windows, and of entries that stand for 4 and 128 tokens each.

Compressors keep the scores of tokens that are not yet an entry: those of 4 by the page of the windows' pool, those of
128 by the request. Sizes are the same on every tensor-parallel rank, and the latent entries are in fp8 in any case.

Source: SGLang 0.5.23, ``DSV4PoolConfigurator`` and ``DeepSeekV4TokenToKVPool``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.layers import Compressed, Sliding
from kvcalc.core.records import dataclass
from kvcalc.core.units import ceil_div
from kvcalc.engines.scaled_fp8 import scaled_fp8_bytes

if TYPE_CHECKING:
    from kvcalc.core.model import Block
    from kvcalc.engines.sglang.options import SglangOptions

__all__ = ["CompressedLayers", "compressed_layers"]

# Beside an entry's 8-bit elements: the rotary ones are in 16 bits, and there are 8 bytes of scales.
_ROTARY_ELEMENTS, _SCALE_BYTES, _PAGE_STEP_BYTES = 64, 8, 576
_SHORT, _LONG = 4, 128
# Tokens that a compressor keeps, and those with drafts.
_RINGS = {_SHORT: (8, 16), _LONG: (128, 256)}
_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedLayers:
    """The layers of one stage.

    Args:
        layers: all of them; each has a window.
        short: of these, those with entries of 4 tokens.
        long: those with entries of 128 tokens.
        head_dim: elements of an entry.
        index_dim: elements of an index key.
        window: tokens of a window.
    """

    layers: int
    short: int
    long: int
    head_dim: int
    index_dim: int
    window: int

    def _page_bytes(self, tokens: int) -> int:
        entries = tokens * (self.head_dim + _ROTARY_ELEMENTS + _SCALE_BYTES)
        return ceil_div(entries, _PAGE_STEP_BYTES) * _PAGE_STEP_BYTES

    def token_bytes(self, options: SglangOptions) -> tuple[float, float]:
        """Return the bytes of a token's entries, and of a token of the windows' pool, drafts included."""
        page, ring = options.page_size, _ring(_SHORT, options)
        scores = 4 * (self.head_dim + self.index_dim) * _FP32_BYTES
        window = self._page_bytes(page) / page * self.layers + ring / page * scores * self.short
        short = self._page_bytes(page // _SHORT) / (page // _SHORT) / _SHORT
        short += scaled_fp8_bytes(self.index_dim) / _SHORT
        long = self._page_bytes(page // _LONG) / (page // _LONG) / _LONG
        drafted = (self.layers + 1) / self.layers if options.draft_tokens else 1
        return (self.short * short + self.long * long) * drafted, window * drafted

    def _long_rows(self, requests: int, options: SglangOptions) -> int:
        ring = _ring(_LONG, options)
        return ceil_div((requests + 1) * ring + ring + 1, _LONG) * _LONG

    def fixed_bytes(self, requests: int, options: SglangOptions) -> int:
        """Return the bytes of scores that the requests take, whatever their tokens."""
        return self._long_rows(requests, options) * 2 * self.head_dim * _FP32_BYTES * self.long

    def buffers(
        self, *, tokens: int, window_tokens: int, requests: int, options: SglangOptions
    ) -> tuple[tuple[str, int], ...]:
        """Return the engine's names of the buffers and their bytes over all layers."""
        page = options.page_size
        short_pages = ceil_div(tokens // _SHORT + page, page // _SHORT)
        long_pages = ceil_div(tokens // _LONG + page, page // _LONG)
        ring = _ring(_SHORT, options)
        rows = ceil_div(window_tokens // page * ring + ring + 1, _SHORT) * _SHORT
        score = "compress_state_pools.kv_score_buffer.kv_score"
        return (
            ("swa_kv_pool.kv_buffer", self.layers * (window_tokens // page + 1) * self._page_bytes(page)),
            ("kv_pools.kv_buffer", self.short * short_pages * self._page_bytes(page // _SHORT)),
            ("kv_pools.kv_buffer", self.long * long_pages * self._page_bytes(page // _LONG)),
            (
                "index_pools.index_k_with_scale_buffer",
                self.short * short_pages * page // _SHORT * scaled_fp8_bytes(self.index_dim),
            ),
            (score, self.short * rows * 4 * self.head_dim * _FP32_BYTES),
            (score, self.fixed_bytes(requests, options)),
            (f"indexer_{score}", self.short * rows * 4 * self.index_dim * _FP32_BYTES),
        )


def _ring(ratio: int, options: SglangOptions) -> int:
    plain, drafted = _RINGS[ratio]
    return drafted if options.draft_tokens else plain


def compressed_layers(blocks: tuple[Block, ...]) -> CompressedLayers:
    """Return the layers of a stage by what their entries stand for."""
    mixers = [mixer for block in blocks for mixer in block.mixers if isinstance(mixer, Compressed | Sliding)]
    compressed = [mixer for mixer in mixers if isinstance(mixer, Compressed)]
    return CompressedLayers(
        layers=len(mixers),
        short=sum(mixer.ratio == _SHORT for mixer in compressed),
        long=sum(mixer.ratio == _LONG for mixer in compressed),
        head_dim=max((mixer.head_dim for mixer in mixers), default=0),
        index_dim=max((mixer.indexer.head_dim for mixer in compressed if mixer.indexer is not None), default=0),
        window=max((mixer.window for mixer in mixers), default=0),
    )
