"""Decoders with multi-head latent attention: DeepSeek-V2 to V4 and what was built after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import Block, Compressed, Gated, Indexer, Latent, Mixture, Sliding
from kvcalc.importers.families.mixture import deepseek
from kvcalc.importers.families.shape import Shape, decoder_shape, dense_first, layer_list, mtp_notes, stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import Mixer, Mlp
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

_MLP_KINDS = ("dense", "sparse")
_INDEXER_KINDS = ("full", "shared")


def _latent(
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


def _experts(config: Config) -> Mixture:
    width = config.integer("moe_intermediate_size")
    return Mixture(
        experts=config.integer("num_experts", "n_routed_experts", "num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=width,
        shared_width=width * (config.maybe_integer("n_shared_experts", "num_shared_experts", least=0) or 0),
    )


def _feeds(config: Config, kinds: Sequence[str], hidden: int, *, bias: bool = False) -> list[tuple[Mlp, int]]:
    """Return each layer's MLP with its biases: dense and shared MLPs have them with ``bias``, routed experts never."""
    inner, experts = config.integer("intermediate_size"), _experts(config)
    dense_bias = 2 * inner + hidden if bias else 0
    shared_bias = 2 * experts.shared_width + hidden if bias else 0
    dense = Gated(width=inner)
    return [(experts, shared_bias) if kind == "sparse" else (dense, dense_bias) for kind in kinds]


def _mtp(config: Config) -> tuple[str, ...]:
    return mtp_notes(config, "num_nextn_predict_layers", "num_mtp_layers")


def _first_dense(config: Config, layers: int) -> list[str]:
    """MLP kinds by ``first_k_dense_replace``; a ``moe_layer_freq`` other than 1 is read differently by different codes."""
    if config.integer("moe_layer_freq", default=1) != 1:
        raise UnsupportedError("a moe_layer_freq other than 1 is not known to kvcalc", where=f"{config.where}, moe_layer_freq")
    return dense_first(layers, config.integer("first_k_dense_replace", least=0))


def deepseek_v3(config: Config) -> Shape:
    """Latent attention, the first layers dense, shared experts; the router's correction bias is a buffer."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    feeds = _feeds(config, _first_dense(config, layers), hidden)
    blocks = stack([_latent(config, hidden)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=_mtp(config))


def deepseek_v2(config: Config) -> Shape:
    """As DeepSeek-V3, with optional biases in the MLPs; without ``use_mla`` (DeepSeek-VL2 Tiny) plain attention instead.

    A query rank that the config leaves out is the class's 1536, not absent; only null means that queries are projected
    directly.
    """
    if not config.flag("use_mla", default=True):
        return deepseek(config)
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    feeds = _feeds(config, _first_dense(config, layers), hidden, bias=config.flag("mlp_bias", default=False))
    blocks = stack([_latent(config, hidden)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def listed(config: Config) -> Shape:
    """Latent attention with the mixtures named by ``mlp_layer_types``; where that is left out, the first layer is dense."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=_MLP_KINDS, default=dense_first(layers, 1))
    blocks = stack([_latent(config, hidden)] * layers, _feeds(config, kinds, hidden), norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=_mtp(config))


def axk1(config: Config) -> Shape:
    """As DeepSeek-V3, with a norm after each mixture; mixtures stand at every ``moe_layer_freq``-th layer."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    first, every = config.integer("first_k_dense_replace", default=1, least=0), config.integer("moe_layer_freq", default=1)
    default = ["sparse" if place >= first and place % every == 0 else "dense" for place in range(layers)]
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=_MLP_KINDS, default=default)
    feeds = [
        (mlp, vectors + hidden if isinstance(mlp, Mixture) else vectors) for mlp, vectors in _feeds(config, kinds, hidden)
    ]
    blocks = stack([_latent(config, hidden)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def dense_latent(config: Config) -> Shape:
    """Latent attention with a dense MLP in every layer (MiniCPM3, Youtu)."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    value = config.maybe_integer("v_head_dim") or hidden // config.integer("num_attention_heads")
    inner = config.integer("intermediate_size")
    bias = 2 * inner + hidden if config.flag("mlp_bias", default=False) else 0
    latent = _latent(config, hidden, value_dim=value)
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


def _indexed(config: Config, hidden: int, kinds: Sequence[str], *, gated: bool = False) -> list[tuple[Mixer, int]]:
    """Return each layer's attention: with an indexer of its own, or following the choice of an earlier layer."""
    own = _latent(config, hidden, indexer=_indexer(config), gated=gated)
    following = _latent(config, hidden, indexer=_indexer(config, stored=False), gated=gated)
    return [own if kind == "full" else following for kind in kinds]


def _only_indexed(config: Config, layers: int) -> None:
    """Refuse attention kinds other than the indexed one."""
    layer_list(config, "layer_types", layers=layers, known=("indexed_attention",), default=())


