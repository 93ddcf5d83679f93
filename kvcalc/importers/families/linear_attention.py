"""Linear attention between layers of ordinary attention: gated delta nets, Kimi's and MiniMax's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Full, Head, Latent, Mixture, State
from kvcalc.importers.families.shape import (
    Shape,
    attention_biases,
    decoder_shape,
    dense_first,
    heads,
    hybrid_layers,
    layer_kinds,
    mlp,
    mtp_notes,
    note_order,
    refuse,
    windowed,
)
from kvcalc.importers.families.states import delta_net, kimi_delta, requested_format

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer, Mlp
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES", "qwen_attention", "qwen_delta_net", "qwen_mixture"]

_KINDS = {"linear_attention": "delta", "full_attention": "attention"}


def _every(layers: int, interval: int, kind: str) -> list[str]:
    """Return the kinds of layers of which each ``interval``-th is attention."""
    return [kind if (layer + 1) % interval else "attention" for layer in range(layers)]


def qwen_delta_net(config: Config, hidden: int) -> tuple[State, int]:
    """Return the gated delta net of Qwen3-Next and its successors, and its vectors."""
    return delta_net(
        hidden,
        key_heads=config.integer("linear_num_key_heads"),
        value_heads=config.integer("linear_num_value_heads"),
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        kernel=config.integer("linear_conv_kernel_dim"),
        requested=requested_format(config, "mamba_ssm_dtype"),
    )


def qwen_attention(config: Config, hidden: int) -> tuple[Full, int]:
    """Return attention whose query projection also gives a gate on the output, with normalised queries and keys."""
    query, kv, width = heads(config, hidden=hidden)
    gate = width if config.flag("attn_output_gate", default=True) else 0
    bias = config.flag("attention_bias", default=False)
    vectors = 2 * width + attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    vectors += query * gate if bias else 0
    return Full(heads=query, kv_heads=kv, head_dim=width, output_gate=gate), vectors


def qwen_mixture(config: Config) -> Mixture:
    """Return experts beside a shared one that a gate of its own scales."""
    return Mixture(
        experts=config.integer("num_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer("moe_intermediate_size"),
        shared_width=config.integer("shared_expert_intermediate_size", least=0),
        shared_gate=True,
    )


def _qwen_shape(config: Config, mlps: dict[str, tuple[Mlp | None, int]], feeds: list[str]) -> Shape:
    """Return the shape that Qwen3-Next and Qwen3.5 share: three delta nets, then attention, unless a list says else."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    mixers: dict[str, tuple[Mixer, int]] = {
        "delta": qwen_delta_net(config, hidden),
        "attention": qwen_attention(config, hidden),
    }
    default = _every(layers, config.integer_or(4, "full_attention_interval"), "delta")
    kinds = layer_kinds(config, "layer_types", names=_KINDS, layers=layers, default=default)
    blocks = hybrid_layers(mixers, mlps, list(zip(kinds, feeds, strict=True)), norms=2 * hidden)
    notes = mtp_notes(config, "mtp_num_hidden_layers", "num_nextn_predict_layers")
    return decoder_shape(config, blocks, hidden=hidden, notes=notes)


def qwen3_next(config: Config) -> Shape:
    """Qwen3-Next: a mixture of experts in every layer, save those that the config makes dense."""
    dense = config.sequence("mlp_only_layers", default=None)
    step, experts = config.integer("decoder_sparse_step"), config.integer("num_experts", least=0)
    feeds = [
        "moe" if experts and layer not in dense and (layer + 1) % step == 0 else "dense"
        for layer in range(config.integer("num_hidden_layers"))
    ]
    mlps: dict[str, tuple[Mlp | None, int]] = {}
    if "moe" in feeds:
        mlps["moe"] = qwen_mixture(config), 0
    if "dense" in feeds:
        mlps["dense"] = mlp(config.integer("intermediate_size")), 0
    return _qwen_shape(config, mlps, feeds)


