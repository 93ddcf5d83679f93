"""Decoders that mix local with global attention and dense MLPs with mixtures of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Chunked, Full, Gated, Mixture, Sliding
from kvcalc.importers.families.shape import (
    attention_biases,
    decoder_shape,
    heads,
    layer_list,
    mlp_biases,
    mtp_notes,
    refuse,
    stack,
    windowed,
)
from kvcalc.importers.families.windows import GLOBAL, LOCAL, every, layer_overrides, layer_windows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import Mixer, Mlp
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule, Shape

__all__ = ["RULES"]

_DENSE, _SPARSE = "dense", "sparse"


def gpt_oss(config: Config) -> Shape:
    """gpt-oss: every other layer local, a learned sink for each head, experts and router with biases."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query, kv, width = heads(config, hidden=hidden)
    bias = config.flag("attention_bias", default=True)
    experts = config.integer("num_local_experts", "num_experts")
    mixture = Mixture(
        experts=experts,
        experts_per_token=config.integer("num_experts_per_tok", "experts_per_token"),
        width=config.integer("intermediate_size"),
        expert_bias=True,
    )
    windows = layer_windows(
        config, layers=layers, default=every(layers, 2), window=config.maybe_integer("sliding_window")
    )
    vectors = query + attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    mixers = [(windowed(query, kv, width, window), vectors) for window in windows]
    blocks = stack(mixers, [(mixture, experts)] * layers, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def llama4(config: Config) -> Shape:
    """Llama 4: layers with positions attend inside chunks, every fourth layer to everything; mixtures at an interval.

    A token passes one shared expert beside its routed one. ``intermediate_size`` is an expert's width,
    ``intermediate_size_mlp`` that of the dense layers between the mixtures.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query, kv, width = heads(config, hidden=hidden)
    bias = config.flag("attention_bias", default=False)
    vectors = attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    kinds = layer_list(
        config, "layer_types", layers=layers, known=(GLOBAL, "chunked_attention"), default=_llama4_kinds(config, layers)
    )
    chunk = config.maybe_integer("attention_chunk_size")
    mixers: list[tuple[Mixer, int]] = []
    for kind in kinds:
        mixer: Mixer = Full(heads=query, kv_heads=kv, head_dim=width)
        if kind != GLOBAL:
            if chunk is None:
                raise config.bad("attention_chunk_size", chunk, "the chunk of the layers that layer_types names")
            mixer = Chunked(heads=query, kv_heads=kv, head_dim=width, chunk=chunk)
        mixers.append((mixer, vectors))
    blocks = stack(mixers, _llama4_mlps(config, layers), norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def _llama4_kinds(config: Config, layers: int) -> list[str]:
    """Return the layers' kinds where the config does not list them: chunked where a layer has rotary positions."""
    if config.has("layer_types") or config.maybe_integer("attention_chunk_size") is None:
        return [GLOBAL] * layers
    rotary = config.sequence("no_rope_layers", default=None)
    if not rotary:
        period = config.integer("no_rope_layer_interval", default=4)
        rotary = [(layer + 1) % period != 0 for layer in range(layers)]
    if len(rotary) != layers:
        raise config.bad("no_rope_layers", f"{len(rotary)} entries", f"{layers} entries, one for each layer")
    return ["chunked_attention" if turned else GLOBAL for turned in rotary]


def _llama4_mlps(config: Config, layers: int) -> list[tuple[Mlp, int]]:
    width = config.integer("intermediate_size")
    mixture = Mixture(
        experts=config.integer("num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=width,
        shared_width=width,
    )
    if config.has("moe_layers"):
        listed = config.sequence("moe_layers")
        if not all(isinstance(layer, int) and 0 <= layer < layers for layer in listed):
            raise config.bad("moe_layers", listed, f"a list of layers from 0 to {layers - 1}")
        places = {layer for layer in range(layers) if layer in listed}
    else:
        step = config.integer("interleave_moe_layer_step", default=1)
        places = set(range(step - 1, layers, step))
    dense = Gated(width=config.integer("intermediate_size_mlp"))
    return [(mixture if layer in places else dense, 0) for layer in range(layers)]


def _mlp_kinds(config: Config, layers: int, default: Sequence[str]) -> list[str]:
    return layer_list(config, "mlp_layer_types", layers=layers, known=(_DENSE, _SPARSE), default=default)


def mimo_v2_flash(config: Config) -> Shape:
    """MiMo-V2-Flash: values narrower than keys; local layers have twice the KV heads and a learned sink for each head.

    Published configs write the layers' kinds as zeros and ones; the window there leaves out the new token.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query, kv, width = heads(config, hidden=hidden)
    value = config.integer_or(width, "v_head_dim")
    bias = config.flag("attention_bias", default=False)
    before = config.maybe_integer("sliding_window_size")
    window = config.maybe_integer("sliding_window") if before is None else before + 1
    for key in ("sliding_window", "attention_chunk_size"):
        config.pass_over(key, "sliding_window_size gives the window")
    default = [GLOBAL if layer == 0 or (layer + 1) % 6 == 0 else LOCAL for layer in range(layers)]
    default = _written_kinds(config, "hybrid_layer_pattern", layers, (GLOBAL, LOCAL)) or default
    windows = layer_windows(config, layers=layers, default=default, window=window)
    for key, usual in (("swa_num_attention_heads", query), ("swa_head_dim", width), ("swa_v_head_dim", value)):
        if (config.maybe_integer(key) or usual) != usual:
            raise refuse(config, key, "a MiMo-V2-Flash whose local layers have other head sizes")
    local_kv = config.integer_or(2 * kv, "swa_num_key_value_heads")
    sinks = {
        True: config.flag("add_swa_attention_sink_bias", default=True),
        False: config.flag("add_full_attention_sink_bias", default=False),
    }
    mixers: list[tuple[Mixer, int]] = []
    for reach in windows:
        count = kv if reach is None else local_kv
        vectors = (query * width + count * (width + value)) if bias else 0
        vectors += query if sinks[reach is not None] else 0
        if reach is None:
            mixers.append((Full(heads=query, kv_heads=count, head_dim=width, value_head_dim=value), vectors))
        else:
            mixers.append(
                (Sliding(heads=query, kv_heads=count, head_dim=width, value_head_dim=value, window=reach), vectors)
            )
    blocks = stack(mixers, _mimo_mlps(config, layers), norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden, notes=mtp_notes(config, "num_nextn_predict_layers"))


def _written_kinds(config: Config, key: str, layers: int, names: tuple[str, str]) -> list[str]:
    """Return layer kinds that the config writes as zeros and ones; none where it does not."""
    if not config.has(key):
        return []
    values = config.sequence(key, length=layers)
    if any(value not in (0, 1) for value in values):
        raise config.bad(key, values, "a list of zeros and ones")
    return [names[int(value)] for value in values]


def _mimo_mlps(config: Config, layers: int) -> list[tuple[Mlp, int]]:
    if config.maybe_integer("n_shared_experts", least=0):
        raise refuse(config, "n_shared_experts", "a MiMo-V2-Flash with shared experts")
    default = _written_kinds(config, "moe_layer_freq", layers, (_DENSE, _SPARSE)) or [_DENSE] + [_SPARSE] * (layers - 1)
    mixture = Mixture(
        experts=config.integer("n_routed_experts", "num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer("moe_intermediate_size"),
    )
    dense = Gated(width=config.integer("intermediate_size"))
    return [(mixture if kind == _SPARSE else dense, 0) for kind in _mlp_kinds(config, layers, default)]


def step3p5(config: Config) -> Shape:
    """Step-3.5 and Step-3.7: local layers may have more query heads; a gate on each head's output; a shared expert.

    Keys that a config leaves out take the values of the published models' class. Lists may go on for the
    multi-token-prediction layers, which are not counted.
    """
    hidden, layers = config.integer("hidden_size", default=4096), config.integer("num_hidden_layers", default=45)
    query = config.integer("num_attention_heads", default=64)
    kv = config.integer("num_key_value_heads", "num_attention_groups", default=8)
    width = config.integer("head_dim", default=128)
    window = config.maybe_integer("sliding_window")
    kinds = _step_list(config, "layer_types", layers, (GLOBAL, LOCAL), [GLOBAL] * layers)
    if window is None and LOCAL in kinds:
        raise config.bad("sliding_window", None, "the window of the layers that layer_types names")
    queries = _step_heads(config, kinds, query, kv)
    gating = config.raw("gating", default=True)
    if gating not in (True, "per-head"):
        raise refuse(config, "gating", "a Step-3.5 whose gate is not one number a head")
    bias = config.flag("attention_bias", default=False)
    mixers: list[tuple[Mixer, int]] = []
    for kind, count in zip(kinds, queries, strict=True):
        vectors = 2 * width + attention_biases(count, kv, width, hidden, inputs=bias, output=bias)
        if kind == LOCAL and window is not None:
            mixers.append((Sliding(heads=count, kv_heads=kv, head_dim=width, output_gate=1, window=window), vectors))
        else:
            mixers.append((Full(heads=count, kv_heads=kv, head_dim=width, output_gate=1), vectors))
    blocks = stack(mixers, _step_mlps(config, hidden, layers), norms=2 * hidden)
    notes = mtp_notes(config, "num_nextn_predict_layers", "num_mtp_layers")
    return decoder_shape(config, blocks, hidden=hidden, notes=notes, varied=True)


def _step_list(config: Config, key: str, layers: int, known: tuple[str, str], default: Sequence[str]) -> list[str]:
    """Return a list of kinds, cut to the layers where it goes on for the multi-token-prediction layers."""
    padded = layers + config.integer_or(0, "num_nextn_predict_layers", "num_mtp_layers", least=0)
    if len(config.sequence(key, default=None)) != padded:
        return layer_list(config, key, layers=layers, known=known, default=default)
    return layer_list(config, key, layers=padded, known=known, default=default)[:layers]


def _step_heads(config: Config, kinds: Sequence[str], query: int, kv: int) -> list[int]:
    """Return each layer's query heads."""
    overrides = layer_overrides(config, layers=len(kinds), known=("num_attention_heads",))
    if overrides is not None:
        config.pass_over("num_sliding_attention_heads", "per_layer_config gives the heads of each layer")
        return [own.get("num_attention_heads", query) for own in overrides]
    local = _step_local_heads(config, query, kv)
    return [local if kind == LOCAL else query for kind in kinds]


def _step_local_heads(config: Config, query: int, kv: int) -> int:
    count = config.maybe_integer("num_sliding_attention_heads")
    if count is not None:
        return count
    other = config.child("attention_other_setting")
    groups = other.integer_or(kv, "num_attention_groups")
    if groups != kv:
        raise refuse(other, "num_attention_groups", "a Step-3.5 whose local layers have other KV heads")
    return other.integer_or(query, "num_attention_heads")


def _step_mlps(config: Config, hidden: int, layers: int) -> list[tuple[Mlp, int]]:
    bias = config.flag("mlp_bias", default=False)
    inner, shared = (
        config.integer("intermediate_size", default=11264),
        config.integer("share_expert_dim", "share_expert_dims", default=1280),
    )
    mixture = Mixture(
        experts=config.integer("n_routed_experts", "moe_num_experts", "num_experts", default=288),
        experts_per_token=config.integer("num_experts_per_tok", "moe_top_k", default=8),
        width=config.integer("moe_intermediate_size", default=1280),
        shared_width=shared,
    )
    dense = (Gated(width=inner), mlp_biases(inner, hidden) if bias else 0)
    sparse = (mixture, mlp_biases(shared, hidden) if bias else 0)
    kinds = _step_list(config, "mlp_layer_types", layers, (_DENSE, _SPARSE), _step_sparse(config, layers))
    return [sparse if kind == _SPARSE else dense for kind in kinds]


def _step_sparse(config: Config, layers: int) -> list[str]:
    """Return the layers that are mixtures: those that ``moe_layers_enum`` lists, or all but the first three."""
    listed = config.raw("moe_layers_enum", default=None)
    if listed is None:
        places = set(range(3, layers))
    else:
        items = listed.split(",") if isinstance(listed, str) else config.sequence("moe_layers_enum")
        try:
            places = {int(item) for item in items if str(item).strip()}
        except (TypeError, ValueError):
            raise config.bad("moe_layers_enum", listed, "a list of layers") from None
    return [_SPARSE if layer in places else _DENSE for layer in range(layers)]


def muse_spark(config: Config) -> Shape:
    """Muse Spark: one layer in four global, counted from the last; experts work in a narrower hidden state.

    Attention's output has a gate as wide as itself. Four vectors of the hidden size are norms, two of them gates on the
    residual; norms on queries, keys and the attention's output have no weights.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query, kv, width = heads(config, hidden=hidden)
    bias = config.flag("attention_bias", default=False)
    default = [GLOBAL if (layers - 1 - layer) % 4 == 0 else LOCAL for layer in range(layers)]
    windows = layer_windows(config, layers=layers, default=default, window=config.maybe_integer("sliding_window"))
    vectors = attention_biases(query, kv, width, hidden, inputs=bias, output=bias)
    mixers: list[tuple[Mixer, int]] = []
    for window in windows:
        if window is None:
            mixers.append((Full(heads=query, kv_heads=kv, head_dim=width, output_gate=width), vectors))
        else:
            mixers.append(
                (Sliding(heads=query, kv_heads=kv, head_dim=width, output_gate=width, window=window), vectors)
            )
    inputs = config.integer("moe_hidden_size")
    mixture = Mixture(
        experts=config.integer("num_local_experts"),
        experts_per_token=config.integer("num_experts_per_tok"),
        width=config.integer("moe_intermediate_size"),
        inputs=inputs,
    )
    dense = Gated(width=config.integer("intermediate_size"))
    mlps: list[tuple[Mlp, int]] = [
        (mixture, 2 * inputs) if kind == _SPARSE else (dense, 0)
        for kind in _mlp_kinds(config, layers, [_SPARSE] * layers)
    ]
    return decoder_shape(config, stack(mixers, mlps, norms=5 * hidden), hidden=hidden)


RULES: dict[str, Rule] = {
    "gpt_oss": gpt_oss,
    "llama4_text": llama4,
    "mimo_v2": mimo_v2_flash,
    "mimo_v2_flash": mimo_v2_flash,
    "muse_spark_text": muse_spark,
    "step3p5": step3p5,
    "step3p7": step3p5,
}
