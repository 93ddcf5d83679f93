"""Decoders with grouped-head attention whose MLPs are mixtures of experts, in all or in some layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import Full, Gated, Indexer, Mixture, Sliding, Table
from kvcalc.importers.families.shape import Shape, decoder_shape, dense_first, heads, layer_list, mtp_notes, stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import Mixer, Mlp
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

_ATTENTION_KINDS = ("full_attention", "sliding_attention")
_MLP_KINDS = ("dense", "sparse")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
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
            return Full(
                heads=self.query, kv_heads=self.kv, head_dim=self.width, output_gate=self.gate, indexer=indexer
            )
        return Sliding(heads=self.query, kv_heads=self.kv, head_dim=self.width, output_gate=self.gate, window=window)


def _heads(
    config: Config,
    hidden: int,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    norm: str = "",
    gate: bool = False,
    sinks: bool = False,
    query: int | None = None,
) -> _Heads:
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
    vectors = (query + 2 * kv) * width if qkv_bias else 0
    vectors += hidden if output_bias else 0
    vectors += {"": 0, "head": 2 * width, "all": (query + kv) * width}[norm]
    vectors += query if sinks else 0
    return _Heads(query=query, kv=kv, width=width, vectors=vectors, gate=width if gate else 0)


def _experts(config: Config, *names: str) -> int:
    """Return the number of routed experts, under the name of the family or one of its aliases."""
    return config.integer(*names, "num_local_experts", "num_experts")


def _layers(config: Config) -> int:
    return config.integer("num_hidden_layers")


def _feeds(kinds: Sequence[str], *, dense: Mlp, sparse: Mlp, dense_vectors: int = 0, sparse_vectors: int = 0) -> list[tuple[Mlp, int]]:
    """Return each layer's MLP with its vectors, from the list of MLP kinds."""
    return [(sparse, sparse_vectors) if kind == "sparse" else (dense, dense_vectors) for kind in kinds]


def _mlp_bias(width: int, hidden: int) -> int:
    """Biases of a gated MLP: two of its inner width, one of the hidden size."""
    return 2 * width + hidden


def _windowed(kinds: Sequence[str], of: _Heads, window: int | None) -> list[tuple[Mixer, int]]:
    """Return each layer's attention with its vectors, from the list of attention kinds."""
    local, everything = of.mixer(window), of.mixer()
    return [(local if kind == "sliding_attention" else everything, of.vectors) for kind in kinds]


def _window_of(config: Config, kinds: Sequence[str]) -> int | None:
    """Return the sliding window where a layer has one."""
    return config.integer("sliding_window") if "sliding_attention" in kinds else None