def qwen3_5(config: Config) -> Shape:
    """Qwen3.5 and 3.6, dense."""
    feeds = ["mlp"] * config.integer("num_hidden_layers")
    return _qwen_shape(config, {"mlp": (mlp(config.integer("intermediate_size")), 0)}, feeds)


def qwen3_5_moe(config: Config) -> Shape:
    """Qwen3.5 and 3.6 with a mixture of experts in every layer."""
    feeds = ["moe"] * config.integer("num_hidden_layers")
    return _qwen_shape(config, {"moe": (qwen_mixture(config), 0)}, feeds)


def lara_mini(config: Config) -> Shape:
    """LARA mini: delta nets, windows and global layers by a list, a mixture with an ungated shared expert in each."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query, kv, width = heads(config, hidden=hidden)
    bias = config.flag("attention_bias", default=False)
    vectors = 2 * width + attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    names = {"linear_attention": "delta", "full_attention": "attention", "sliding_attention": "local"}
    period = ("delta", "local", "delta", "attention", "local")
    default = [period[index % len(period)] for index in range(layers)]
    kinds = layer_kinds(config, "layer_types", names=names, layers=layers, default=default)
    window = config.integer("sliding_window") if "local" in kinds else None
    mixers: dict[str, tuple[Mixer, int]] = {
        "delta": qwen_delta_net(config, hidden),
        "attention": (windowed(query, kv, width, None), vectors),
        "local": (windowed(query, kv, width, window), vectors),
    }
    experts = replace(qwen_mixture(config), shared_gate=False)
    blocks = hybrid_layers(mixers, {"moe": (experts, 0)}, [(kind, "moe") for kind in kinds], norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def olmo_hybrid(config: Config) -> Shape:
    """Delta nets with norms before them, attention with norms after it and over whole queries and keys.

    Absent sizes follow from the attention heads: keys take three quarters of the hidden size, values are twice as wide.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query, kv, width = heads(config, hidden=hidden)
    key_heads = config.integer_or(query, "linear_num_key_heads")
    key_dim = config.integer_or(int(0.75 * hidden / key_heads), "linear_key_head_dim")
    bias = config.flag("attention_bias")
    vectors = (query + kv) * width + attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    mixers: dict[str, tuple[Mixer, int]] = {
        "delta": delta_net(
            hidden,
            key_heads=key_heads,
            value_heads=config.integer_or(query, "linear_num_value_heads"),
            key_dim=key_dim,
            value_dim=config.integer_or(2 * key_dim, "linear_value_head_dim"),
            kernel=config.integer("linear_conv_kernel_dim"),
        ),
        "attention": (Full(heads=query, kv_heads=kv, head_dim=width), vectors),
    }
    default = _every(layers, 4, "delta")
    if "attention" not in default:
        default[-1] = "attention"
    kinds = layer_kinds(config, "layer_types", names=_KINDS, layers=layers, default=default)
    feed = mlp(config.integer("intermediate_size"))
    blocks = hybrid_layers(mixers, {"mlp": (feed, 0)}, [(kind, "mlp") for kind in kinds], norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def _latent_attention(config: Config, hidden: int, *, gate: int) -> tuple[Latent, int]:
    """Return latent attention with ``gate`` elements of output gate, and its vectors."""
    rank, rope = config.integer("kv_lora_rank"), config.integer("qk_rope_head_dim")
    query_rank = config.maybe_integer("q_lora_rank")
    latent = Latent(
        heads=config.integer("num_attention_heads"),
        kv_lora_rank=rank,
        rope_dim=rope,
        nope_dim=config.integer("qk_nope_head_dim"),
        value_head_dim=config.integer("v_head_dim"),
        q_lora_rank=query_rank,
        output_gate=gate,
    )
    bias = (query_rank or 0) + rank + rope + hidden if config.flag("attention_bias", default=False) else 0
    return latent, rank + (query_rank or 0) + bias


def _kimi_mlps(
    config: Config, *, latent: int | None = None, latent_norm: bool = False
) -> dict[str, tuple[Mlp | None, int]]:
    width = config.integer("moe_intermediate_size")
    shared = config.integer_or(0, "n_shared_experts", "num_shared_experts", least=0)
    mixture = Mixture(
        experts=config.integer("num_experts", "num_local_experts"),
        experts_per_token=config.integer("num_experts_per_token", "num_experts_per_tok"),
        width=width,
        shared_width=shared * width,
        inputs=latent,
    )
    return {
        "dense": (mlp(config.integer("intermediate_size")), 0),
        "moe": (mixture, latent if latent and latent_norm else 0),
    }


def _kimi_feeds(config: Config, layers: int) -> list[str]:
    names = {"dense": "dense", "sparse": "moe"}
    first = config.integer("first_k_dense_replace", default=1, least=0)
    frequency = config.integer("moe_layer_freq", default=1)
    if frequency != 1:
        raise refuse(config, "moe_layer_freq", f"a mixture of experts in every {frequency}th layer")
    default = [names[kind] for kind in dense_first(layers, first)]
    return layer_kinds(config, "mlp_layer_types", names=names, layers=layers, default=default)


def kimi_linear(config: Config) -> Shape:
    """Kimi Linear, and the text model of Kimi-K3: three layers of Kimi delta attention to one of latent attention.

    K3 adds a full output gate to both, experts that work in a narrower space, and attention over the residuals of
    earlier blocks of layers (two norms and two projections to one number in each layer).
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    linear = config.child("linear_attn_config")
    gated = config.flag("mla_use_output_gate", default=False)
    gate = config.integer("num_attention_heads") * config.integer("v_head_dim") if gated else 0
    mixers: dict[str, tuple[Mixer, int]] = {
        "delta": kimi_delta(
            hidden,
            count=_either(linear, "num_heads", config, "linear_num_heads"),
            width=_either(linear, "head_dim", config, "linear_head_dim"),
            kernel=_either(linear, "short_conv_kernel_size", config, "linear_conv_kernel_dim"),
            full_forget=False,
            full_gate=linear.flag("use_full_rank_gate", default=False),
        ),
        "attention": _latent_attention(config, hidden, gate=gate),
    }
    mlps = _kimi_mlps(
        config,
        latent=config.maybe_integer("routed_expert_hidden_size"),
        latent_norm=config.flag("latent_moe_use_norm", default=False),
    )
    residual = 2 * hidden if config.maybe_integer("attn_res_block_size") else 0
    kinds = layer_kinds(config, "layer_types", names=_KINDS, layers=layers, default=_kimi_kinds(linear, layers))
    pairs = list(zip(kinds, _kimi_feeds(config, layers), strict=True))
    blocks = hybrid_layers(mixers, mlps, pairs, norms=2 * hidden + residual, matrices=residual)
    notes = mtp_notes(config, "num_nextn_predict_layers")
    once = residual // 2
    shape = decoder_shape(config, blocks, hidden=hidden, vectors=hidden + once, matrices=once, notes=notes)
    return _untied(config, shape)


def _either(first: Config, key: str, second: Config, other: str) -> int:
    return first.integer(key) if first.has(key) else second.integer(other)


def _kimi_kinds(linear: Config, layers: int) -> list[str]:
    """Return the kinds that ``linear_attn_config`` lists, counting layers from 1."""
    if not (linear.has("full_attn_layers") and linear.has("kda_layers")):
        return ["attention" if layer and layer % 4 == 0 else "delta" for layer in range(layers)]
    full, delta = linear.sequence("full_attn_layers"), linear.sequence("kda_layers")
    listed = full + delta
    if len(listed) != layers or any(layer not in listed for layer in range(1, layers + 1)):
        raise linear.bad("kda_layers", "a list", f"with full_attn_layers the numbers from 1 to {layers}, each once")
    return ["attention" if layer + 1 in full else "delta" for layer in range(layers)]


def _untied(config: Config, shape: Shape) -> Shape:
    """Return the shape with the context limit by its other name, and a head that is never the token table."""
    return replace(
        shape,
        context_limit=config.maybe_integer("model_max_length") or config.maybe_integer("max_position_embeddings"),
        head=Head(rows=config.integer("vocab_size")),
    )


def bailing_hybrid(config: Config) -> Shape:
    """Ling and Ring 3: Kimi delta attention with full gates, latent attention with one gate a head.

    Its predecessors of the same ``model_type`` (architecture V2.5) have lightning attention and are refused.
    """
    for name in config.sequence("architectures", default=None):
        known = ("BailingHybridForCausalLM", "BailingMoeV3ForCausalLM")
        config.choice(str(name), known, key="architectures", what="the architecture")
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query = config.integer("num_attention_heads")
    mixers: dict[str, tuple[Mixer, int]] = {
        "delta": kimi_delta(
            hidden,
            count=config.integer("linear_num_heads", default=query),
            width=config.maybe_integer("linear_head_dim") or config.integer("head_dim"),
            kernel=config.integer("linear_conv_kernel_dim", "short_conv_kernel_size"),
            full_forget=True,
            full_gate=True,
        ),
        "attention": _latent_attention(config, hidden, gate=query),
    }
    default = _every(layers, config.integer("layer_group_size"), "delta")
    kinds = layer_kinds(config, "layer_types", names=_KINDS, layers=layers, default=default)
    pairs = list(zip(kinds, _kimi_feeds(config, layers), strict=True))
    blocks = hybrid_layers(mixers, _kimi_mlps(config), pairs, norms=2 * hidden)
    notes = mtp_notes(config, "num_nextn_predict_layers", "num_mtp_layers")
    return _untied(config, decoder_shape(config, blocks, hidden=hidden, notes=notes))


def minimax(config: Config) -> Shape:
    """MiniMax-Text-01 and M1: lightning attention with a state in the model's own format, mixtures in every layer.

    The order of the layers stands in ``layer_types``, or as 0 (lightning) and 1 (softmax) in ``attn_type_list``.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query, kv, width = heads(config, hidden=hidden)
    if config.integer("shared_intermediate_size", default=0, least=0):
        raise refuse(config, "shared_intermediate_size", "MiniMax's shared expert")
    inner = query * width
    lightning = State(
        variant="linear", heads=query, key_dim=width, value_dim=width, matrix_parameters=5 * hidden * inner
    )
    window = config.maybe_integer("sliding_window")
    mixers: dict[str, tuple[Mixer, int]] = {
        "linear": (lightning, inner),
        "attention": (windowed(query, kv, width, window), 0),
    }
    mixture = Mixture(
        experts=config.integer("num_local_experts", "num_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer("intermediate_size"),
    )
    kinds = _minimax_kinds(config, layers)
    blocks = hybrid_layers(mixers, {"moe": (mixture, 0)}, [(kind, "moe") for kind in kinds], norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def _minimax_kinds(config: Config, layers: int) -> list[str]:
    names = {"linear_attention": "linear", "full_attention": "attention"}
    if config.has("layer_types"):
        return layer_kinds(config, "layer_types", names=names, layers=layers)
    if config.has("attn_type_list") or config.text("model_type") != "minimax":
        return layer_kinds(config, "attn_type_list", names={"0": "linear", "1": "attention"}, layers=layers)
    kinds = ["linear_attention" if layer % 2 else "full_attention" for layer in range(layers)]
    note_order(config, "layer_types", kinds)
    return [names[kind] for kind in kinds]


RULES: dict[str, Rule] = {
    "bailing_hybrid": bailing_hybrid,
    "bailing_moe_v3_vl_text": bailing_hybrid,
    "kimi_linear": kimi_linear,
    "lara_mini": lara_mini,
    "minimax": minimax,
    "minimax_m1": minimax,
    "minimax_text_01": minimax,
    "olmo_hybrid": olmo_hybrid,
    "qwen3_5_moe_text": qwen3_5_moe,
    "qwen3_5_text": qwen3_5,
    "qwen3_next": qwen3_next,
}
