"""Decoders with multi-head latent attention: DeepSeek-V2 to V3.2 and what was built after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Gated, Indexer, Latent, Mixture
from kvcalc.importers.families.mixture_older import deepseek
from kvcalc.importers.families.shape import (
    Shape,
    decoder_shape,
    dense_first,
    head_width,
    layer_list,
    mtp_notes,
    refuse,
    stack,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import Mixer, Mlp
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = [
    "INDEXER_KINDS",
    "MLP_KINDS",
    "RULES",
    "first_dense",
    "indexed_layers",
    "indexer_kinds",
    "latent_attention",
    "latent_experts",
    "latent_feeds",
    "latent_mtp",
    "longcat_flash",
    "only_indexed",
]

MLP_KINDS = ("dense", "sparse")
INDEXER_KINDS = ("full", "shared")


def latent_attention(
    config: Config, hidden: int, *, indexer: Indexer | None = None, gated: bool = False, value_dim: int | None = None
) -> tuple[Latent, int]:
    """Return latent attention, and its norms and biases.

    The compressed query and the latent vector are normalised. With ``attention_bias`` the two projections down and the
    output have biases, the projections up never. An indexer's keys pass a layer norm with a bias.
    """
    heads, rank = config.integer("num_attention_heads"), config.integer("kv_lora_rank")
    rope, query_rank = config.integer("qk_rope_head_dim", least=0), config.maybe_integer("q_lora_rank")
    value = config.integer("v_head_dim") if value_dim is None else value_dim
    vectors = rank + (query_rank or 0)
    if config.flag("attention_bias", default=False):
        vectors += rank + rope + (query_rank or 0) + hidden
    if indexer is not None and indexer.stored:
        vectors += 2 * indexer.head_dim
    mixer = Latent(
        heads=heads,
        kv_lora_rank=rank,
        rope_dim=rope,
        nope_dim=config.integer("qk_nope_head_dim", least=0),
        value_head_dim=value,
        q_lora_rank=query_rank,
        output_gate=heads * value if gated else 0,
        indexer=indexer,
    )
    return mixer, vectors


def latent_experts(config: Config) -> Mixture:
    """Return the experts; shared ones are as wide as routed ones."""
    width = config.integer("moe_intermediate_size")
    return Mixture(
        experts=config.integer("num_experts", "n_routed_experts", "num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=width,
        shared_width=width * config.integer_or(0, "n_shared_experts", "num_shared_experts", least=0),
    )


def latent_feeds(config: Config, kinds: Sequence[str], hidden: int, *, bias: bool = False) -> list[tuple[Mlp, int]]:
    """Return each layer's MLP with its biases: dense and shared MLPs have them with ``bias``, routed experts never."""
    inner, experts = config.integer("intermediate_size"), latent_experts(config)
    dense_bias = 2 * inner + hidden if bias else 0
    shared_bias = 2 * experts.shared_width + hidden if bias else 0
    dense = Gated(width=inner)
    return [(experts, shared_bias) if kind == "sparse" else (dense, dense_bias) for kind in kinds]


def latent_mtp(config: Config) -> tuple[str, ...]:
    """Return a note on multi-token-prediction layers."""
    return mtp_notes(config, "num_nextn_predict_layers", "num_mtp_layers")


def first_dense(config: Config, layers: int, *, default: int | None = None) -> list[str]:
    """Return MLP kinds by ``first_k_dense_replace``; published codes differ over a ``moe_layer_freq`` other than 1.

    Args:
        config: the config.
        layers: how many layers there are.
        default: dense layers where the config does not say it; none where it must.
    """
    if config.integer("moe_layer_freq", default=1) != 1:
        raise refuse(config, "moe_layer_freq", "a moe_layer_freq other than 1")
    first = config.integer("first_k_dense_replace", least=0, **({} if default is None else {"default": default}))
    return dense_first(layers, first)


def deepseek_v3(config: Config) -> Shape:
    """Latent attention, the first layers dense, shared experts; the router's correction bias is a buffer."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    feeds = latent_feeds(config, first_dense(config, layers), hidden)
    blocks = stack([latent_attention(config, hidden)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=latent_mtp(config))


def deepseek_v2(config: Config) -> Shape:
    """As DeepSeek-V3, with optional biases in the MLPs; without ``use_mla`` (DeepSeek-VL2 Tiny) plain attention.

    A query rank that the config leaves out is the class's 1536, not absent; only null means that queries are projected
    directly.
    """
    if not config.flag("use_mla", default=True):
        return deepseek(config)
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    feeds = latent_feeds(config, first_dense(config, layers), hidden, bias=config.flag("mlp_bias", default=False))
    blocks = stack([latent_attention(config, hidden)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def listed(config: Config) -> Shape:
    """Latent attention, mixtures where ``mlp_layer_types`` says; left out, only the first layer is dense."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=dense_first(layers, 1))
    blocks = stack([latent_attention(config, hidden)] * layers, latent_feeds(config, kinds, hidden), norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=latent_mtp(config))