def _every_layer_mixture(config: Config, of: _Heads, experts: Mlp, *, window: int | None = None, norms: int = 2) -> Shape:
    """Return a model whose layers are all alike."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    blocks = stack([(of.mixer(window), of.vectors)] * layers, [(experts, 0)] * layers, norms=norms * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=_mtp(config))


def _mtp(config: Config) -> tuple[str, ...]:
    return mtp_notes(config, "num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules")


def _plain_experts(config: Config, *, width: str, shared: int = 0, shared_gate: bool = False) -> Mixture:
    return Mixture(
        experts=_experts(config),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer(width),
        shared_width=shared,
        shared_gate=shared_gate,
    )


def _routed_experts(config: Config, *, shared: str) -> Mixture:
    """Experts as DeepSeek's configs spell them: shared ones are as wide as routed ones and are counted by ``shared``."""
    width = config.integer("moe_intermediate_size")
    return Mixture(
        experts=_experts(config, "n_routed_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=width,
        shared_width=width * (config.maybe_integer(shared, "num_shared_experts", least=0) or 0),
    )


def mixtral(config: Config) -> Shape:
    """No biases; every layer is a mixture; a window, if any, holds for every layer."""
    of = _heads(config, config.integer("hidden_size"))
    experts = _plain_experts(config, width="intermediate_size")
    return _every_layer_mixture(config, of, experts, window=config.maybe_integer("sliding_window"))


def minimax_m2(config: Config) -> Shape:
    """Queries and keys are normalised over all heads together; the router's correction bias is a buffer."""
    of = _heads(config, config.integer("hidden_size"), norm="all")
    return _every_layer_mixture(config, of, _plain_experts(config, width="intermediate_size"))


def olmoe(config: Config) -> Shape:
    """Queries and keys are normalised over all heads together (OLMoE before, FlexOlmo after attention)."""
    bias = config.flag("attention_bias")
    of = _heads(config, config.integer("hidden_size"), qkv_bias=bias, output_bias=bias, norm="all")
    return _every_layer_mixture(config, of, _plain_experts(config, width="intermediate_size"))


def granitemoe(config: Config) -> Shape:
    """Granite 3 mixtures; the ``shared`` variety adds an MLP that every token passes."""
    bias = config.flag("attention_bias")
    of = _heads(config, config.integer("hidden_size"), qkv_bias=bias, output_bias=bias)
    shared = config.integer("shared_intermediate_size", default=0, least=0)
    return _every_layer_mixture(config, of, _plain_experts(config, width="intermediate_size", shared=shared))


def granitemoe_swa(config: Config) -> Shape:
    """Granite mixtures with attention sinks: of four layers, the first attends to everything, the others to a window."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias = config.flag("attention_bias")
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias, sinks=True)
    default = ["sliding_attention" if place % 4 else "full_attention" for place in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=_ATTENTION_KINDS, default=default)
    shared = config.integer("shared_intermediate_size", least=0)
    experts = _plain_experts(config, width="intermediate_size", shared=shared)
    mixers = _windowed(kinds, of, _window_of(config, kinds))
    return decoder_shape(config, stack(mixers, [(experts, 0)] * layers, norms=2 * hidden), hidden=hidden)


def phimoe(config: Config) -> Shape:
    """Layer norms with biases; the output head may have a bias as well."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias = config.flag("attention_bias")
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias)
    experts = _plain_experts(config, width="intermediate_size")
    mixer = of.mixer(config.maybe_integer("sliding_window"))
    blocks = stack([(mixer, of.vectors)] * layers, [(experts, 0)] * layers, norms=4 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, vectors=2 * hidden, head_bias=config.flag("lm_head_bias"))


def _sparse_steps(config: Config, layers: int, *, dense: Sequence[int] = ()) -> list[str]:
    """MLP kinds of the Qwen mixtures: every ``decoder_sparse_step``-th layer, but for ``mlp_only_layers``."""
    step = config.integer("decoder_sparse_step")
    only = config.sequence("mlp_only_layers", default=None) if config.has("mlp_only_layers") else list(dense)
    return ["sparse" if place not in only and (place + 1) % step == 0 else "dense" for place in range(layers)]


def qwen2_moe(config: Config) -> Shape:
    """Biases on queries, keys and values; a shared expert behind a gate; windows only if ``use_sliding_window`` is set."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    of = _heads(config, hidden, qkv_bias=config.flag("qkv_bias", default=True))
    default = ["full_attention"] * layers
    if config.flag("use_sliding_window"):
        last = config.integer("max_window_layers", least=0)
        default = ["sliding_attention" if place % 2 == 0 and place < last else "full_attention" for place in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=_ATTENTION_KINDS, default=default)
    if "sliding_attention" in kinds and not config.flag("use_sliding_window"):
        raise config.bad("use_sliding_window", False, "true, as layer_types names sliding layers")
    experts = _plain_experts(
        config,
        width="moe_intermediate_size",
        shared=config.integer("shared_expert_intermediate_size", least=0),
        shared_gate=True,
    )
    feeds = _feeds(_sparse_steps(config, layers), dense=Gated(width=config.integer("intermediate_size")), sparse=experts)
    mixers = _windowed(kinds, of, _window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden)


def qwen3_moe(config: Config) -> Shape:
    """Queries and keys are normalised head by head; no shared expert; a window, if switched on, holds for every layer."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias = config.flag("attention_bias")
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias, norm="head")
    windowed = config.flag("use_sliding_window", default=False)
    mixer = of.mixer(config.maybe_integer("sliding_window") if windowed else None)
    feeds = _feeds(
        _sparse_steps(config, layers),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=_plain_experts(config, width="moe_intermediate_size"),
    )
    return decoder_shape(config, stack([(mixer, of.vectors)] * layers, feeds, norms=2 * hidden), hidden=hidden)


