"""Spelling token mixers: FLOP, cache and states read and written for one sequence of a pass, on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from kvcalc.core.model import Attention, Chunked, Compressed, Cross, Full, Latent, Shared, Sliding, State
from kvcalc.cost.attention import STATE_FLOP, past_read
from kvcalc.plan.explain.cache import entry_text, heads_text, index_key_text, state_text
from kvcalc.plan.explain.text import factor, share, total

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import Indexer, Mixer
    from kvcalc.core.workload import Formats, TokenGroup

    # Fields of an operator: the formula, and the same with numbers.
    Terms = Mapping[str, tuple[str, str]]

__all__ = ["mixer_terms"]


def mixer_terms(mixer: Mixer, group: TokenGroup, formats: Formats, tensor: int) -> Terms:
    """Return the work of a mixer for one sequence of a group."""
    match mixer:
        case Full() | Sliding() | Chunked() | Shared():
            return _attention_terms(mixer, group, formats, tensor)
        case Latent():
            return _latent_terms(mixer, group, formats, tensor)
        case Compressed():
            return _compressed_terms(mixer, group, formats, tensor)
        case Cross():
            return _cross_terms(mixer, group, formats, tensor)
        case State():
            return _state_terms(mixer, group, formats, tensor)
        case _:
            assert_never(mixer)


def _triangle(tokens: int, past: int = 0) -> str:
    after = f"{tokens} * ({tokens} + 1) / 2"
    return f"{tokens} * {past} + {after}" if past else after


def _pairs(query: int, past: int, window: int | None = None) -> str:
    """Spell `causal_pairs`."""
    if query == 1:
        return str(past + 1) if window is None else f"min({past + 1}, {window})"
    if window is None:
        return f"({_triangle(query, past)})"
    below = min(max(window - past, 0), query)
    terms = [_triangle(below, past)] if below else []
    if below < query:
        terms.append(f"({query} - {below}) * {window}")
    return f"({total(terms)})"


def _chunk_pairs(query: int, past: int, chunk: int) -> str:
    """Spell `chunk_pairs`."""
    if query == 1:
        return f"({past} % {chunk} + 1)"

    def up_to(tokens: int) -> str:
        chunks, rest = divmod(tokens, chunk)
        return total(([f"{chunks} * {_triangle(chunk)}"] if chunks else []) + ([_triangle(rest)] if rest else []))

    return f"({up_to(past + query)} - ({up_to(past)}))" if past else f"({up_to(query)})"


def _compressed_pairs(query: int, past: int, ratio: int, most: int | None = None) -> str:
    """Spell `compressed_pairs`."""
    if query == 1:
        return f"({past + 1} // {ratio})" if most is None else f"min({past + 1} // {ratio}, {most})"

    def up_to(tokens: int) -> str:
        capped = 0 if most is None else max(0, tokens - ratio * most)
        whole, rest = divmod(tokens - capped + 1, ratio)
        below = f"{ratio} * {whole} * ({whole} - 1) / 2 + {whole} * {rest}"
        return f"{below} + {capped} * {most}" if capped else below

    return f"({up_to(past + query)} - ({up_to(past)}))" if past else f"({up_to(query)})"


def _attention_terms(mixer: Attention, group: TokenGroup, formats: Formats, tensor: int) -> Terms:
    query, past = group.query_tokens, group.past_tokens
    indexer = mixer.indexer
    window = None if isinstance(mixer, Chunked) else mixer.span
    pairs, read, written = _pairs(query, past, window), str(past_read(query, past)), str(query)
    attended = "tokens attended" if query == 1 else "pairs of tokens"
    if isinstance(mixer, Chunked):
        pairs, read = _chunk_pairs(query, past, mixer.chunk), f"({past} % {mixer.chunk} + {int(query == 1)})"
        written = f"min({query}, {mixer.chunk})"
    elif window is not None:
        read = f"min({read}, {window if query == 1 else window - 1})"
        written = f"min({query}, {window})"
    elif indexer is not None:
        pairs, attended = _pairs(query, past, indexer.top_k), f"{attended}, top_k at most,"
    formula = f"2 x {attended} x heads x (head_dim + value_head_dim)"
    flop = f"2 * {pairs} * {share(mixer.heads, tensor)} * ({mixer.head_dim} + {mixer.value_dim})"
    if isinstance(mixer, Shared):
        entry_formula, entry = heads_text(mixer, formats, tensor)
        reread = (
            f"tokens read x {factor(entry_formula)}, read by an earlier layer as well",
            f"{read} * {factor(entry)}",
        )
        return {"flop": (formula, flop), "activation_bytes": reread}
    if indexer is not None:
        formula, flop = _with_index(formula, flop, indexer, query, past)
    return {"flop": (formula, flop)} | _entries(mixer, formats, tensor, read, written, query)


def _with_index(formula: str, flop: str, indexer: Indexer, query: int, past: int) -> tuple[str, str]:
    """Add the FLOP of scoring index keys."""
    if not indexer.stored:
        return formula, flop
    pairs = _pairs(query, past) if indexer.pool == 1 else _compressed_pairs(query, past, indexer.pool)
    added = f"2 * {pairs} * {indexer.heads} * {indexer.head_dim}"
    return f"{formula} + 2 x index keys scored x index_heads x index_head_dim", f"{flop} + {added}"


def _entries(
    mixer: Attention | Latent, formats: Formats, tensor: int, read: str, written: str, query: int
) -> dict[str, tuple[str, str]]:
    """Return cache read and written: with an index, its keys for every token and the entries of those chosen."""
    entry_formula, entry = entry_text(mixer, formats, tensor)
    bytes_formula = factor(entry_formula)
    indexer, keys = mixer.indexer, index_key_text(mixer, formats)
    if indexer is None:
        return {
            "kv_read_bytes": (f"tokens read x {bytes_formula}", f"{read} * {factor(entry)}"),
            "kv_write_bytes": (f"tokens written x {bytes_formula}", f"{written} * {factor(entry)}"),
        }
    chosen = f"min({read}, {query} * {indexer.top_k}) * {factor(entry)}"
    kept = entry if keys is None else f"{entry} + {keys}"
    index = "" if keys is None else " + index_head_dim x b"
    all_keys = "" if keys is None else "tokens x index_head_dim x b + "
    return {
        "kv_read_bytes": (
            f"{all_keys}min(tokens, new tokens x top_k) x {bytes_formula}",
            chosen if keys is None else f"{read} * {factor(keys)} + {chosen}",
        ),
        "kv_write_bytes": (f"tokens written x {factor(entry_formula + index)}", f"{written} * {factor(kept)}"),
    }


def _latent_terms(mixer: Latent, group: TokenGroup, formats: Formats, tensor: int) -> Terms:
    query, past = group.query_tokens, group.past_tokens
    heads, indexer = share(mixer.heads, tensor), mixer.indexer
    pairs = _pairs(query, past, indexer.top_k if indexer else None)
    most = ", top_k at most," if indexer else ""
    attended = f"tokens attended{most}" if query == 1 else f"pairs of tokens{most}"
    formula = f"2 x {attended} x heads x (2 x kv_lora_rank + rope_dim)"
    flop = f"2 * {pairs} * {heads} * (2 * {mixer.kv_lora_rank} + {mixer.rope_dim})"
    if query > 1:
        dims = f"({mixer.nope_dim} + {mixer.rope_dim} + {mixer.value_head_dim})"
        expanded = f"2 * {pairs} * {heads} * {dims}"
        if past:
            up = f"{mixer.kv_lora_rank} * ({mixer.nope_dim} + {mixer.value_head_dim})"
            expanded += f" + 2 * {past} * {heads} * {up}"
        formula = f"min({formula}, 2 x {attended} x heads x (nope_dim + rope_dim + value_head_dim) + expanded past)"
        flop = f"min({flop}, {expanded})"
    else:
        formula += ", up-projection absorbed"
    if indexer is not None:
        formula, flop = _with_index(formula, flop, indexer, query, past)
    read, written = str(past_read(query, past)), str(query)
    return {"flop": (formula, flop)} | _entries(mixer, formats, tensor, read, written, query)


def _compressed_terms(mixer: Compressed, group: TokenGroup, formats: Formats, tensor: int) -> Terms:
    query, past, ratio = group.query_tokens, group.past_tokens, mixer.ratio
    indexer = mixer.indexer
    most = indexer.top_k if indexer else None
    read = past_read(query, past)
    pairs = f"({_pairs(query, past, mixer.window)} + {_compressed_pairs(query, past, ratio, most)})"
    formula = "2 x (tokens of the window + compressed entries) attended x heads x 2 x head_dim"
    flop = f"2 * {pairs} * {share(mixer.heads, tensor)} * 2 * {mixer.head_dim}"
    entry = factor(entry_text(mixer, formats, tensor)[1])
    chosen = f"{read} // {ratio}" if most is None else f"min({read} // {ratio}, {query} * {most})"
    raw = f"min({read}, {mixer.window if query == 1 else mixer.window - 1})"
    reads = f"({raw} + {chosen}) * {entry}"
    written = f"(min({query}, {mixer.window}) + {query} / {ratio}) * {entry}"
    read_formula = "(tokens of the window + compressed entries chosen) x head_dim x b"
    write_formula = "(tokens of the window + new tokens / ratio) x head_dim x b"
    keys = index_key_text(mixer, formats)
    if indexer is not None:
        scored = _compressed_pairs(query, past, ratio)
        formula += " + 2 x index keys scored x index_heads x index_head_dim"
        flop += f" + 2 * {scored} * {indexer.heads} * {indexer.head_dim}"
    if keys is not None:
        read_formula, reads = f"{read_formula} + entries x index key", f"{reads} + {read} // {ratio} * {factor(keys)}"
        write_formula += " + new tokens / ratio x index key"
        written += f" + {query} / {ratio} * {factor(keys)}"
    return {
        "flop": (formula, flop),
        "kv_read_bytes": (read_formula, reads),
        "kv_write_bytes": (write_formula, written),
    }


def _cross_terms(mixer: Cross, group: TokenGroup, formats: Formats, tensor: int) -> Terms:
    entry_formula, entry = heads_text(mixer, formats, tensor)
    held = (f"encoder's tokens x {factor(entry_formula)}", f"{mixer.encoder_tokens} * {factor(entry)}")
    pairs = f"{group.query_tokens} * {mixer.encoder_tokens}"
    flop = f"2 * {pairs} * {share(mixer.heads, tensor)} * ({mixer.head_dim} + {mixer.value_dim})"
    formula = "2 x new tokens x encoder's tokens x heads x (head_dim + value_head_dim)"
    return {"flop": (formula, flop), "kv_read_bytes": held, "kv_write_bytes": held}


def _state_terms(mixer: State, group: TokenGroup, formats: Formats, tensor: int) -> Terms:
    held = state_text(mixer, formats, tensor)
    each = STATE_FLOP.get(mixer.variant, 4)
    state = f"{each} * {share(mixer.heads, tensor)} * {mixer.key_dim} * {mixer.value_dim}"
    convolution = f"2 * {share(mixer.conv_channels, tensor)} * {mixer.conv_kernel}"
    return {
        "flop": (
            f"new tokens x ({each} x heads x key_dim x value_dim + 2 x conv_channels x conv_kernel)",
            f"{group.query_tokens} * ({state} + {convolution})",
        ),
        "kv_read_bytes": held,
        "kv_write_bytes": held,
    }
