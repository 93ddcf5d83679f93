"""What a rule returns, and what most rules share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.model import Dense, Full, Gated, Head, Sliding, Table

if TYPE_CHECKING:
    from kvcalc.core.model import Block, Encoder, Mixer, Mlp
    from kvcalc.importers.config_reader import Config

__all__ = ["Rule", "Shape", "heads", "mlp", "tables", "windowed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a config says of a model; the fields are those of `ModelProfile`."""

    hidden_size: int
    context_limit: int | None
    blocks: tuple[Block, ...]
    embeddings: tuple[Table, ...]
    head: Head | None
    encoder: Encoder | None = None
    matrix_parameters: int = 0
    vector_parameters: int = 0
    notes: tuple[str, ...] = ()


Rule = Callable[["Config"], Shape]


def heads(config: Config, *, hidden: int) -> tuple[int, int, int]:
    """Return query heads, KV heads and head width, by the keys that most configs use."""
    query = config.integer("num_attention_heads")
    kv = config.maybe_integer("num_key_value_heads") or query
    width = config.maybe_integer("head_dim") or hidden // query
    return query, kv, width


def tables(config: Config, *, hidden: int, tied: bool) -> tuple[tuple[Table, ...], Head]:
    """Return the token table and the output head."""
    vocabulary = config.integer("vocab_size")
    return (Table(name="token", rows=vocabulary, width=hidden),), Head(rows=vocabulary, tied=tied)


def mlp(width: int, *, gated: bool = True) -> Mlp:
    """Return an MLP of three matrices, or of two."""
    return Gated(width=width) if gated else Dense(width=width)


def windowed(query: int, kv: int, width: int, window: int | None) -> Mixer:
    """Return attention over a window, or over everything where there is none."""
    if window is None:
        return Full(heads=query, kv_heads=kv, head_dim=width)
    return Sliding(heads=query, kv_heads=kv, head_dim=width, window=window)
