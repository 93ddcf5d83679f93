"""Bytes of the cache: what a sequence of T tokens needs, layer by layer.

These are *logical* bytes: what the tokens need. What an engine reserves for them (pages, padding) stands in `engines`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, assert_never

from kvcalc.core.errors import InputError
from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.model import Chunked, Compressed, Cross, Full, Latent, Shared, Sliding, State
from kvcalc.core.records import dataclass
from kvcalc.core.traced import whole
from kvcalc.core.units import ceil_div

if TYPE_CHECKING:
    from kvcalc.core.model import Attention, Block, Indexer, Mixer, ModelProfile
    from kvcalc.core.traits import Traits
    from kvcalc.core.workload import Formats

__all__ = [
    "CacheBytes",
    "Segment",
    "affine_segments",
    "block_cache_bytes",
    "bytes_beside_entries",
    "cache_bytes",
    "compressed_entry_bytes",
    "entry_bytes",
    "heads_bytes",
    "held_tokens",
    "index_key_bytes",
    "kv_heads_per_rank",
    "mixer_cache_bytes",
    "state_bytes",
]


# Compressed entries in NVFP4, beside a window and index keys in fp8.
_NARROW_ENTRIES = "nvfp4_ds_mla"


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


def held_tokens(mixer: Traits, tokens: int) -> int:
    """Count the tokens whose entries a mixer holds after ``tokens`` tokens.

    Source: Beltagy et al. 2020, arXiv 2004.05150 (a window of W keeps the last W); 0 for what stores nothing.

    >>> held_tokens(Sliding(heads=8, kv_heads=8, head_dim=64, window=1024), 4096)
    1024
    """
    return mixer.held_tokens(tokens)


def entry_bytes(mixer: Traits, formats: Formats, *, tensor: int = 1) -> int:
    """Return the bytes that one token adds to a mixer's cache on one rank.

    Full, sliding, chunked: kv_heads * (head_dim + value_head_dim) * b. Latent: (kv_lora_rank + rope_dim) * b, the same
    on every rank. An indexer adds head_dim * b.

    Source: Ainslie et al. 2023, arXiv 2305.13245 (grouped heads); DeepSeek-V2, arXiv 2405.04434, sections 2.1.2
    (the latent vector) and 2.1.3 (the decoupled rotary key of rope_dim beside it).

    >>> from kvcalc.core.workload import Formats
    >>> entry_bytes(Full(heads=64, kv_heads=8, head_dim=128), Formats())
    4096
    """
    entry = mixer.entry
    if entry is None:
        return 0
    if isinstance(mixer, Compressed) and formats.key.name == _NARROW_ENTRIES:
        formats = replace(formats, key=FORMATS["mxfp8"])
    kept = _keys_and_values(entry.kv_heads, entry.key_dim, entry.value_dim, formats, tensor)
    return kept + _index_key(entry.index_dim, formats)


def _keys_and_values(kv_heads: int, key_dim: int, value_dim: int, formats: Formats, tensor: int) -> int:
    heads = kv_heads_per_rank(kv_heads, tensor)
    keys = formats.key.bytes(heads * key_dim, head_dim=key_dim)
    values = formats.value.bytes(heads * value_dim, head_dim=value_dim)
    return whole(keys + values)


def _index_key(width: int, formats: Formats) -> int:
    """Bytes of an index key: beside packed latent vectors it is in fp8 with an fp32 scale for 128 elements."""
    key = FORMATS["fp8_scaled"] if formats.key.name.endswith("_ds_mla") else formats.key
    return whole(key.bytes(width, head_dim=width))


def compressed_entry_bytes(mixer: Compressed, formats: Formats) -> int:
    """Return the bytes of one compressed entry: dim * b, the same on every rank; vLLM's NVFP4 records have no padding.

    Source: vLLM 0.33, ``models/deepseek_v41/attention.py`` (``compressed_bytes_per_token``): 512 elements in 288 bytes.

    >>> from kvcalc.core.workload import Formats
    >>> mixer = Compressed(heads=64, head_dim=512, window=128, ratio=2, overlap=False, q_lora_rank=1280,
    ...     output_groups=8, output_rank=1024)
    >>> narrow = FORMATS["nvfp4_ds_mla"]
    >>> compressed_entry_bytes(mixer, Formats()), compressed_entry_bytes(mixer, Formats(key=narrow, value=narrow))
    (1024, 288)
    """
    if formats.key.name == _NARROW_ENTRIES:
        return whole(FORMATS["nvfp4"].bytes(mixer.head_dim))
    return entry_bytes(mixer, formats)


def heads_bytes(mixer: Attention, formats: Formats, *, tensor: int = 1) -> int:
    """Return the bytes of one token's keys and values on one rank, whichever layer stores them.

    Source: Ainslie et al. 2023, arXiv 2305.13245: kv_heads * (head_dim + value_head_dim) * b.

    >>> from kvcalc.core.model import Cross
    >>> from kvcalc.core.workload import Formats
    >>> heads_bytes(Cross(heads=16, kv_heads=16, head_dim=64, encoder_tokens=1500), Formats(), tensor=4)
    1024
    """
    return _keys_and_values(mixer.kv_heads, mixer.head_dim, mixer.value_dim, formats, tensor)


def index_key_bytes(indexer: Indexer | None, formats: Formats) -> int:
    """Return the bytes of one token's index key: dim * b; 0 without an indexer and where an earlier layer's is used.

    Source: DeepSeek-AI 2025, DeepSeek-V3.2-Exp, section 1, equation 1 (lightning indexer: one key a token, which all
    index heads share, so that every rank keeps it).

    >>> from kvcalc.core.model import Indexer
    >>> from kvcalc.core.workload import Formats
    >>> index_key_bytes(Indexer(heads=64, head_dim=128, top_k=2048), Formats()), index_key_bytes(None, Formats())
    (256, 0)
    """
    return 0 if indexer is None else _index_key(indexer.entry_dim, formats)


def _compressed_bytes(mixer: Compressed, tokens: int, formats: Formats) -> int:
    """Bytes beside the window: compressed entries, the tokens not yet compressed, and the overlap kept for the next."""
    if mixer.entries != "own":
        return 0
    index_dim = 0 if mixer.indexer is None or mixer.index_from_entries else mixer.indexer.entry_dim
    width = mixer.head_dim + index_dim
    branches = 2 if mixer.overlap else 1
    entry = compressed_entry_bytes(mixer, formats) + index_key_bytes(mixer.indexer, formats)
    entries = (tokens // mixer.ratio) * entry
    waiting = (tokens % mixer.ratio) * formats.state.bytes(2 * branches * width)
    kept = mixer.overlap and tokens >= mixer.ratio
    overlap = mixer.ratio * (formats.state.bytes(width) + FORMATS["fp32"].bytes(width)) if kept else 0
    return whole(entries + waiting + overlap)


def state_bytes(mixer: State, formats: Formats, *, tensor: int = 1) -> int:
    """Return the bytes of a recurrent layer's states on one rank, for one sequence.

    Source: Gu and Dao 2023, arXiv 2312.00752, and Yang et al. 2024, arXiv 2412.06464: heads * key_dim * value_dim for
    the recurrence, conv_channels * conv_window for the convolution.

    >>> from kvcalc.core.workload import Formats
    >>> state_bytes(State(variant="mamba2", heads=128, key_dim=128, value_dim=64, conv_channels=8448, conv_window=4,
    ...     recurrent_format="fp32"), Formats())
    4261888
    """
    own = formats.state if mixer.recurrent_format is None else parse_format(mixer.recurrent_format)
    recurrent = formats.recurrent or own
    heads = ceil_div(mixer.heads, tensor)
    channels = ceil_div(mixer.conv_channels, tensor)
    kept_bytes = recurrent.bytes(heads * mixer.key_dim * mixer.value_dim) + formats.state.bytes(
        channels * mixer.conv_window
    )
    return whole(kept_bytes) + mixer.extra_state_bytes


def block_cache_bytes(block: Block, tokens: int, formats: Formats, *, tensor: int = 1) -> CacheBytes:
    """Return the bytes that one layer holds for a sequence of ``tokens`` tokens on one rank.

    Source: the rule of each mixer, as `entry_bytes`, `held_tokens` and `state_bytes` cite it.

    >>> from kvcalc.core.model import Block
    >>> from kvcalc.core.workload import Formats
    >>> block_cache_bytes(Block(mixers=(Full(heads=64, kv_heads=8, head_dim=128),)), 10, Formats()).growing
    40960
    """
    sizes = [mixer_cache_bytes(mixer, tokens, formats, tensor=tensor) for mixer in block.mixers]
    return reduce(add, sizes) if sizes else CacheBytes(growing=0, state=0, cross=0)


def mixer_cache_bytes(mixer: Mixer, tokens: int, formats: Formats, *, tensor: int = 1) -> CacheBytes:
    """Return the bytes one mixer holds for a sequence of ``tokens`` tokens on one rank.

    Source: the rule of each kind, as `entry_bytes`, `held_tokens` and `state_bytes` cite it.

    >>> from kvcalc.core.workload import Formats
    >>> mixer_cache_bytes(Chunked(heads=8, kv_heads=1, head_dim=64, chunk=4), 10, Formats()).growing
    1024
    """
    growing = state = cross = 0
    match mixer:
        case Full() | Sliding() | Chunked() | Latent():
            growing = held_tokens(mixer, tokens) * entry_bytes(mixer, formats, tensor=tensor)
        case Compressed():
            growing = held_tokens(mixer, tokens) * entry_bytes(mixer, formats, tensor=tensor)
            growing += _compressed_bytes(mixer, tokens, formats)
        case State():
            state = state_bytes(mixer, formats, tensor=tensor)
        case Cross():
            cross = mixer.encoder_tokens * heads_bytes(mixer, formats, tensor=tensor)
        case Shared():
            pass
        case _:
            assert_never(mixer)
    return CacheBytes(growing=growing, state=state, cross=cross)


def cache_bytes(model: ModelProfile, tokens: int, formats: Formats, *, tensor: int = 1) -> CacheBytes:
    """Return the bytes that a sequence of ``tokens`` tokens holds over all layers, on one tensor-parallel rank.

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
    knees = {0}.union(*(mixer.cache_knees for mixer, _ in mixers))
    state = cache_bytes(model, 0, formats).state
    return tuple(_segment(knee, state, mixers, formats) for knee in sorted(knees))