def flint(config: Config) -> Shape:
    """Qwen-like mixtures with attention sinks, windows by a list of layers, and an ungated shared expert."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias = config.flag("attention_bias")
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias, norm="head", sinks=True)
    everything = {0, 1, layers - 1} | set(range(1, layers, 4))
    default = ["full_attention" if place in everything else "sliding_attention" for place in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=_ATTENTION_KINDS, default=default)
    shared = config.integer("shared_expert_intermediate_size", least=0)
    feeds = _feeds(
        _sparse_steps(config, layers, dense=(0, 1)),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=_plain_experts(config, width="moe_intermediate_size", shared=shared),
    )
    mixers = _windowed(kinds, of, _window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden)


def mellum(config: Config) -> Shape:
    """Queries and keys are normalised head by head; windows and mixtures by lists of layers; no shared expert."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias = config.flag("attention_bias")
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias, norm="head")
    kinds = layer_list(config, "layer_types", layers=layers, known=_ATTENTION_KINDS, default=["full_attention"] * layers)
    mlps = layer_list(config, "mlp_layer_types", layers=layers, known=_MLP_KINDS, default=["sparse"] * layers)
    feeds = _feeds(
        mlps,
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=_plain_experts(config, width="moe_intermediate_size"),
    )
    mixers = _windowed(kinds, of, _window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden, notes=_mtp(config))


def laguna(config: Config) -> Shape:
    """Query heads may change from layer to layer; a gate on the output, of one or of all elements of a head.

    The router's correction bias is a parameter.
    """
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias = config.flag("attention_bias")
    gating = config.raw("gating", default=True)
    per_head = gating is True or config.choice(str(gating), ("per-head", "per-element"), key="gating", what="the gating") == "per-head"
    kinds = layer_list(config, "layer_types", layers=layers, known=_ATTENTION_KINDS, default=["full_attention"] * layers)
    mlps = layer_list(config, "mlp_layer_types", layers=layers, known=_MLP_KINDS, default=dense_first(layers, 1))
    declared = config.sequence("num_attention_heads_per_layer", default=None)
    if declared and len(declared) != layers:
        raise config.bad("num_attention_heads_per_layer", f"{len(declared)} entries", f"{layers} entries")
    window = _window_of(config, kinds)
    mixers: list[tuple[Mixer, int]] = []
    for place, kind in enumerate(kinds):
        of = _heads(
            config, hidden, qkv_bias=bias, output_bias=bias, norm="head", query=declared[place] if declared else None
        )
        of = _Heads(query=of.query, kv=of.kv, width=of.width, vectors=of.vectors, gate=1 if per_head else of.width)
        mixers.append((of.mixer(window if kind == "sliding_attention" else None), of.vectors))
    shared = config.integer("shared_expert_intermediate_size", least=0)
    experts = _plain_experts(config, width="moe_intermediate_size", shared=shared)
    feeds = _feeds(
        mlps, dense=Gated(width=config.integer("intermediate_size")), sparse=experts, sparse_vectors=experts.experts
    )
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden)


def kolibri1(config: Config) -> Shape:
    """Norms before and after attention and MLP; of five layers, the last attends to everything, the others to a window."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    of = _heads(config, hidden, norm="head")
    default = ["sliding_attention" if (place + 1) % 5 else "full_attention" for place in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=_ATTENTION_KINDS, default=default)
    shared = config.integer("shared_expert_intermediate_size", least=0)
    experts = _plain_experts(config, width="moe_intermediate_size", shared=shared)
    mixers = _windowed(kinds, of, _window_of(config, kinds))
    return decoder_shape(config, stack(mixers, [(experts, 0)] * layers, norms=4 * hidden), hidden=hidden)


def glm4_moe(config: Config) -> Shape:
    """The first layers are dense; biases, if any, on queries, keys and values only; norms on queries and keys optional."""
    return _glm4_moe(config, bias=config.flag("attention_bias"))


def sarvam_moe(config: Config) -> Shape:
    """GLM-4.5's layers; the bias of queries, keys and values goes by either of two names."""
    return _glm4_moe(config, bias=config.flag("use_qkv_bias", "attention_bias"))


