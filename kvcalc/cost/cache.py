"""Bytes of the cache: what a sequence of T tokens needs, layer by layer.

These are *logical* bytes: what the tokens need. What an engine reserves for them (pages, padding) stands in `engines`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.model import Chunked, Compressed, Cross, Full, Latent, Sliding, State
from kvcalc.core.units import ceil_div

if TYPE_CHECKING:
    from kvcalc.core.model import Attention, Block, Indexer, Mixer, ModelProfile
    from kvcalc.core.workload import Formats

__all__ = [
    "CacheBytes",
    "Segment",
    "affine_segments",
    "block_cache_bytes",
    "cache_bytes",
    "entry_bytes",
    "heads_bytes",
    "held_tokens",
    "index_key_bytes",
    "kv_heads_per_rank",
    "state_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBytes:
    """Bytes a sequence holds.

    Args:
        growing: keys, values, latent vectors and index keys at the context asked for.
        state: recurrent and convolution states, whatever the context.
        cross: keys and values of an encoder's output.
    """

    growing: int
    state: int
    cross: int

    @property
    def total(self) -> int:
        """All three kinds."""
        return self.growing + self.state + self.cross

    def __add__(self, other: CacheBytes) -> CacheBytes:
        return CacheBytes(
            growing=self.growing + other.growing, state=self.state + other.state, cross=self.cross + other.cross
        )

    def times(self, count: int) -> CacheBytes:
        """Return the bytes of that many layers or sequences."""
        return CacheBytes(growing=self.growing * count, state=self.state * count, cross=self.cross * count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of contexts over which the cache grows along one line.

    From ``from_tokens`` on, bytes(T) = ``base_bytes`` + ``bytes_per_token`` * T.
    """

    from_tokens: int
    base_bytes: float
    bytes_per_token: float


def kv_heads_per_rank(kv_heads: int, tensor: int) -> int:
    """Return the KV heads of the fullest tensor-parallel rank; replicated where there are fewer heads than ranks.

    Source: Pope et al. 2022, arXiv 2211.05102, section 3.3 (multi-query heads are replicated).

    >>> kv_heads_per_rank(8, 4), kv_heads_per_rank(8, 16)
    (2, 1)
    """
    return max(1, ceil_div(kv_heads, tensor))


def held_tokens(mixer: Mixer, tokens: int) -> int:
    """Return how many tokens' entries a mixer holds after ``tokens`` tokens.

    Source: Beltagy et al. 2020, arXiv 2004.05150 (a window of W keeps the last W); 0 for what stores nothing.

    >>> held_tokens(Sliding(heads=8, kv_heads=8, head_dim=64, window=1024), 4096)
    1024
    """
    if isinstance(mixer, Full | Latent):
        return tokens
    if isinstance(mixer, Sliding | Compressed):
        return min(tokens, mixer.window)
    if isinstance(mixer, Chunked):
        return min(tokens, mixer.chunk)
    return 0


def entry_bytes(mixer: Mixer, formats: Formats, *, tensor: int = 1) -> int:
    """Return the bytes that one token adds to a mixer's cache on one rank.

    Full, sliding, chunked: kv_heads * (head_dim + value_head_dim) * b. Latent: (kv_lora_rank + rope_dim) * b, the same
    on every rank. An indexer adds head_dim * b.

    Source: Ainslie et al. 2023, arXiv 2305.13245 (grouped heads); DeepSeek-V2, arXiv 2405.04434, sections 2.1.2
    (the latent vector) and 2.1.3 (the decoupled rotary key of rope_dim beside it).

    >>> from kvcalc.core.workload import Formats
    >>> entry_bytes(Full(heads=64, kv_heads=8, head_dim=128), Formats())
    4096
    """
    if isinstance(mixer, Sliding | Chunked):
        return heads_bytes(mixer, formats, tensor=tensor)
    if isinstance(mixer, Full):
        return heads_bytes(mixer, formats, tensor=tensor) + index_key_bytes(mixer.indexer, formats)
    if isinstance(mixer, Latent):
        width = mixer.kv_lora_rank + mixer.rope_dim
        return int(formats.key.bytes(width, head_dim=width)) + index_key_bytes(mixer.indexer, formats)
    if isinstance(mixer, Compressed):
        return int(formats.key.bytes(mixer.head_dim, head_dim=mixer.head_dim))
    return 0