def deepseek_v32(config: Config) -> Shape:
    """DeepSeek-V3 with a sparse indexer, and a key for it, in every layer."""
    return _sparse(config, ["full"] * config.integer("num_hidden_layers"))


def glm_moe_dsa(config: Config) -> Shape:
    """GLM-5: as DeepSeek-V3.2, but layers may follow the choice of an earlier layer and keep no index keys."""
    layers = config.integer("num_hidden_layers")
    default = _indexer_pattern(config, layers) if not config.has("indexer_types") else []
    kinds = layer_list(config, "indexer_types", layers=layers, known=_INDEXER_KINDS, default=default)
    return _sparse(config, kinds)


def _sparse(config: Config, indexers: Sequence[str]) -> Shape:
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    _only_indexed(config, layers)
    first = _first_dense(config, layers)
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=_MLP_KINDS, default=first)
    blocks = stack(_indexed(config, hidden, indexers), _feeds(config, kinds, hidden), norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=_mtp(config))


def _indexer_pattern(config: Config, layers: int) -> list[str]:
    """Indexer kinds where the config gives a pattern of letters, or a frequency and an offset, instead of a list."""
    pattern = config.raw("index_topk_pattern", default=None)
    if pattern is None:
        every = max(config.integer("index_topk_freq", default=1, least=0), 1)
        offset = config.integer("index_skip_topk_offset", default=2, least=0)
        return ["full" if max(place - offset + 1, 0) % every == 0 else "shared" for place in range(layers)]
    names = {"F": "full", "S": "shared"}
    kinds = [names.get(str(entry), str(entry)) for entry in pattern]
    if len(kinds) != layers:
        raise config.bad("index_topk_pattern", f"{len(kinds)} entries", f"{layers} entries, one for each layer")
    return [config.choice(kind, _INDEXER_KINDS, key="index_topk_pattern", what="the indexer kind") for kind in kinds]


def longcat_flash(config: Config) -> Shape:
    """Two attentions and two dense MLPs a layer beside one mixture, some of whose experts hand the token through.

    Those zero experts have rows in the router and no weights. The dense MLPs stand as the part that every token passes.
    """
    hidden = config.integer("hidden_size")
    layers = config.integer("num_layers") if config.has("num_layers") else config.integer("num_hidden_layers", "num_layers")
    if not config.has("num_layers") and config.has("num_hidden_layers"):
        layers //= 2
    latent, vectors = _latent(config, hidden)
    experts, zero = config.integer("n_routed_experts", "num_local_experts"), config.maybe_integer("zero_expert_num", least=0) or 0
    mixture = Mixture(
        experts=experts,
        experts_per_token=config.integer("moe_topk", "num_experts_per_tok"),
        width=config.integer("expert_ffn_hidden_size", "moe_intermediate_size"),
        shared_width=2 * config.integer("ffn_hidden_size", "intermediate_size"),
        zero_experts=zero,
    )
    vectors = 2 * vectors + 4 * hidden
    vectors += experts + zero if config.flag("router_bias", default=False) else 0
    block = Block(name="moe", mixers=(latent, latent), mlp=mixture, vector_parameters=vectors)
    return decoder_shape(config, (block,) * layers, hidden=hidden, notes=_mtp(config))


