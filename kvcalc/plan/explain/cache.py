"""Spelling the cache: bytes of an entry and of a state, on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from kvcalc.core.formats import parse_format
from kvcalc.core.model import Attention, Chunked, Compressed, Cross, Full, Latent, Shared, Sliding, State
from kvcalc.core.units import ceil_div
from kvcalc.cost.cache import kv_heads_per_rank
from kvcalc.plan.explain.text import share, stored

if TYPE_CHECKING:
    from kvcalc.core.formats import Format
    from kvcalc.core.model import Mixer
    from kvcalc.core.workload import Formats

__all__ = ["cache_text", "entry_text", "heads_text", "index_key_text", "state_text"]


def cache_text(mixer: Mixer, formats: Formats) -> tuple[str, str] | None:
    """Return formula and numbers of what a mixer keeps: an entry of a token, or its state; none where it keeps none."""
    match mixer:
        case State():
            return state_text(mixer, formats)
        case Shared() | Cross():
            return None
        case Full() | Sliding() | Chunked() | Latent() | Compressed():
            formula, text = entry_text(mixer, formats)
            keys = None if isinstance(mixer, Compressed) else index_key_text(mixer, formats)
            return (formula, text) if keys is None else (f"{formula} + index_head_dim x b", f"{text} + {keys}")
        case _:
            assert_never(mixer)


def entry_text(mixer: Attention | Latent | Compressed, formats: Formats, tensor: int = 1) -> tuple[str, str]:
    """Return formula and numbers of one token's entry on one rank, index keys apart."""
    if isinstance(mixer, Latent):
        width, text = mixer.kv_lora_rank + mixer.rope_dim, f"{mixer.kv_lora_rank} + {mixer.rope_dim}"
        return "(kv_lora_rank + rope_dim) x b", stored(text, width, formats.key, heads="1")
    if isinstance(mixer, Compressed):
        return "head_dim x b", stored(str(mixer.head_dim), mixer.head_dim, formats.key, heads="1")
    return heads_text(mixer, formats, tensor)


def heads_text(mixer: Attention, formats: Formats, tensor: int = 1) -> tuple[str, str]:
    """Return formula and numbers of one token's keys and values."""
    heads = share(mixer.kv_heads, tensor) if mixer.kv_heads >= tensor else "1"
    count = kv_heads_per_rank(mixer.kv_heads, tensor)
    sides = ((mixer.head_dim, formats.key), (mixer.value_dim, formats.value))
    whole = all(count * dim * fmt.block_bytes % fmt.block_elements == 0 for dim, fmt in sides)
    if formats.key == formats.value and whole and not formats.key.per_head:
        both = stored(f"{mixer.head_dim} + {mixer.value_dim}", 0, formats.key)
        return "kv_heads x (head_dim + value_head_dim) x b", f"{heads} * {both}"
    keys, values = (stored(f"{heads} * {dim}", count * dim, fmt, heads=heads) for dim, fmt in sides)
    formula = "kv_heads x head_dim x b_key + kv_heads x value_head_dim x b_value (+ scales)"
    return formula, f"{keys} + {values}"


def index_key_text(mixer: Mixer | Attention, formats: Formats) -> str | None:
    """Return the numbers of one token's index key, where the layer keeps one."""
    indexer = mixer.indexer
    if indexer is None or not indexer.stored:
        return None
    return stored(str(indexer.kept_dim), indexer.kept_dim, formats.key, heads="1")


def state_text(mixer: State, formats: Formats, tensor: int = 1) -> tuple[str, str]:
    """Return formula and numbers of a recurrent layer's states on one rank."""
    recurrent: Format = parse_format(mixer.recurrent_format) if mixer.recurrent_format else formats.state
    heads, channels = ceil_div(mixer.heads, tensor), ceil_div(mixer.conv_channels, tensor)
    state = f"{share(mixer.heads, tensor)} * {mixer.key_dim} * {mixer.value_dim}"
    columns = f"{share(mixer.conv_channels, tensor)} * {mixer.conv_window}"
    formula = "heads x key_dim x value_dim x b_state + conv_channels x conv_window x b"
    expression = (
        f"{stored(state, heads * mixer.key_dim * mixer.value_dim, recurrent)}"
        f" + {stored(columns, channels * mixer.conv_window, formats.state)}"
    )
    if mixer.extra_state_bytes:
        return f"{formula} + extra", f"{expression} + {mixer.extra_state_bytes}"
    return formula, expression