def axk1(config: Config) -> Shape:
    """As DeepSeek-V3, with a norm after each mixture; mixtures stand at every ``moe_layer_freq``-th layer."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    first = config.integer("first_k_dense_replace", default=1, least=0)
    every = config.integer("moe_layer_freq", default=1)
    default = ["sparse" if layer >= first and layer % every == 0 else "dense" for layer in range(layers)]
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=default)
    feeds = [
        (mlp, vectors + hidden if isinstance(mlp, Mixture) else vectors)
        for mlp, vectors in latent_feeds(config, kinds, hidden)
    ]
    blocks = stack([latent_attention(config, hidden)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def minicpm3(config: Config) -> Shape:
    """Latent attention with a dense MLP in every layer; ``mlp_bias`` gives that one biases."""
    return _dense_latent(config, mlp_bias=config.flag("mlp_bias", default=False))


def youtu(config: Config) -> Shape:
    """Latent attention with a dense MLP in every layer, never with biases."""
    config.pass_over("mlp_bias", "the MLP never has biases")
    return _dense_latent(config, mlp_bias=False)


def _dense_latent(config: Config, *, mlp_bias: bool) -> Shape:
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    value = head_width(config, hidden, config.integer("num_attention_heads"), "v_head_dim")
    inner = config.integer("intermediate_size")
    bias = 2 * inner + hidden if mlp_bias else 0
    latent = latent_attention(config, hidden, value_dim=value)
    blocks = stack([latent] * layers, [(Gated(width=inner), bias)] * layers, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def _indexer(config: Config, *, stored: bool = True) -> Indexer:
    """Return the indexer of DeepSeek-V3.2: its queries come from the compressed query."""
    return Indexer(
        heads=config.integer("index_n_heads"),
        head_dim=config.integer("index_head_dim"),
        top_k=config.integer("index_topk"),
        query_inputs=config.integer("q_lora_rank"),
        stored=stored,
    )


def indexed_layers(
    config: Config, hidden: int, kinds: Sequence[str], *, gated: bool = False
) -> list[tuple[Mixer, int]]:
    """Return each layer's attention: with an indexer of its own, or following the choice of an earlier layer."""
    own = latent_attention(config, hidden, indexer=_indexer(config), gated=gated)
    following = latent_attention(config, hidden, indexer=_indexer(config, stored=False), gated=gated)
    return [own if kind == "full" else following for kind in kinds]


def only_indexed(config: Config, layers: int) -> None:
    """Refuse attention kinds other than the indexed one."""
    layer_list(config, "layer_types", layers=layers, known=("indexed_attention",), default=())


def deepseek_v32(config: Config) -> Shape:
    """DeepSeek-V3 with a sparse indexer, and a key for it, in every layer."""
    return _sparse(config, ["full"] * config.integer("num_hidden_layers"))


def glm_moe_dsa(config: Config) -> Shape:
    """GLM-5: as DeepSeek-V3.2, but layers may follow the choice of an earlier layer and keep no index keys."""
    return _sparse(config, indexer_kinds(config, config.integer("num_hidden_layers")))


def indexer_kinds(config: Config, layers: int) -> list[str]:
    """Return whether each layer has an indexer of its own, by a list or by a pattern."""
    default = [] if config.has("indexer_types") else _indexer_pattern(config, layers)
    return layer_list(config, "indexer_types", layers=layers, known=INDEXER_KINDS, default=default)


def _sparse(config: Config, indexers: Sequence[str]) -> Shape:
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    only_indexed(config, layers)
    first = first_dense(config, layers)
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=first)
    blocks = stack(indexed_layers(config, hidden, indexers), latent_feeds(config, kinds, hidden), norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=latent_mtp(config))


def _indexer_pattern(config: Config, layers: int) -> list[str]:
    """Indexer kinds where the config gives a pattern of letters, or a frequency and an offset, instead of a list."""
    pattern = config.raw("index_topk_pattern", default=None)
    if pattern is None:
        every = max(config.integer("index_topk_freq", default=1, least=0), 1)
        offset = config.integer("index_skip_topk_offset", default=2, least=0)
        return ["full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in range(layers)]
    names = {"F": "full", "S": "shared"}
    entries = pattern if isinstance(pattern, str) else config.sequence("index_topk_pattern")
    kinds = [names.get(str(entry), str(entry)) for entry in entries]
    if len(kinds) != layers:
        raise config.bad("index_topk_pattern", f"{len(kinds)} entries", f"{layers} entries, one for each layer")
    return [config.choice(kind, INDEXER_KINDS, key="index_topk_pattern", what="the indexer kind") for kind in kinds]


def longcat_flash(config: Config) -> Shape:
    """Two attentions and two dense MLPs a layer beside one mixture, some of whose experts hand the token through.

    Those zero experts have rows in the router and no weights. The dense MLPs stand as the part that every token passes.
    """
    hidden = config.integer("hidden_size")
    halved = config.has("num_hidden_layers") and not config.has("num_layers")
    layers = config.integer("num_hidden_layers") // 2 if halved else config.integer("num_layers")
    latent, vectors = latent_attention(config, hidden)
    experts = config.integer("n_routed_experts", "num_local_experts")
    zero = config.integer_or(0, "zero_expert_num", least=0)
    mixture = Mixture(
        experts=experts,
        experts_per_token=config.integer("moe_topk", "num_experts_per_tok"),
        width=config.integer("expert_ffn_hidden_size", "moe_intermediate_size"),
        shared_width=2 * config.integer("ffn_hidden_size", "intermediate_size"),
        zero_experts=zero,
    )
    vectors = 2 * vectors + 4 * hidden
    notes = (f"{zero} zero experts have no weights (transformers allots some that it never uses)",) if zero else ()
    vectors += experts + zero if config.flag("router_bias", default=False) else 0
    block = Block(name="moe", mixers=(latent, latent), mlp=mixture, vector_parameters=vectors)
    return decoder_shape(config, (block,) * layers, hidden=hidden, notes=notes + latent_mtp(config))


RULES: dict[str, Rule] = {
    "axk1": axk1,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "glm4_moe_lite": listed,
    "glm_moe_dsa": glm_moe_dsa,
    "kimi_k2": deepseek_v3,
    "longcat_flash": longcat_flash,
    "minicpm3": minicpm3,
    "mistral4": deepseek_v3,
    "sarvam_mla": deepseek_v3,
    "youtu": youtu,
}