def _glm4_moe(config: Config, *, bias: bool) -> Shape:
    hidden, layers = config.integer("hidden_size"), _layers(config)
    norm = "head" if config.flag("use_qk_norm", default=False) else ""
    of = _heads(config, hidden, qkv_bias=bias, norm=norm)
    feeds = _feeds(
        dense_first(layers, config.integer("first_k_dense_replace", default=0, least=0)),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=_routed_experts(config, shared="n_shared_experts"),
    )
    blocks = stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=_mtp(config))


def solar_open(config: Config) -> Shape:
    """As GLM-4.5, but every layer is a mixture and queries and keys are not normalised."""
    of = _heads(config, config.integer("hidden_size"), qkv_bias=config.flag("attention_bias"))
    return _every_layer_mixture(config, of, _routed_experts(config, shared="n_shared_experts"))


def dots1(config: Config) -> Shape:
    """The first layers are dense; layers from ``max_window_layers`` on have a window; queries and keys are normalised."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias = config.flag("attention_bias")
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias, norm="head")
    window = config.maybe_integer("sliding_window")
    last = layers if window is None else config.integer("max_window_layers", least=0)
    default = ["full_attention" if place < last else "sliding_attention" for place in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=_ATTENTION_KINDS, default=default)
    feeds = _feeds(
        dense_first(layers, config.integer("first_k_dense_replace", least=0)),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=_routed_experts(config, shared="n_shared_experts"),
    )
    mixers = _windowed(kinds, of, _window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden)


def hy_v3(config: Config) -> Shape:
    """The first layer is dense; ``mlp_bias`` holds for it and the shared expert, not for the routed ones."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias, norm="head")
    kinds = layer_list(config, "mlp_layer_types", layers=layers, known=_MLP_KINDS, default=dense_first(layers, 1))
    inner, experts = config.integer("intermediate_size"), _routed_experts(config, shared="num_shared_experts")
    feeds = _feeds(
        kinds,
        dense=Gated(width=inner),
        sparse=experts,
        dense_vectors=_mlp_bias(inner, hidden) if mlp_bias else 0,
        sparse_vectors=_mlp_bias(experts.shared_width, hidden) if mlp_bias else 0,
    )
    blocks = stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=_mtp(config))


def exaone_moe(config: Config) -> Shape:
    """No biases; of each ``sliding_window_pattern`` layers the last attends to everything; the first layers are dense."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    of = _heads(config, hidden, norm="head")
    default = ["full_attention"] * layers
    if not config.has("layer_types") and config.maybe_integer("sliding_window") is not None:
        every = config.integer("sliding_window_pattern")
        default = ["sliding_attention" if (place + 1) % every else "full_attention" for place in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=_ATTENTION_KINDS, default=default)
    first = dense_first(layers, config.integer("first_k_dense_replace", least=0))
    feeds = _feeds(
        layer_list(config, "mlp_layer_types", layers=layers, known=_MLP_KINDS, default=first),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=_routed_experts(config, shared="num_shared_experts"),
    )
    mixers = _windowed(kinds, of, _window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden, notes=_mtp(config))


def afmoe(config: Config) -> Shape:
    """Four norms a layer, a gate as wide as the queries on the output; the routing bias of the experts is a parameter."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias = config.flag("attention_bias")
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias, norm="head", gate=True)
    every = config.integer("global_attn_every_n_layers")
    default = ["sliding_attention" if (place + 1) % every else "full_attention" for place in range(layers)]
    kinds = layer_list(config, "layer_types", layers=layers, known=_ATTENTION_KINDS, default=default)
    experts = _routed_experts(config, shared="num_shared_experts")
    feeds = _feeds(
        dense_first(layers, config.integer("num_dense_layers", least=0)),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=experts,
        sparse_vectors=experts.experts,
    )
    mixers = _windowed(kinds, of, _window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=4 * hidden), hidden=hidden)


