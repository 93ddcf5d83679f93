"""Token mixers: the kinds of attention and of recurrent state that a layer is made of, each with its traits.

Sizes are element counts. *Matrix* parameters multiply the hidden state (2 FLOP each for a token); *vector* parameters
(norms, biases, convolution kernels, gates that scale) are held and read but not counted as FLOP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from kvcalc.core.records import dataclass
from kvcalc.core.traits import STRAIGHT, Bends, Entry, Indexer, Traits

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MIXERS",
    "Attention",
    "Chunked",
    "Compressed",
    "Cross",
    "Full",
    "Indexer",
    "Latent",
    "Mixer",
    "Shared",
    "Sliding",
    "State",
]

_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}


def _indexed(indexer: Indexer | None, *, group: int = 1, window: int | None = None) -> Bends:
    """Bends of attention that reads ``top_k`` entries at most, each of which stands for ``group`` tokens."""
    knees = () if window is None else (window,)
    if indexer is None:
        return Bends(knees=knees, group=group)
    scored = () if indexer.candidates is None else (group * indexer.candidates,)
    return Bends(knees=(*knees, group * indexer.top_k, *scored), group=group, pool=indexer.pool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Traits):
    """Traits that every attention with stored heads has in common.

    Args:
        heads: query heads.
        kv_heads: key-value heads.
        head_dim: width of a query and key head.
        value_head_dim: width of a value head; ``head_dim`` where left out.
        inputs: width of the vector that is projected to queries, keys and values; the hidden size where left out.
        output_gate: elements a query projection carries beside the queries, per head (a sigmoid gate on the output).
        value_from_key: whether values come from the key projection (both are still stored).
        shared_weights: whether the projections are an earlier layer's (stored once, multiplied again).
        projection_parameters: elements of all projections together, where they are not the plain four (low-rank or
            grouped ones).
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int | None = None
    inputs: int | None = None
    output_gate: int = 0
    value_from_key: bool = False
    shared_weights: bool = False
    projection_parameters: int | None = None

    @property
    def value_dim(self) -> int:
        """Width of a value head."""
        return self.head_dim if self.value_head_dim is None else self.value_head_dim

    @property
    def entry(self) -> Entry | None:
        """Keys and values of all KV heads, and an index key where the layer keeps one."""
        index_dim = 0 if self.indexer is None else self.indexer.entry_dim
        return Entry(kv_heads=self.kv_heads, key_dim=self.head_dim, value_dim=self.value_dim, index_dim=index_dim)

    def splits_evenly(self, ranks: int) -> bool:
        """Whether ranks share query heads evenly, and KV heads too or several ranks each one of these."""
        return self.heads % ranks == 0 and (self.kv_heads % ranks == 0 or ranks % self.kv_heads == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Full(Attention):
    """Causal attention over every past token."""

    __pydantic_config__ = _STRICT
    indexer: Indexer | None = None
    kind: Literal["full"] = "full"

    @property
    def span(self) -> None:
        """Every token is attended to."""

    @property
    def bends(self) -> Bends:
        """Bends where the index has more tokens than it chooses."""
        return _indexed(self.indexer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliding(Attention):
    """Causal attention over the last ``window`` tokens, the new one included."""

    __pydantic_config__ = _STRICT
    window: int
    kind: Literal["sliding"] = "sliding"

    @property
    def span(self) -> int:
        """The window."""
        return self.window

    @property
    def bends(self) -> Bends:
        """Bends where the window is full."""
        return Bends(knees=(self.window,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked(Attention):
    """Causal attention inside fixed chunks of ``chunk`` tokens."""

    __pydantic_config__ = _STRICT
    chunk: int
    kind: Literal["chunked"] = "chunked"

    @property
    def span(self) -> int:
        """The chunk."""
        return self.chunk

    @property
    def bends(self) -> Bends:
        """Begins anew with each chunk."""
        return Bends(restart=self.chunk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared(Attention):
    """Attention over an earlier layer's cache: it stores no keys and values of its own.

    Args:
        window: the sliding window of the cache it reads, if that has one.
        projects: whether the checkpoint still holds (unused) key and value projections for it.
    """

    __pydantic_config__ = _STRICT
    window: int | None = None
    projects: bool = False
    kind: Literal["shared"] = "shared"

    @property
    def entry(self) -> None:
        """Nothing: the earlier layer keeps the entries."""

    @property
    def span(self) -> int | None:
        """The window of the earlier layer."""
        return self.window

    @property
    def bends(self) -> Bends:
        """Bends where the window is full."""
        return STRAIGHT if self.window is None else Bends(knees=(self.window,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cross(Attention):
    """Attention over an encoder's output (text, audio or image tokens).

    Args:
        encoder_tokens: tokens of the encoder's output for one sequence.
        encoder_inputs: width of the encoder's output; the hidden size where left out.
    """

    __pydantic_config__ = _STRICT
    encoder_tokens: int
    encoder_inputs: int | None = None
    kind: Literal["cross"] = "cross"

    @property
    def entry(self) -> None:
        """Nothing: the encoder's tokens are kept, however many follow."""

    @property
    def span(self) -> None:
        """All of the encoder's tokens are attended to."""

    @property
    def bends(self) -> Bends:
        """The same at every context."""
        return STRAIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent(Traits):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one compressed vector a token, shared by all heads.

    Args:
        heads: query heads.
        kv_lora_rank: width of the compressed key-value vector.
        rope_dim: width of the decoupled rotary key stored beside it.
        nope_dim: width of the part of a query head without rotary position.
        value_head_dim: width of a value head.
        q_lora_rank: width of the compressed query; left out where queries are projected directly.
        output_gate: elements of a gate on the attention's output (a projection of the hidden state).
        indexer: the sparse indexer, where there is one.
    """

    __pydantic_config__ = _STRICT
    heads: int
    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    value_head_dim: int
    q_lora_rank: int | None = None
    output_gate: int = 0
    indexer: Indexer | None = None
    kind: Literal["latent"] = "latent"

    @property
    def entry(self) -> Entry:
        """One latent vector with its rotary key, the same on every rank, and an index key where the layer keeps one."""
        index_dim = 0 if self.indexer is None else self.indexer.entry_dim
        return Entry(kv_heads=1, key_dim=self.kv_lora_rank + self.rope_dim, value_dim=0, index_dim=index_dim)

    @property
    def span(self) -> None:
        """Every token is attended to."""

    @property
    def bends(self) -> Bends:
        """Bends where the index has more tokens than it chooses."""
        return _indexed(self.indexer)

    def splits_evenly(self, ranks: int) -> bool:
        """Whether ranks share the query heads evenly."""
        return self.heads % ranks == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed(Traits):
    """Attention over a window of raw entries and one compressed entry for each ``ratio`` tokens (DeepSeek-V4, V4.1).

    Keys and values are one vector of ``head_dim`` elements, shared by the heads.

    Args:
        heads: query heads.
        head_dim: width of a head and of a cache entry.
        window: raw entries kept.
        ratio: tokens behind one compressed entry.
        overlap: whether a compressed entry also looks at the previous ``ratio`` tokens (doubles the compressor).
        q_lora_rank: width of the compressed query.
        output_groups: groups of heads that the output is first projected in.
        output_rank: width of each group's output.
        indexer: the sparse indexer over the compressed entries, where there is one.
        entries: whether the compressed entries are its ``own``, an ``earlier`` layer's, or there are ``none``.
        index_from_entries: whether index keys are made from the compressed entries, without a compressor of their own.
    """

    __pydantic_config__ = _STRICT
    heads: int
    head_dim: int
    window: int
    ratio: int
    overlap: bool
    q_lora_rank: int
    output_groups: int
    output_rank: int
    indexer: Indexer | None = None
    entries: Literal["own", "earlier", "none"] = "own"
    index_from_entries: bool = False
    kind: Literal["compressed"] = "compressed"

    @property
    def entry(self) -> Entry:
        """One raw vector in the window; the compressed ones beside it grow by groups (`kvcalc.cost.cache`)."""
        return Entry(kv_heads=1, key_dim=self.head_dim, value_dim=0)

    @property
    def span(self) -> int:
        """The window of raw entries."""
        return self.window

    @property
    def bends(self) -> Bends:
        """Bends where the window is full and where the index has more entries than it chooses."""
        return _indexed(self.indexer, group=self.ratio, window=self.window)

    @property
    def cache_knees(self) -> tuple[int, ...]:
        """The full window, and the first whole group, from which on the overlap is kept."""
        return (self.window, self.ratio) if self.overlap else (self.window,)

    def splits_evenly(self, ranks: int) -> bool:
        """Whether ranks share the query heads evenly."""
        return self.heads % ranks == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class State(Traits):
    """A recurrent layer: a constant number of bytes a sequence, however long it grows.

    The recurrent state is ``heads`` matrices of ``key_dim`` x ``value_dim``; the convolution state is the last
    ``conv_window`` columns of ``conv_channels``.

    Args:
        variant: the recurrence, which decides the FLOP of an update.
        heads: state heads (channels, for Mamba-1 and RG-LRU).
        key_dim: rows of a head's state (``state_size`` of a Mamba).
        value_dim: columns of a head's state (``head_dim`` of a Mamba-2).
        conv_channels: channels of the causal convolution.
        conv_window: columns that the model's own code keeps of them.
        conv_kernel: width of the convolution kernel.
        recurrent_format: format the recurrent state is kept in; left out where it follows the cache's.
        requested_format: format the config asks engines to keep the recurrent state in, where it asks for one.
        extra_state_bytes: further bytes of state (normalisers, counters).
        matrix_parameters: elements of the projections in and out.
        groups: groups that share the input and output vectors of a Mamba-2.
    """

    __pydantic_config__ = _STRICT
    variant: Literal["mamba", "mamba2", "gated_delta", "linear", "short_conv", "rg_lru", "rwkv", "xlstm"]
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    conv_channels: int = 0
    conv_window: int = 0
    conv_kernel: int = 0
    recurrent_format: str | None = None
    requested_format: str | None = None
    extra_state_bytes: int = 0
    matrix_parameters: int = 0
    groups: int = 1
    kind: Literal["state"] = "state"

    @property
    def entry(self) -> None:
        """Nothing: the state has the same size at every length."""

    @property
    def span(self) -> None:
        """The state sums up all tokens."""

    @property
    def bends(self) -> Bends:
        """The same at every context."""
        return STRAIGHT

    def splits_evenly(self, ranks: int) -> bool:
        """Whether a rank takes whole heads: the fullest one's share counts, so any number does."""
        del ranks
        return True


Mixer = Full | Sliding | Chunked | Shared | Cross | Latent | Compressed | State
MIXERS: Mapping[str, type[Mixer]] = {
    "full": Full,
    "sliding": Sliding,
    "chunked": Chunked,
    "shared": Shared,
    "cross": Cross,
    "latent": Latent,
    "compressed": Compressed,
    "state": State,
}