def hy_v4(config: Config) -> Shape:
    """GLM-5-like, with a gate on the attention's output, sinks, and hyper-connections instead of plain residuals."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    _only_indexed(config, layers)
    default = ["full" if place == 0 or (place - 1) % 4 == 0 else "shared" for place in range(layers)]
    indexers = layer_list(config, "indexer_types", layers=layers, known=_INDEXER_KINDS, default=default)
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=_MLP_KINDS, default=dense_first(layers, 1))
    streams, sinks = config.integer("hc_mult"), config.integer("num_attention_heads")
    blocks = stack(
        _indexed(config, hidden, indexers, gated=True),
        _feeds(config, kinds, hidden),
        norms=2 * hidden + sinks + 2 * (2 * streams + 2),
        matrices=2 * 2 * streams * streams * hidden,
    )
    return _hyper_connected(config, blocks, hidden, streams)


def _hyper_connected(config: Config, blocks: tuple[Block, ...], hidden: int, streams: int) -> Shape:
    """Return a model whose residual streams a learned projection joins before the last norm."""
    return decoder_shape(
        config,
        blocks,
        hidden=hidden,
        vectors=hidden + streams + 1,
        matrices=streams * streams * hidden,
        notes=_mtp(config),
    )


_V4_KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def deepseek_v4(config: Config) -> Shape:
    """A window in every layer; beside it, layers with one compressed entry for each few (and an indexer) or many tokens.

    Keys and values are one vector, except that window-only layers keep it twice. Hyper-connections stand for residuals.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    if config.integer("n_shared_experts", default=1) != 1:
        raise config.bad("n_shared_experts", config.raw("n_shared_experts"), "1")
    kinds = _v4_kinds(config, layers)
    made = {kind: _v4_attention(config, hidden, kind) for kind in dict.fromkeys(kinds)}
    width = config.integer("moe_intermediate_size", "intermediate_size")
    experts = Mixture(
        experts=config.integer("n_routed_experts", "num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=width,
        shared_width=width,
    )
    bias = 2 * width + hidden if config.flag("mlp_bias", default=False) else 0
    streams = config.integer("hc_mult")
    mixing = (2 + streams) * streams
    blocks = stack(
        [made[kind] for kind in kinds],
        [(experts, bias)] * layers,
        norms=2 * hidden + 2 * (mixing + 3),
        matrices=2 * mixing * streams * hidden,
    )
    return _hyper_connected(config, blocks, hidden, streams)


def _v4_kinds(config: Config, layers: int) -> list[str]:
    """Attention kinds by ``layer_types``, by ``compress_ratios``, or the class's own order; entries beyond the layers are
    those of multi-token-prediction layers."""
    known = tuple(_V4_KINDS.values())
    listed = config.sequence("layer_types", default=None)
    if not listed and config.has("compress_ratios"):
        ratios = config.sequence("compress_ratios")
        listed = [_V4_KINDS.get(ratio, f"ratio {ratio}") for ratio in ratios]
    if not listed:
        csa, hca = _V4_KINDS[4], _V4_KINDS[128]
        listed = [hca] * min(layers, 2) + [csa if place % 2 else hca for place in range(max(layers - 2, 0))]
    if len(listed) < layers:
        raise config.bad("compress_ratios", f"{len(listed)} entries", f"at least {layers}, one for each layer")
    return [config.choice(str(kind), known, key="layer_types", what="the layer kind") for kind in listed[:layers]]


def _v4_rate(config: Config, kind: str) -> int:
    """Tokens behind one compressed entry."""
    old, usual = {_V4_KINDS[4]: ("compress_rate_csa", 4), _V4_KINDS[128]: ("compress_rate_hca", 128)}[kind]
    if config.has(old):
        return config.integer(old)
    return config.child("compress_rates").integer(kind, default=usual)


def _v4_attention(config: Config, hidden: int, kind: str) -> tuple[Mixer, int]:
    """Return one kind of DeepSeek-V4's attention, and its norms, sinks and the position biases of its compressors."""
    heads, dim, rank = config.integer("num_attention_heads"), config.integer("head_dim"), config.integer("q_lora_rank")
    groups, output_rank = config.integer("o_groups"), config.integer("o_lora_rank")
    window = config.integer("sliding_window")
    vectors = rank + dim + heads
    if kind == _V4_KINDS[0]:
        projections = hidden * rank + rank * heads * dim + hidden * dim
        projections += heads * dim * output_rank + groups * output_rank * hidden
        mixer = Sliding(heads=heads, kv_heads=1, head_dim=dim, window=window, projection_parameters=projections)
        return mixer, vectors
    rate, sparse = _v4_rate(config, kind), kind == _V4_KINDS[4]
    vectors += rate * (2 if sparse else 1) * dim + dim
    indexer = None
    if sparse:
        index_dim = config.integer("index_head_dim")
        vectors += rate * 2 * index_dim + index_dim
        indexer = Indexer(
            heads=config.integer("index_n_heads"),
            head_dim=index_dim,
            top_k=config.integer("index_topk"),
            query_inputs=rank,
            matrix_parameters=4 * hidden * index_dim,
        )
    compressed = Compressed(
        heads=heads,
        head_dim=dim,
        window=window,
        ratio=rate,
        overlap=sparse,
        q_lora_rank=rank,
        output_groups=groups,
        output_rank=output_rank,
        indexer=indexer,
    )
    return compressed, vectors


def deepseek_ref(config: Config) -> Shape:
    """A ``model_type`` of converted checkpoints that says nothing; their ``architectures`` tell what they are."""
    architectures = [str(name) for name in config.sequence("architectures", default=None)]
    name = architectures[0] if architectures else ""
    config.choice(name, ("DeepseekV4ForCausalLM",), key="architectures", what="the architecture")
    return deepseek_v4(config)


RULES: dict[str, Rule] = {
    "axk1": axk1,
    "deepseek_ref": deepseek_ref,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "deepseek_v4": deepseek_v4,
    "glm4_moe_lite": listed,
    "glm_moe_dsa": glm_moe_dsa,
    "hy_v4": hy_v4,
    "kimi_k2": deepseek_v3,
    "longcat_flash": longcat_flash,
    "minicpm3": dense_latent,
    "mistral4": deepseek_v3,
    "sarvam_mla": deepseek_v3,
    "youtu": dense_latent,
}