def cohere2_moe(config: Config) -> Shape:
    """Attention and MLP read one normalised input; of each ``sliding_window_pattern`` layers the last sees everything."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias = config.flag("attention_bias")
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias)
    first = config.integer("first_k_dense_replace", default=0, least=0)
    patterns = [config.integer("prefix_dense_sliding_window_pattern", default=1)] * min(first, layers)
    patterns += [config.integer("sliding_window_pattern")] * (layers - len(patterns))
    places = [*range(min(first, layers)), *range(layers - min(first, layers))]
    default = [
        "sliding_attention" if (place + 1) % every else "full_attention"
        for place, every in zip(places, patterns, strict=True)
    ]
    kinds = layer_list(config, "layer_types", layers=layers, known=_ATTENTION_KINDS, default=default)
    mlps = layer_list(config, "mlp_layer_types", layers=layers, known=_MLP_KINDS, default=dense_first(layers, first))
    inner = config.integer("intermediate_size")
    shared = inner * config.integer("num_shared_experts", least=0)
    feeds = _feeds(
        mlps,
        dense=Gated(width=config.maybe_integer("prefix_dense_intermediate_size") or inner),
        sparse=_plain_experts(config, width="intermediate_size", shared=shared),
    )
    mixers = _windowed(kinds, of, _window_of(config, kinds))
    return decoder_shape(config, stack(mixers, feeds, norms=hidden, parallel=True), hidden=hidden)


def ernie4_5_moe(config: Config) -> Shape:
    """``use_bias`` holds for attention, dense and shared MLPs and the head; the router's correction bias is a parameter."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias = config.flag("use_bias")
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias)
    start, interval = config.integer("moe_layer_start_index", least=0), config.integer("moe_layer_interval")
    end = config.integer("moe_layer_end_index", least=-1)
    end = layers - 1 if end == -1 else end
    kinds = ["sparse" if (place + 1) % interval == 0 and start <= place <= end else "dense" for place in range(layers)]
    inner, width = config.integer("intermediate_size"), config.integer("moe_intermediate_size")
    experts = Mixture(
        experts=config.integer("moe_num_experts", "num_experts"),
        experts_per_token=config.integer("moe_k", "num_experts_per_tok"),
        width=width,
        shared_width=width * config.integer("moe_num_shared_experts", least=0),
    )
    shared_bias = _mlp_bias(experts.shared_width, hidden) if bias and experts.shared_width else 0
    feeds = _feeds(
        kinds,
        dense=Gated(width=inner),
        sparse=experts,
        dense_vectors=_mlp_bias(inner, hidden) if bias else 0,
        sparse_vectors=experts.experts + shared_bias,
    )
    blocks = stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, head_bias=bias)


def hunyuan_v1_moe(config: Config) -> Shape:
    """Every layer is a mixture with one shared expert as wide as a routed one; queries and keys are normalised."""
    hidden = config.integer("hidden_size")
    bias = config.flag("attention_bias")
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias, norm="head")
    width = config.integer("intermediate_size")
    for key, usual in (("moe_intermediate_size", width), ("num_shared_expert", 1)):
        if config.has(key) and _uniform(config, key) != usual:
            raise UnsupportedError(f"{key} other than {usual} is not known to kvcalc", where=f"{config.where}, {key}")
    if config.flag("use_cla", default=False):
        raise UnsupportedError("attention shared across layers (use_cla) is not known to kvcalc", where=config.where)
    experts = Mixture(
        experts=_uniform(config, "num_experts"),
        experts_per_token=_uniform(config, "moe_topk", "num_experts_per_tok"),
        width=width,
        shared_width=width,
    )
    return _every_layer_mixture(config, of, experts)


def _uniform(config: Config, *keys: str) -> int:
    """Return a number that may stand as a list of equal numbers, one a layer."""
    value = config.raw(*keys)
    if isinstance(value, list) and value and len(set(value)) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise config.bad(keys[0], value, "one positive whole number for all layers")
    return value


