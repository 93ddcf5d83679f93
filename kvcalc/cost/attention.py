"""Token mixers in one pass: FLOP, cache and states read and written, for each kind of attention and state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from kvcalc.core.model import Attention, Chunked, Compressed, Cross, Full, Latent, Shared, Sliding, State
from kvcalc.core.records import dataclass
from kvcalc.core.traced import smaller
from kvcalc.core.units import ceil_div
from kvcalc.cost.cache import compressed_entry_bytes, entry_bytes, heads_bytes, index_key_bytes, state_bytes

if TYPE_CHECKING:
    from kvcalc.core.model import Indexer, Mixer
    from kvcalc.core.workload import Formats, TokenGroup

__all__ = [
    "STATE_FLOP",
    "AttentionWork",
    "causal_pairs",
    "chunk_pairs",
    "compressed_pairs",
    "encoder_flop",
    "mixer_work",
    "past_read",
]

# FLOP for each element of a recurrent state and token: an outer product is added and a query read out (2 + 2);
# the delta rule first reads the old value out (2 more).
STATE_FLOP = {"gated_delta": 6, "short_conv": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """Work of one mixer for all sequences of a group, on one rank.

    Args:
        flop: multiplications of queries with keys, scores with values, states with vectors; linear layers excluded.
        read_bytes: cache and states read.
        write_bytes: cache entries and states written.
        reread_bytes: cache that an earlier layer of the same pass has read already.
    """

    flop: float
    read_bytes: float
    write_bytes: float
    reread_bytes: float = 0


def causal_pairs(query: int, past: int, window: int | None = None) -> int:
    """Return query-key pairs of causal attention: the sum over i = 1 … query of min(past + i, window).

    A prefill of T has T(T+1)/2 pairs, a decode step at context T has T.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.3 (masking); Beltagy et al. 2020, arXiv 2004.05150.

    >>> causal_pairs(4, 0), causal_pairs(1, 99), causal_pairs(4, 0, 2)
    (10, 100, 7)
    """
    if window is None:
        return query * past + query * (query + 1) // 2
    below = min(max(window - past, 0), query)
    return below * past + below * (below + 1) // 2 + (query - below) * window


def chunk_pairs(query: int, past: int, chunk: int) -> int:
    """Return query-key pairs where a token attends to those of its own chunk, itself included.

    Source: Meta, Llama 4 (attention_chunk_size of the model's config): position j sees j mod chunk + 1 tokens.

    >>> chunk_pairs(4, 0, 2), chunk_pairs(1, 2, 2)
    (6, 1)
    """
    if query == 1:
        return past % chunk + 1

    def up_to(tokens: int) -> int:
        chunks, rest = divmod(tokens, chunk)
        return chunks * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2

    return up_to(past + query) - up_to(past)


def compressed_pairs(query: int, past: int, ratio: int, max_selected: int | None = None) -> int:
    """Return query-entry pairs, an entry for each ``ratio`` tokens: the sum of min(⌊(past + i) / ratio⌋, max_selected).

    Source: DeepSeek-V4 model config (``compress_ratios``, ``index_topk``).

    >>> compressed_pairs(4, 0, 2), compressed_pairs(4, 0, 2, 1)
    (4, 3)
    """
    if query == 1:
        entries = (past + 1) // ratio
        return entries if max_selected is None else smaller(entries, max_selected)

    def up_to(tokens: int) -> int:
        capped = 0 if max_selected is None else max(0, tokens - ratio * max_selected)
        plain = tokens - capped
        whole, rest = divmod(plain + 1, ratio)
        return ratio * (whole * (whole - 1) // 2) + whole * rest + capped * (max_selected or 0)

    return up_to(past + query) - up_to(past)


def past_read(query: int, past: int) -> int:
    """Return the tokens whose entries a pass reads from the cache.

    A decode step reads the cache at its context, its own entry included (the definition of ``kv_read_bytes``). With
    more new tokens, the past is read once and the new entries are still at hand.

    Source: Dao et al. 2022, arXiv 2205.14135 (keys and values stream through on-chip memory once).

    >>> past_read(1, 99), past_read(5, 99), past_read(512, 0)
    (100, 99, 0)
    """
    return past + 1 if query == 1 else past


def mixer_work(mixer: Mixer, group: TokenGroup, formats: Formats, *, tensor: int = 1) -> AttentionWork:
    """Return the work of a mixer for a group of sequences on the fullest of ``tensor`` ranks.

    Source: for scores and values 2 * pairs * heads * (head_dim + value_head_dim), Vaswani et al. 2017, arXiv
    1706.03762; the other kinds as the functions here cite them.

    >>> from kvcalc.core.workload import Formats, decode_step
    >>> layer = Full(heads=32, kv_heads=8, head_dim=128)
    >>> mixer_work(layer, decode_step(batch=2, context=100), Formats())
    AttentionWork(flop=3276800, read_bytes=819200, write_bytes=8192, reread_bytes=0)
    """
    match mixer:
        case Full() | Sliding() | Chunked() | Shared():
            return _attention_work(mixer, group, formats, tensor)
        case Latent():
            return _latent_work(mixer, group, formats, tensor)
        case Compressed():
            return _compressed_work(mixer, group, formats, tensor)
        case Cross():
            return _cross_work(mixer, group, formats, tensor)
        case State():
            return _state_work(mixer, group, formats, tensor)
        case _:
            assert_never(mixer)


def _attention_work(mixer: Attention, group: TokenGroup, formats: Formats, tensor: int) -> AttentionWork:
    query, past = group.query_tokens, group.past_tokens
    stored = entry_bytes(mixer, formats, tensor=tensor)
    read, written = past_read(query, past), query
    if isinstance(mixer, Chunked):
        pairs = chunk_pairs(query, past, mixer.chunk)
        read = past_read(query, past % mixer.chunk)
        written = smaller(query, mixer.chunk)
    else:
        pairs = causal_pairs(query, past, mixer.span)
        if mixer.span is not None:
            read = smaller(read, mixer.span if query == 1 else mixer.span - 1)
            written = smaller(query, mixer.span)
    heads = ceil_div(mixer.heads, tensor)
    reread = read * heads_bytes(mixer, formats, tensor=tensor) if isinstance(mixer, Shared) else 0
    flop = 2 * pairs * heads * (mixer.head_dim + mixer.value_dim)
    read_bytes = read * stored
    indexer = mixer.indexer
    if indexer is not None:
        chosen = causal_pairs(query, past, indexer.top_k)
        flop = 2 * chosen * heads * (mixer.head_dim + mixer.value_dim)
        flop += _index_flop(indexer, query, past)
        keys = index_key_bytes(indexer, formats)
        read_bytes = read * keys + smaller(read, query * indexer.top_k) * (stored - keys)
    return AttentionWork(
        flop=group.sequences * flop,
        read_bytes=group.sequences * read_bytes,
        write_bytes=group.sequences * written * stored,
        reread_bytes=group.sequences * reread,
    )


def _index_flop(indexer: Indexer, query: int, past: int) -> int:
    """FLOP of scoring index keys for one sequence; keys of a pool are scored as one, once the pool is full."""
    if not indexer.stored:
        return 0
    pairs = causal_pairs(query, past) if indexer.pool == 1 else compressed_pairs(query, past, indexer.pool)
    return 2 * pairs * indexer.heads * indexer.head_dim


def _latent_work(mixer: Latent, group: TokenGroup, formats: Formats, tensor: int) -> AttentionWork:
    """Take whichever way to attend to latent vectors needs fewer FLOP.

    Decode absorbs the up-projection into queries and outputs and works on the latent vectors (DeepSeek-V2, arXiv
    2405.04434, section 2.1.2); a pass of several tokens may instead expand past and new vectors to heads. Expansion of
    the new tokens is the matrix ``attention.latent_up``.
    """
    query, past = group.query_tokens, group.past_tokens
    heads = ceil_div(mixer.heads, tensor)
    pairs = causal_pairs(query, past)
    stored = entry_bytes(mixer, formats, tensor=tensor)
    read = past_read(query, past)
    read_bytes = read * stored
    attended, index_flop = pairs, 0
    indexer = mixer.indexer
    if indexer is not None:
        attended = causal_pairs(query, past, indexer.top_k)
        keys = index_key_bytes(indexer, formats)
        index_flop = _index_flop(indexer, query, past)
        read_bytes = read * keys + smaller(read, query * indexer.top_k) * (stored - keys)
    flop = 2 * attended * heads * (2 * mixer.kv_lora_rank + mixer.rope_dim)
    if query > 1:
        per_pair = 2 * heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_head_dim)
        expanded_past = 2 * past * heads * mixer.kv_lora_rank * (mixer.nope_dim + mixer.value_head_dim)
        flop = smaller(flop, attended * per_pair + expanded_past)
    return AttentionWork(
        flop=group.sequences * (flop + index_flop),
        read_bytes=group.sequences * read_bytes,
        write_bytes=group.sequences * query * stored,
    )


def _compressed_work(mixer: Compressed, group: TokenGroup, formats: Formats, tensor: int) -> AttentionWork:
    """Read the window and the compressed entries; those of an earlier layer are read again."""
    query, past = group.query_tokens, group.past_tokens
    heads, entry = ceil_div(mixer.heads, tensor), entry_bytes(mixer, formats, tensor=tensor)
    raw = smaller(past_read(query, past), mixer.window if query == 1 else mixer.window - 1)
    pairs = causal_pairs(query, past, mixer.window)
    written = smaller(query, mixer.window) * entry
    index_flop, entries_read, entries_written = 0, 0, 0.0
    if mixer.entries != "none":
        kept = compressed_entry_bytes(mixer, formats)
        chosen_pairs, index_flop, entries_read = _entries_work(mixer, query, past, kept, formats)
        pairs += chosen_pairs
        entries_written = query / mixer.ratio * (kept + index_key_bytes(mixer.indexer, formats))
    own = mixer.entries == "own"
    read_bytes = raw * entry + entries_read if own else raw * entry
    return AttentionWork(
        flop=group.sequences * (2 * pairs * heads * 2 * mixer.head_dim + index_flop),
        read_bytes=group.sequences * read_bytes,
        write_bytes=group.sequences * (written + entries_written if own else written),
        reread_bytes=0 if own else group.sequences * entries_read,
    )


def _entries_work(mixer: Compressed, query: int, past: int, entry: int, formats: Formats) -> tuple[int, int, int]:
    """Return pairs with compressed entries, FLOP of their index, and bytes of the entries and keys that are read."""
    indexer, entries = mixer.indexer, past_read(query, past) // mixer.ratio
    if indexer is None:
        return compressed_pairs(query, past, mixer.ratio), 0, entries * entry
    pairs = compressed_pairs(query, past, mixer.ratio, indexer.top_k)
    read_bytes = smaller(entries, query * indexer.top_k) * entry
    if not indexer.stored:
        return pairs, 0, read_bytes
    scored = compressed_pairs(query, past, mixer.ratio, indexer.candidates)
    keys = index_key_bytes(replace(indexer, own_keys=True), formats)
    selected = entries if indexer.candidates is None else smaller(entries, query * indexer.candidates)
    return pairs, 2 * scored * indexer.heads * indexer.head_dim, read_bytes + selected * keys


def _cross_work(mixer: Cross, group: TokenGroup, formats: Formats, tensor: int) -> AttentionWork:
    heads = ceil_div(mixer.heads, tensor)
    cache_bytes = mixer.encoder_tokens * heads_bytes(mixer, formats, tensor=tensor)
    flop = 2 * group.query_tokens * mixer.encoder_tokens * heads * (mixer.head_dim + mixer.value_dim)
    return AttentionWork(
        flop=group.sequences * flop,
        read_bytes=0 if group.encoder_pass else group.sequences * cache_bytes,
        write_bytes=group.sequences * cache_bytes if group.encoder_pass else 0,
    )


def _state_work(mixer: State, group: TokenGroup, formats: Formats, tensor: int) -> AttentionWork:
    """A recurrence touches its whole state once a pass, however many tokens (Gu and Dao 2023, arXiv 2312.00752)."""
    kept_bytes = state_bytes(mixer, formats, tensor=tensor)
    heads = ceil_div(mixer.heads, tensor)
    per_token = STATE_FLOP.get(mixer.variant, 4) * heads * mixer.key_dim * mixer.value_dim
    per_token += 2 * ceil_div(mixer.conv_channels, tensor) * mixer.conv_kernel
    return AttentionWork(
        flop=group.tokens * per_token,
        read_bytes=group.sequences * kept_bytes if group.past_tokens or group.query_tokens == 1 else 0,
        write_bytes=group.sequences * kept_bytes,
    )


def encoder_flop(mixer: Attention, sequences: int, tokens: int, *, tensor: int = 1) -> float:
    """Return the FLOP of one encoder layer's attention, where every token attends to every other.

    Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.3 (encoder self-attention is not masked).

    >>> encoder_flop(Full(heads=1, kv_heads=1, head_dim=4), 1, 10)
    1600
    """
    heads = ceil_div(mixer.heads, tensor)
    return 2 * sequences * tokens * tokens * heads * (mixer.head_dim + mixer.value_dim)
