"""Mixtures of experts with grouped-head attention: their common part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.model import Full, Indexer, Mixture, Sliding
from kvcalc.importers.families.shape import Shape, attention_biases, decoder_shape, heads, mtp_notes, stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import Mixer, Mlp
    from kvcalc.importers.config_reader import Config

__all__ = [
    "ATTENTION_KINDS",
    "MLP_KINDS",
    "Grouped",
    "announced_mtp",
    "feeds_of",
    "grouped",
    "layer_count",
    "plain_experts",
    "routed_experts",
    "sparse_steps",
    "uniform_mixture",
    "window_of",
    "windowed_mixers",
]

ATTENTION_KINDS = ("full_attention", "sliding_attention")
MLP_KINDS = ("dense", "sparse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Head counts and widths of a model's attention.

    Args:
        query: query heads.
        kv: key-value heads.
        width: width of a head.
        vectors: biases of the projections and weights of the norms on queries and keys.
        gate: elements of the output gate, per head.
    """

    query: int
    kv: int
    width: int
    vectors: int
    gate: int = 0

    def mixer(self, window: int | None = None, *, indexer: Indexer | None = None) -> Mixer:
        """Return the attention over a window, or over everything where there is none."""
        if window is None:
            return Full(heads=self.query, kv_heads=self.kv, head_dim=self.width, output_gate=self.gate, indexer=indexer)
        return Sliding(heads=self.query, kv_heads=self.kv, head_dim=self.width, output_gate=self.gate, window=window)


def grouped(
    config: Config,
    hidden: int,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    norm: str = "",
    gate: bool = False,
    sinks: bool = False,
    query: int | None = None,
) -> Grouped:
    """Read head counts and count the vectors that go with them.

    Args:
        config: the config.
        hidden: the hidden size.
        qkv_bias: whether queries, keys and values have biases.
        output_bias: whether the output projection has one.
        norm: ``head`` for one norm weight shared by the heads, ``all`` for weights over all heads together.
        gate: whether a projection as wide as the queries gates the output.
        sinks: whether each query head has a sink logit.
        query: query heads, where they change from layer to layer.
    """
    declared, kv, width = heads(config, hidden=hidden)
    query = declared if query is None else query
    vectors = attention_biases(query, kv, width, hidden, inputs=qkv_bias, output=output_bias)
    vectors += {"": 0, "head": 2 * width, "all": (query + kv) * width}[norm]
    vectors += query if sinks else 0
    return Grouped(query=query, kv=kv, width=width, vectors=vectors, gate=width if gate else 0)


def _experts(config: Config, *names: str) -> int:
    """Return the number of routed experts, under the name of the family or one of its aliases."""
    return config.integer(*names, "num_local_experts", "num_experts")


def layer_count(config: Config) -> int:
    """Return the number of layers."""
    return config.integer("num_hidden_layers")


def feeds_of(
    kinds: Sequence[str], *, dense: Mlp, sparse: Mlp, dense_vectors: int = 0, sparse_vectors: int = 0
) -> list[tuple[Mlp, int]]:
    """Return each layer's MLP with its vectors, from the list of MLP kinds."""
    return [(sparse, sparse_vectors) if kind == "sparse" else (dense, dense_vectors) for kind in kinds]


def windowed_mixers(kinds: Sequence[str], of: Grouped, window: int | None) -> list[tuple[Mixer, int]]:
    """Return each layer's attention with its vectors, from the list of attention kinds."""
    local, everything = of.mixer(window), of.mixer()
    return [(local if kind == "sliding_attention" else everything, of.vectors) for kind in kinds]


def window_of(config: Config, kinds: Sequence[str]) -> int | None:
    """Return the sliding window where a layer has one."""
    return config.integer("sliding_window") if "sliding_attention" in kinds else None


def uniform_mixture(config: Config, of: Grouped, experts: Mlp, *, window: int | None = None, norms: int = 2) -> Shape:
    """Return a model whose layers are all alike."""
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    blocks = stack([(of.mixer(window), of.vectors)] * layers, [(experts, 0)] * layers, norms=norms * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=announced_mtp(config))


def announced_mtp(config: Config) -> tuple[str, ...]:
    """Return a note on multi-token-prediction layers, by any of the names they are announced under."""
    return mtp_notes(config, "num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules")


def plain_experts(config: Config, *, width: str, shared: int = 0, shared_gate: bool = False) -> Mixture:
    """Return experts as Mixtral's and Qwen's configs spell them; ``width`` is the key of their inner width."""
    return Mixture(
        experts=_experts(config),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer(width),
        shared_width=shared,
        shared_gate=shared_gate,
    )


def routed_experts(config: Config, *, shared: str) -> Mixture:
    """Return experts as DeepSeek's configs spell them: shared ones, which ``shared`` counts, are as wide as routed."""
    width = config.integer("moe_intermediate_size")
    return Mixture(
        experts=_experts(config, "n_routed_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=width,
        shared_width=width * config.integer_or(0, shared, "num_shared_experts", least=0),
    )


def sparse_steps(config: Config, layers: int, *, dense: Sequence[int] = ()) -> list[str]:
    """MLP kinds of the Qwen mixtures: every ``decoder_sparse_step``-th layer, but for ``mlp_only_layers``."""
    step = config.integer("decoder_sparse_step")
    only = config.sequence("mlp_only_layers", default=None) if config.has("mlp_only_layers") else list(dense)
    return ["sparse" if layer not in only and (layer + 1) % step == 0 else "dense" for layer in range(layers)]