def heads_bytes(mixer: Attention, formats: Formats, *, tensor: int = 1) -> int:
    """Return the bytes of one token's keys and values on one rank, whichever layer stores them.

    Source: Ainslie et al. 2023, arXiv 2305.13245: kv_heads * (head_dim + value_head_dim) * b.

    >>> from kvcalc.core.model import Cross
    >>> from kvcalc.core.workload import Formats
    >>> heads_bytes(Cross(heads=16, kv_heads=16, head_dim=64, encoder_tokens=1500), Formats(), tensor=4)
    1024
    """
    heads = kv_heads_per_rank(mixer.kv_heads, tensor)
    keys = formats.key.bytes(heads * mixer.head_dim, head_dim=mixer.head_dim)
    values = formats.value.bytes(heads * mixer.value_dim, head_dim=mixer.value_dim)
    return int(keys + values)


def index_key_bytes(indexer: Indexer | None, formats: Formats) -> int:
    """Return the bytes of one token's index key: dim * b; 0 without an indexer and where an earlier layer's is used.

    Source: DeepSeek-AI 2025, DeepSeek-V3.2-Exp, section 1, equation 1 (lightning indexer: one key a token, which all
    index heads share, so that every rank keeps it).

    >>> from kvcalc.core.model import Indexer
    >>> from kvcalc.core.workload import Formats
    >>> index_key_bytes(Indexer(heads=64, head_dim=128, top_k=2048), Formats()), index_key_bytes(None, Formats())
    (256, 0)
    """
    if indexer is None or not indexer.stored:
        return 0
    return int(formats.key.bytes(indexer.kept_dim, head_dim=indexer.kept_dim))