def minimax_m3(config: Config) -> Shape:
    """Sparse layers keep an index key a token beside keys and values, and choose blocks of tokens by it."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    if config.flag("attention_output_gate", default=False):
        raise UnsupportedError("attention_output_gate is not known to kvcalc", where=config.where)
    of = _heads(config, hidden, norm="head")
    old = config.child("sparse_attention_config")
    sparse = [("minimax_m3_sparse" if flag else "full_attention") for flag in old.sequence("sparse_attention_freq", default=None)]
    kinds = layer_list(
        config,
        "layer_types",
        layers=layers,
        known=("full_attention", "minimax_m3_sparse"),
        default=sparse or ["full_attention"] * layers,
    )
    mixed = ["sparse" if flag else "dense" for flag in config.sequence("moe_layer_freq", default=None)]
    mlps = layer_list(config, "mlp_layer_types", layers=layers, known=_MLP_KINDS, default=mixed or ["sparse"] * layers)
    for key, entries in (("sparse_attention_freq", kinds), ("moe_layer_freq", mlps)):
        if len(entries) != layers:
            raise config.bad(key, f"{len(entries)} entries", f"{layers} entries, one for each layer")
    mixers = _indexed_mixers(config, old, of, kinds)
    shared = config.integer("shared_intermediate_size", least=0)
    feeds = _feeds(
        mlps,
        dense=Gated(width=config.integer("dense_intermediate_size")),
        sparse=_plain_experts(config, width="intermediate_size", shared=shared),
    )
    return decoder_shape(config, stack(mixers, feeds, norms=2 * hidden), hidden=hidden, notes=_mtp(config))


def _indexed_mixers(config: Config, old: Config, of: _Heads, kinds: Sequence[str]) -> list[tuple[Mixer, int]]:
    """Attention of MiniMax-M3; the indexer's keys stand in the config or, by other names, in ``sparse_attention_config``."""
    full = (of.mixer(), of.vectors)
    if "minimax_m3_sparse" not in kinds:
        return [full] * len(kinds)

    def setting(old_name: str, name: str) -> int:
        return old.integer(old_name) if old.has(old_name) else config.integer(name)

    dim = setting("sparse_index_dim", "index_head_dim")
    indexer = Indexer(
        heads=setting("sparse_num_index_heads", "index_n_heads"),
        head_dim=dim,
        top_k=setting("sparse_topk_blocks", "index_topk_blocks") * setting("sparse_block_size", "index_block_size"),
        head_weights=False,
    )
    sparse = (of.mixer(indexer=indexer), of.vectors + 2 * dim)
    return [sparse if kind == "minimax_m3_sparse" else full for kind in kinds]