def _segment(start: int, state: int, mixers: list[tuple[Mixer, int]], formats: Formats) -> Segment:
    base, slope = float(state), 0.0
    for mixer, count in mixers:
        entry = entry_bytes(mixer, formats) * count
        tokens_at_start = held_tokens(mixer, start)
        if held_tokens(mixer, start + 1) > tokens_at_start:
            slope += entry
        else:
            base += tokens_at_start * entry
        group = mixer.bends.group
        before, after = (bytes_beside_entries(mixer, groups * group, formats) for groups in (1, 2))
        slope += count * (after - before) / group
        groups = start // group
        base += count * (bytes_beside_entries(mixer, groups * group, formats) - groups * (after - before))
    return Segment(from_tokens=start, base_bytes=_exact(base), bytes_per_token=_exact(slope))


def bytes_beside_entries(mixer: Mixer, tokens: int, formats: Formats) -> int:
    """Return the bytes beside the entries of the tokens held: compressed entries, and tokens not yet compressed.

    Source: `mixer_cache_bytes` less `held_tokens` entries, as these cite them; states and encoders do not count.

    >>> from kvcalc.core.workload import Formats
    >>> mixer = Compressed(heads=8, head_dim=64, window=16, ratio=4, overlap=False, q_lora_rank=32, output_groups=2,
    ...                    output_rank=32)
    >>> [bytes_beside_entries(mixer, tokens, Formats()) for tokens in (4, 8, 100)]
    [128, 256, 3200]
    """
    logical_bytes = held_tokens(mixer, tokens) * entry_bytes(mixer, formats)
    return mixer_cache_bytes(mixer, tokens, formats).growing - logical_bytes


def _exact(value: float) -> float:
    return int(value) if value == int(value) else value