def _compressed_bytes(mixer: Compressed, tokens: int, formats: Formats) -> int:
    """Bytes beside the window: compressed entries, the tokens not yet compressed, and the overlap kept for the next."""
    index_dim = mixer.indexer.kept_dim if mixer.indexer and mixer.indexer.stored else 0
    width = mixer.head_dim + index_dim
    branches = 2 if mixer.overlap else 1
    entries = (tokens // mixer.ratio) * formats.key.bytes(width, head_dim=width)
    waiting = (tokens % mixer.ratio) * formats.state.bytes(2 * branches * width)
    kept = mixer.overlap and tokens >= mixer.ratio
    overlap = mixer.ratio * (formats.state.bytes(width) + FORMATS["fp32"].bytes(width)) if kept else 0
    return int(entries + waiting + overlap)


def state_bytes(mixer: State, formats: Formats, *, tensor: int = 1) -> int:
    """Return the bytes of a recurrent layer's states on one rank, for one sequence.

    Source: Gu and Dao 2023, arXiv 2312.00752, and Yang et al. 2024, arXiv 2412.06464: heads * key_dim * value_dim for
    the recurrence, conv_channels * conv_window for the convolution.

    >>> from kvcalc.core.workload import Formats
    >>> state_bytes(State(variant="mamba2", heads=128, key_dim=128, value_dim=64, conv_channels=8448, conv_window=4,
    ...     recurrent_format="fp32"), Formats())
    4261888
    """
    recurrent = formats.state if mixer.recurrent_format is None else parse_format(mixer.recurrent_format)
    heads = ceil_div(mixer.heads, tensor)
    channels = ceil_div(mixer.conv_channels, tensor)
    held = recurrent.bytes(heads * mixer.key_dim * mixer.value_dim) + formats.state.bytes(channels * mixer.conv_window)
    return int(held) + mixer.extra_state_bytes


def block_cache_bytes(block: Block, tokens: int, formats: Formats, *, tensor: int = 1) -> CacheBytes:
    """Return what one layer holds for a sequence of ``tokens`` tokens on one rank.

    Source: the rule of each mixer, as `entry_bytes`, `held_tokens` and `state_bytes` cite it.

    >>> from kvcalc.core.model import Block
    >>> from kvcalc.core.workload import Formats
    >>> block_cache_bytes(Block(mixers=(Full(heads=64, kv_heads=8, head_dim=128),)), 10, Formats()).growing
    40960
    """
    growing = state = cross = 0
    for mixer in block.mixers:
        growing += held_tokens(mixer, tokens) * entry_bytes(mixer, formats, tensor=tensor)
        if isinstance(mixer, Compressed):
            growing += _compressed_bytes(mixer, tokens, formats)
        elif isinstance(mixer, State):
            state += state_bytes(mixer, formats, tensor=tensor)
        elif isinstance(mixer, Cross):
            cross += mixer.encoder_tokens * heads_bytes(mixer, formats, tensor=tensor)
    return CacheBytes(growing=growing, state=state, cross=cross)


def cache_bytes(model: ModelProfile, tokens: int, formats: Formats, *, tensor: int = 1) -> CacheBytes:
    """Return what a sequence of ``tokens`` tokens holds over all layers, on one tensor-parallel rank.

    Source: the sum over layers of `block_cache_bytes`.

    Raises:
        InputError: a negative number of tokens.
    """
    if tokens < 0:
        raise InputError(f"a sequence cannot hold {tokens} tokens")
    total = CacheBytes(growing=0, state=0, cross=0)
    for block, count in model.block_counts.items():
        total += block_cache_bytes(block, tokens, formats, tensor=tensor).times(count)
    return total


def affine_segments(model: ModelProfile, formats: Formats) -> tuple[Segment, ...]:
    """Return the cache of a sequence as straight lines in its length: states + slope * T, a knee where a window fills.

    Exact for every T; with compressed entries (one for each ``ratio`` tokens) exact where T is a multiple of the ratio.

    Source: the sum over layers of min(T, window) * entry (`held_tokens`, `entry_bytes`) and constant states.

    >>> from kvcalc.core.model import Block, ModelProfile
    >>> from kvcalc.core.workload import Formats
    >>> local = Block(mixers=(Sliding(heads=1, kv_heads=1, head_dim=1, window=8),))
    >>> model = ModelProfile(name="x", architecture="x", hidden_size=1, context_limit=None, blocks=(local,),
    ...     embeddings=(), head=None)
    >>> [(s.from_tokens, s.base_bytes, s.bytes_per_token) for s in affine_segments(model, Formats())]
    [(0, 0, 4), (8, 32, 0)]
    """
    mixers = [(mixer, count) for block, count in model.block_counts.items() for mixer in block.mixers]
    knees = {0}
    for mixer, _ in mixers:
        if isinstance(mixer, Sliding | Compressed):
            knees.add(mixer.window)
        if isinstance(mixer, Chunked):
            knees.add(mixer.chunk)
        if isinstance(mixer, Compressed) and mixer.overlap:
            knees.add(mixer.ratio)
    state = cache_bytes(model, 0, formats).state
    return tuple(_segment(knee, state, mixers, formats) for knee in sorted(knees))


def _segment(start: int, state: int, mixers: list[tuple[Mixer, int]], formats: Formats) -> Segment:
    base, slope = float(state), 0.0
    for mixer, count in mixers:
        entry = entry_bytes(mixer, formats) * count
        held = held_tokens(mixer, start)
        if held_tokens(mixer, start + 1) > held:
            slope += entry
        else:
            base += held * entry
        if isinstance(mixer, Compressed):
            per_ratio = _compressed_bytes(mixer, 2 * mixer.ratio, formats) - _compressed_bytes(
                mixer, mixer.ratio, formats
            )
            slope += count * per_ratio / mixer.ratio
            base += count * (
                _compressed_bytes(mixer, start // mixer.ratio * mixer.ratio, formats) - start // mixer.ratio * per_ratio
            )
    return Segment(from_tokens=start, base_bytes=_exact(base), bytes_per_token=_exact(slope))


def _exact(value: float) -> float:
    return int(value) if value == int(value) else value
