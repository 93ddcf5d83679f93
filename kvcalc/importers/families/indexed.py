"""Decoders after DeepSeek-V3.2 whose latent attention with an indexer has further parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Gated, Indexer, Latent, Mixture, Sliding
from kvcalc.importers.families.latent import (
    MLP_KINDS,
    first_dense,
    indexed_layers,
    indexer_kinds,
    latent_attention,
    latent_experts,
    latent_feeds,
    latent_mtp,
    only_indexed,
)
from kvcalc.importers.families.shape import decoder_shape, layer_list, refuse, stack
from kvcalc.importers.families.windows import layer_overrides

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer, Mlp
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule, Shape

__all__ = ["RULES"]


def axk2(config: Config) -> Shape:
    """A.X K2: one projection gives queries and a gate, from the compressed query before and after its norm.

    The norm before attention, and before the MLP of a mixture, has a low-rank gate that the input decides.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    kinds = layer_list(
        config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=first_dense(config, layers, default=1)
    )
    only_indexed(config, layers)
    query, rank = config.integer("num_attention_heads"), config.integer("q_lora_rank")
    wide = config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim")
    gate = 2 * config.integer("gated_norm_rank") * hidden
    # a latent attention has the projection from the normalised compressed query alone, without gate
    doubled = query * rank * (wide + 2 * config.integer("v_head_dim"))
    blocks = stack(
        indexed_layers(config, hidden, ["full"] * layers),
        latent_feeds(config, kinds, hidden),
        norms=2 * hidden,
        matrices=doubled + gate,
    )
    blocks = tuple(
        replace(block, matrix_parameters=block.matrix_parameters + gate) if isinstance(block.mlp, Mixture) else block
        for block in blocks
    )
    return decoder_shape(config, blocks, hidden=hidden, notes=latent_mtp(config))


def mistral_large4(config: Config) -> Shape:
    """Mistral Large 4: queries from the hidden state itself; layers without positions keep no rotary key.

    Attention and indexer scale their logits by two learned numbers a head; the indexer normalises its own input.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    only_indexed(config, layers)
    sources = config.sequence("kv_source_layers", default=None)
    if sources and sources != list(range(layers)):
        raise refuse(config, "kv_source_layers", "a latent cache that several layers share")
    every = config.integer("no_rope_layer_interval", default=4)
    default = [(index + 1) % every != 0 for index in range(layers)]
    rotary = config.sequence("no_rope_layers", default=None) or default
    if len(rotary) < layers:
        raise config.bad("no_rope_layers", f"{len(rotary)} entries", f"at least {layers}, one for each layer")
    mixers = [
        _direct_attention(config, hidden, rotary=bool(turned), stored=owner == "full")
        for turned, owner in zip(rotary, indexer_kinds(config, layers), strict=False)
    ]
    first = first_dense(config, layers, default=1)
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=first)
    blocks = tuple(
        block if turned else replace(block, name=f"{block.name}-nope")
        for block, turned in zip(
            stack(mixers, latent_feeds(config, kinds, hidden), norms=2 * hidden), rotary, strict=False
        )
    )
    vectors = hidden + config.integer("qk_rope_head_dim") // 2
    return decoder_shape(config, blocks, hidden=hidden, vectors=vectors, notes=latent_mtp(config))


def _direct_attention(config: Config, hidden: int, *, rotary: bool, stored: bool) -> tuple[Mixer, int]:
    """Return latent attention without a compressed query, and its vectors."""
    indexer = Indexer(
        heads=config.integer("index_n_heads"),
        head_dim=config.integer("index_head_dim"),
        top_k=config.integer("index_topk"),
        query_inputs=hidden,
        stored=stored,
    )
    mixer, vectors = latent_attention(config, hidden, indexer=indexer)
    vectors += 2 * mixer.heads + (2 * hidden + 2 * indexer.heads if stored else 0)
    if rotary:
        return mixer, vectors
    wide = mixer.nope_dim + mixer.rope_dim
    biases = mixer.rope_dim if config.flag("attention_bias", default=False) else 0
    return replace(mixer, rope_dim=0, nope_dim=wide), vectors - biases


_DOTS_KINDS = ("indexed_attention", "sliding_attention")
# Sizes of a local layer's attention, with what the class gives to those that a config leaves out.
_DOTS_LOCAL = (
    ("num_attention_heads", 64), ("q_lora_rank", 1024), ("kv_lora_rank", 1024), ("qk_nope_head_dim", 192),
    ("v_head_dim", 128),
)  # fmt: skip
_DOTS_VARIED = (*(key for key, _ in _DOTS_LOCAL), "num_key_value_heads", "head_dim", "qk_rope_head_dim")


def dots3_note(config: Config) -> Shape:
    """dots3: latent attention throughout, one layer in four with an indexer, the others over a window.

    The windowed layers have sizes of their own. Rotary keys have a norm, the output a gate a head.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    window = config.integer_or(config.integer("sliding_window_size", default=512), "sliding_window")
    windowed = config.flag("use_sliding_window", default=True)
    default = [_DOTS_KINDS[windowed and index > 1 and index % 4 != 1] for index in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=(*_DOTS_KINDS, "full_attention"), default=default)
    if "full_attention" in kinds and config.flag("use_dsa", default=not config.has("per_layer_config")) is False:
        raise refuse(config, "layer_types", "a dots3 with layers of full attention")
    sizes = _dots_local_sizes(config, layers, kinds)
    whole = _dots_global(config, hidden)
    mixers = [
        whole if kind != "sliding_attention" else _dots_local(config, hidden, own, window)
        for kind, own in zip(kinds, sizes, strict=True)
    ]
    first = first_dense(config, layers, default=1)
    mlps = layer_list(config, "mlp_layer_types", layers=layers, known=MLP_KINDS, default=first)
    blocks = stack(mixers, _dots_feeds(config, mlps), norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=latent_mtp(config), varied=True)