def dbrx(config: Config) -> Shape:
    """Layer norms without biases; keys of attention and MLP stand in mappings of their own."""
    hidden, query = config.integer("d_model", "hidden_size"), config.integer("n_heads", "num_attention_heads")
    layers = config.integer("n_layers", "num_hidden_layers")
    attention = config.child("attn_config", defaults={"kv_n_heads": 1})
    ffn = config.child("ffn_config", defaults={"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1})
    mixer = Full(heads=query, kv_heads=attention.integer("kv_n_heads"), head_dim=hidden // query)
    experts = Mixture(
        experts=ffn.integer("moe_num_experts"),
        experts_per_token=ffn.integer("moe_top_k"),
        width=ffn.integer("ffn_hidden_size"),
    )
    blocks = stack([(mixer, 0)] * layers, [(experts, 0)] * layers, norms=2 * hidden)
    shape = decoder_shape(config, blocks, hidden=hidden)
    limit = config.maybe_integer("max_seq_len", "max_position_embeddings")
    return Shape(
        hidden_size=hidden,
        context_limit=limit,
        blocks=shape.blocks,
        embeddings=shape.embeddings,
        head=shape.head,
        vector_parameters=hidden,
    )


def jetmoe(config: Config) -> Shape:
    """Queries and outputs are projected by experts too: each chosen expert gives a full set of query heads.

    A token multiplies the chosen experts' projections, which are the layer's matrices here; those of the other experts are
    held and not read, and stand as a table.
    """
    hidden, layers = config.integer("hidden_size"), _layers(config)
    kv, width = config.integer("num_key_value_heads"), config.integer("kv_channels", "head_dim")
    experts = _plain_experts(config, width="intermediate_size")
    chosen = experts.experts_per_token
    mixer = Full(heads=kv * chosen, kv_heads=kv, head_dim=width)
    router = experts.experts * hidden
    blocks = stack([(mixer, hidden)] * layers, [(experts, hidden)] * layers, norms=2 * hidden, matrices=router)
    shape = decoder_shape(config, blocks, hidden=hidden)
    held = Table(name="attention experts", rows=layers * (experts.experts - chosen) * 2 * kv * width, width=hidden)
    return Shape(
        hidden_size=hidden,
        context_limit=shape.context_limit,
        blocks=blocks,
        embeddings=(*shape.embeddings, held),
        head=shape.head,
        vector_parameters=hidden,
        notes=("a step over several tokens reads more of the attention experts than is counted",),
    )


def deepseek(config: Config) -> Shape:
    """DeepSeekMoE (arXiv 2401.06066): plain attention, shared experts, the first layers dense."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    bias = config.flag("attention_bias", default=False)
    of = _heads(config, hidden, qkv_bias=bias, output_bias=bias)
    inner = config.integer("intermediate_size")
    kinds = ["dense"] * layers
    sparse: Mlp = Gated(width=inner)
    if config.maybe_integer("n_routed_experts") is not None:
        first = config.integer("first_k_dense_replace", default=0, least=0)
        every = config.integer("moe_layer_freq", default=1)
        kinds = ["sparse" if place >= first and place % every == 0 else "dense" for place in range(layers)]
        sparse = _routed_experts(config, shared="n_shared_experts")
    feeds = _feeds(kinds, dense=Gated(width=inner), sparse=sparse)
    return decoder_shape(config, stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden), hidden=hidden)


def bailing_moe(config: Config) -> Shape:
    """Ling and Ring: the first layers are dense, shared experts are counted; norms on queries and keys optional."""
    hidden, layers = config.integer("hidden_size"), _layers(config)
    if config.flag("use_bias"):
        raise UnsupportedError("use_bias with mixtures is not known to kvcalc", where=f"{config.where}, use_bias")
    norm = "head" if config.flag("use_qk_norm", default=False) else ""
    of = _heads(config, hidden, qkv_bias=config.flag("use_qkv_bias"), norm=norm)
    feeds = _feeds(
        dense_first(layers, config.integer("first_k_dense_replace", default=0, least=0)),
        dense=Gated(width=config.integer("intermediate_size")),
        sparse=_routed_experts(config, shared="num_shared_experts"),
    )
    blocks = stack([(of.mixer(), of.vectors)] * layers, feeds, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=_mtp(config))


def grok(config: Config) -> Shape:
    """Grok-1: four norms a layer, every layer a mixture, no biases."""
    of = _heads(config, config.integer("hidden_size"))
    return _every_layer_mixture(config, of, _plain_experts(config, width="intermediate_size"), norms=4)


RULES: dict[str, Rule] = {
    "afmoe": afmoe,
    "bailing_moe": bailing_moe,
    "bailing_moe_v2": bailing_moe,
    "cohere2_moe": cohere2_moe,
    "dbrx": dbrx,
    "deepseek": deepseek,
    "dots1": dots1,
    "ernie4_5_moe": ernie4_5_moe,
    "exaone_moe": exaone_moe,
    "flex_olmo": olmoe,
    "flint": flint,
    "glm4_moe": glm4_moe,
    "glm4v_moe_text": glm4_moe,
    "granitemoe": granitemoe,
    "granitemoe_swa": granitemoe_swa,
    "granitemoeshared": granitemoe,
    "grok-1": grok,
    "hunyuan_v1_moe": hunyuan_v1_moe,
    "hy_v3": hy_v3,
    "jetmoe": jetmoe,
    "kolibri1": kolibri1,
    "laguna": laguna,
    "mellum": mellum,
    "minimax_m2": minimax_m2,
    "minimax_m3": minimax_m3,
    "minimax_m3_vl_text": minimax_m3,
    "mixtral": mixtral,
    "olmoe": olmoe,
    "phimoe": phimoe,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "qwen3_omni_moe_text": qwen3_moe,
    "qwen3_vl_moe_text": qwen3_moe,
    "sarvam_moe": sarvam_moe,
    "solar_open": solar_open,
}
