"""What a layer is made of: token mixers and MLPs.

Sizes are element counts. *Matrix* parameters multiply the hidden state (2 FLOP each for a token); *vector* parameters
(norms, biases, convolution kernels, gates that scale) are held and read but not counted as FLOP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MIXERS",
    "MLPS",
    "Attention",
    "Chunked",
    "Compressed",
    "Cross",
    "Dense",
    "Full",
    "Gated",
    "Indexer",
    "Latent",
    "Mixer",
    "Mixture",
    "Mlp",
    "Shared",
    "Sliding",
    "State",
]

_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """The index of a sparse-attention layer: small keys for every token, scored to choose which tokens are read.

    Args:
        heads: index query heads.
        head_dim: elements of one index key; one key a token, shared by the heads.
        top_k: tokens (or compressed entries) chosen for each query.
        query_inputs: width of the vector the index queries are projected from.
        head_weights: whether a projection hidden -> heads weighs the heads.
        stored: whether this layer keeps its own index keys (false where it follows an earlier layer's choice).
        matrix_parameters: further matrix elements of the indexer (a compressor's projections).
        stored_dim: elements kept for a token where they are more than an index key (what a later pooling needs).
        pool: tokens whose keys are pooled into one before queries are scored against it.
    """

    __pydantic_config__ = _STRICT
    heads: int
    head_dim: int
    top_k: int
    query_inputs: int = 0
    head_weights: bool = True
    stored: bool = True
    matrix_parameters: int = 0
    stored_dim: int | None = None
    pool: int = 1

    @property
    def kept_dim(self) -> int:
        """Elements kept for a token."""
        return self.head_dim if self.stored_dim is None else self.stored_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What every attention with stored heads has in common.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Full(Attention):
    """Causal attention over every past token."""

    __pydantic_config__ = _STRICT
    indexer: Indexer | None = None
    kind: Literal["full"] = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliding(Attention):
    """Causal attention over the last ``window`` tokens, the new one included."""

    __pydantic_config__ = _STRICT
    window: int
    kind: Literal["sliding"] = "sliding"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked(Attention):
    """Causal attention inside fixed chunks of ``chunk`` tokens."""

    __pydantic_config__ = _STRICT
    chunk: int
    kind: Literal["chunked"] = "chunked"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """Attention over a window of raw entries and one compressed entry for each ``ratio`` tokens (DeepSeek-V4).

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
    kind: Literal["compressed"] = "compressed"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """An MLP of two matrices: up and down."""

    __pydantic_config__ = _STRICT
    width: int
    shared_weights: bool = False
    kind: Literal["dense"] = "dense"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """An MLP of three matrices: gate, up and down."""

    __pydantic_config__ = _STRICT
    width: int
    shared_weights: bool = False
    kind: Literal["gated"] = "gated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A mixture of experts.

    Args:
        experts: routed experts held by the layer.
        experts_per_token: of these, how many a token is sent to.
        width: inner width of one routed expert.
        gated: whether an expert has three matrices or two.
        shared_width: inner width of what every token passes beside the routed experts (0 where there is none).
        shared_gate: whether a projection hidden -> 1 scales the shared part.
        zero_experts: choices of the router that do nothing (they take a place among ``experts_per_token``).
        inputs: width the experts work in; the hidden size where left out (else two projections lead there and back).
        expert_bias: whether each expert's matrices have biases.
        router: whether the layer has a router matrix.
    """

    __pydantic_config__ = _STRICT
    experts: int
    experts_per_token: int
    width: int
    gated: bool = True
    shared_width: int = 0
    shared_gate: bool = False
    zero_experts: int = 0
    inputs: int | None = None
    expert_bias: bool = False
    router: bool = True
    kind: Literal["mixture"] = "mixture"

    @property
    def branches(self) -> int:
        """Matrices of an expert that lead to its inner width: gate and up, or up alone."""
        return 2 if self.gated else 1


Mlp = Dense | Gated | Mixture
MLPS: Mapping[str, type[Mlp]] = {"dense": Dense, "gated": Gated, "mixture": Mixture}