def _dots_global(config: Config, hidden: int) -> tuple[Mixer, int]:
    indexer = Indexer(
        heads=config.integer("index_n_heads"),
        head_dim=config.integer("index_head_dim"),
        top_k=config.integer("index_topk"),
        query_inputs=config.integer("q_lora_rank"),
    )
    mixer, vectors = latent_attention(config, hidden, indexer=indexer)
    return replace(mixer, output_gate=mixer.heads), vectors + mixer.rope_dim


def _dots_local_sizes(config: Config, layers: int, kinds: list[str]) -> list[dict[str, int]]:
    """Return each layer's sizes: by ``per_layer_config``, or by keys with the prefix ``swa_`` for all local layers."""
    overrides = layer_overrides(config, layers=layers, known=_DOTS_VARIED)
    if overrides is not None:
        keys = (*(key for key, _ in _DOTS_LOCAL), "qk_rope_head_dim")
        return [{key: own.get(key) or config.integer(key) for key in keys} for own in overrides]
    if "sliding_attention" not in kinds:
        return [{}] * layers
    size = {key: config.integer(f"swa_{key}", default=usual) for key, usual in _DOTS_LOCAL}
    rest = config.integer("swa_head_dim", default=256) - size["qk_nope_head_dim"]
    size["qk_rope_head_dim"] = config.integer("swa_qk_rope_head_dim", default=rest)
    return [size] * layers


def _dots_local(config: Config, hidden: int, size: dict[str, int], window: int) -> tuple[Mixer, int]:
    """Return a local layer's attention and its vectors."""
    count, rank, latent = size["num_attention_heads"], size["q_lora_rank"], size["kv_lora_rank"]
    rope = size["qk_rope_head_dim"]
    projections = Latent(
        heads=count,
        kv_lora_rank=latent,
        rope_dim=rope,
        nope_dim=size["qk_nope_head_dim"],
        value_head_dim=size["v_head_dim"],
        q_lora_rank=rank,
        output_gate=count,
    )
    vectors = latent + rank + rope
    if config.flag("attention_bias", default=False):
        vectors += latent + rope + rank + hidden
    return windowed_latent(projections, hidden, window), vectors


def windowed_latent(latent: Latent, hidden: int, window: int) -> Sliding:
    """Return latent attention over a window: latent vector and rotary part stand as the key and value of one head."""
    each = latent.nope_dim + latent.value_head_dim
    rank = latent.q_lora_rank or hidden
    queries = rank * latent.heads * (latent.nope_dim + latent.rope_dim)
    projections = queries + (hidden * rank if latent.q_lora_rank else 0)
    projections += hidden * (latent.kv_lora_rank + latent.rope_dim) + latent.kv_lora_rank * latent.heads * each
    projections += (latent.heads * latent.value_head_dim + latent.output_gate) * hidden
    return Sliding(
        heads=latent.heads,
        kv_heads=1,
        head_dim=latent.kv_lora_rank,
        value_head_dim=latent.rope_dim,
        window=window,
        projection_parameters=projections,
    )


def _dots_feeds(config: Config, kinds: list[str]) -> list[tuple[Mlp, int]]:
    config.pass_over("mlp_bias", "no MLP of the text model has biases")
    shared = config.integer("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size")
    shared *= config.integer("n_shared_experts", least=0)
    dense, sparse = (
        Gated(width=config.integer("intermediate_size")),
        replace(latent_experts(config), shared_width=shared),
    )
    return [(sparse if kind == "sparse" else dense, 0) for kind in kinds]


RULES: dict[str, Rule] = {
    "axk2": axk2,
    "dots3_note_text": dots3_note,
    "mistral_large4_text": mistral_large4,
}
