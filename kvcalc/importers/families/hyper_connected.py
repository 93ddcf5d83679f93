"""Decoders with hyper-connections in place of plain residuals: DeepSeek-V4 and those that followed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Compressed, Indexer, Mixture, Sliding
from kvcalc.importers.families.latent import (
    INDEXER_KINDS,
    MLP_KINDS,
    indexed_layers,
    indexer_kinds,
    latent_attention,
    latent_feeds,
    latent_mtp,
    only_indexed,
)
from kvcalc.importers.families.shape import Shape, decoder_shape, dense_first, layer_list, note_order, stack
from kvcalc.importers.families.states import kimi_delta

if TYPE_CHECKING:
    from kvcalc.core.model import Block, Mixer
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

_V4_KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def hy_v4(config: Config) -> Shape:
    """GLM-5-like, with a gate on the attention's output, sinks, and hyper-connections instead of plain residuals."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    only_indexed(config, layers)
    default = ["full" if layer == 0 or (layer - 1) % 4 == 0 else "shared" for layer in range(layers)]
    indexers = layer_list(config, "indexer_types", layers=layers, known=INDEXER_KINDS, default=default)
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=dense_first(layers, 1))
    streams, sinks = config.integer("hc_mult"), config.integer("num_attention_heads")
    blocks = stack(
        indexed_layers(config, hidden, indexers, gated=True),
        latent_feeds(config, kinds, hidden),
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
        notes=latent_mtp(config),
    )


def deepseek_v4(config: Config) -> Shape:
    """A window in every layer; beside it, one compressed entry for each few tokens (with an indexer) or for many.

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
    """Return attention kinds by ``layer_types``, by ``compress_ratios``, or in the class's own order.

    Entries beyond the layers are those of multi-token-prediction layers.
    """
    known = tuple(_V4_KINDS.values())
    listed = config.sequence("layer_types", default=None)
    if not listed and config.has("compress_ratios"):
        by_ratio = {str(ratio): kind for ratio, kind in _V4_KINDS.items()}
        listed = [by_ratio.get(str(ratio), f"ratio {ratio}") for ratio in config.sequence("compress_ratios")]
    if not listed:
        csa, hca = _V4_KINDS[4], _V4_KINDS[128]
        listed = [hca] * min(layers, 2) + [csa if layer % 2 else hca for layer in range(max(layers - 2, 0))]
        note_order(config, "layer_types", listed)
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


def glm5_next(config: Config) -> Shape:
    """Three layers of Kimi delta attention to one of latent attention without positions, whose index keys are pooled.

    The cache keeps for each token what the pooling needs: the index key, a gate of the same width and a mark.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    default = ["linear_attention" if (layer + 1) % 4 else "indexed_attention" for layer in range(layers)]
    known = ("linear_attention", "indexed_attention", "full_attention")
    kinds = layer_list(config, "layer_types", layers=layers, known=known, default=default)
    owners, delta = indexer_kinds(config, layers), _glm5_delta(config, hidden)
    mixers = [
        delta if kind == "linear_attention" else _pooled_attention(config, hidden, stored=owner == "full")
        for kind, owner in zip(kinds, owners, strict=True)
    ]
    mlps = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=dense_first(layers, 3))
    streams = config.integer("hc_mult")
    mixing = (2 + streams) * streams
    blocks = stack(
        mixers,
        latent_feeds(config, mlps, hidden),
        norms=2 * hidden + 2 * (mixing + 3),
        matrices=2 * mixing * streams * hidden,
    )
    return decoder_shape(config, blocks, hidden=hidden, notes=latent_mtp(config))


def _glm5_delta(config: Config, hidden: int) -> tuple[Mixer, int]:
    """Return the delta attention, whose sizes may stand in ``linear_attn_config``, by other names."""
    old = config.child("linear_attn_config")

    def size(old_name: str, name: str) -> int:
        return old.integer(old_name) if old.has(old_name) else config.integer(name)

    return kimi_delta(
        hidden,
        count=size("num_heads", "linear_num_heads"),
        width=size("head_dim", "linear_head_dim"),
        kernel=size("short_conv_kernel_size", "linear_conv_kernel_dim"),
        full_forget=False,
        full_gate=False,
    )


def _pooled_attention(config: Config, hidden: int, *, stored: bool) -> tuple[Mixer, int]:
    """Return the latent attention with its indexer, and its vectors."""
    dim, pool = config.integer("index_head_dim"), config.integer("index_kpool")
    indexer = Indexer(
        heads=config.integer("index_n_heads"),
        head_dim=dim,
        top_k=config.integer("index_topk"),
        query_inputs=config.integer("q_lora_rank"),
        stored=stored,
        matrix_parameters=2 * hidden * dim,
        stored_dim=2 * dim + 1,
        pool=pool,
    )
    mixer, vectors = latent_attention(config, hidden, indexer=indexer)
    return mixer, vectors + (pool * dim if stored else 0)


def deepseek_ref(config: Config) -> Shape:
    """A ``model_type`` of converted checkpoints that says nothing; their ``architectures`` tell what they are."""
    architectures = [str(name) for name in config.sequence("architectures", default=None)]
    name = architectures[0] if architectures else ""
    config.choice(name, ("DeepseekV4ForCausalLM",), key="architectures", what="the architecture")
    return deepseek_v4(config)


RULES: dict[str, Rule] = {
    "deepseek_ref": deepseek_ref,
    "deepseek_v4": deepseek_v4,
    "glm5_next_text": glm5_next,
    "hy_v4": hy_v4,
    "hy_v4_vl_text": hy_v4,
}
