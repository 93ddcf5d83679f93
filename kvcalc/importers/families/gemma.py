"""The Gemma line after its first generation: local and global layers, norms on both sides, caches shared by layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Full, Gated, Mixture, Shared, Sliding, Table
from kvcalc.importers.families.shape import attention_biases, decoder_shape, heads, layer_list, refuse
from kvcalc.importers.families.windows import GLOBAL, LOCAL, every, layer_overrides, layer_windows, local_global

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import Mixer, Mlp
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule, Shape

__all__ = ["RULES"]


def _windows(config: Config, period: int, window: int | None) -> list[int | None]:
    layers = config.integer("num_hidden_layers")
    return layer_windows(config, layers=layers, default=every(layers, period), window=window)


def gemma2(config: Config) -> Shape:
    """Gemma 2: every other layer local, a norm before and after attention and MLP each."""
    bias = config.flag("attention_bias", default=False)
    windows = _windows(config, 2, config.maybe_integer("sliding_window"))
    return local_global(config, windows=windows, biases=(bias, bias, False), norms=4 * config.integer("hidden_size"))


def vaultgemma(config: Config) -> Shape:
    """VaultGemma: Gemma 2 without the norms after attention and MLP."""
    bias = config.flag("attention_bias", default=False)
    windows = _windows(config, 2, config.maybe_integer("sliding_window"))
    return local_global(config, windows=windows, biases=(bias, bias, False), norms=2 * config.integer("hidden_size"))


def gemma3(config: Config) -> Shape:
    """Gemma 3: one layer in six global, norms on queries and keys; a window that looks both ways counts half."""
    hidden, bias = config.integer("hidden_size"), config.flag("attention_bias", default=False)
    *_, width = heads(config, hidden=hidden)
    window = config.maybe_integer("sliding_window")
    if window is not None and config.flag("use_bidirectional_attention", default=False):
        window = window // 2 + 1
    period = 6
    if not config.has("layer_types"):
        period = config.integer_or(6, "sliding_window_pattern", "_sliding_window_pattern")
    windows = _windows(config, period, window)
    return local_global(config, windows=windows, biases=(bias, bias, False), norms=4 * hidden, vectors=2 * width)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """Shape of one layer of Gemma 3n and Gemma 4.

    Args:
        place: index of the layer.
        kind: local or global.
        shared: whether it reads the cache of the last earlier layer of its kind.
    """

    place: int
    kind: str
    shared: bool


def _layers(config: Config, kinds: Sequence[str]) -> list[_Layer]:
    """Return the layers, of which the last ``num_kv_shared_layers`` keep no cache of their own."""
    count = config.integer("num_kv_shared_layers", default=0, least=0)
    own = len(kinds) - count
    if own < 0 or (count and set(kinds) != set(kinds[:own])):
        raise config.bad("num_kv_shared_layers", count, "a number that leaves each kind of layer one with a cache")
    return [_Layer(place=layer, kind=kind, shared=layer >= own) for layer, kind in enumerate(kinds)]


def _mixer(layer: _Layer, *, sizes: tuple[int, int, int], window: int, value_from_key: bool = False) -> Mixer:
    query, kv, width = sizes
    local = layer.kind == LOCAL
    if layer.shared:
        return Shared(heads=query, kv_heads=kv, head_dim=width, window=window if local else None)
    if local:
        return Sliding(heads=query, kv_heads=kv, head_dim=width, window=window)
    return Full(heads=query, kv_heads=kv, head_dim=width, value_from_key=value_from_key)


def _name(layer: _Layer) -> str:
    kind = "local" if layer.kind == LOCAL else "global"
    return f"{kind}-shared" if layer.shared else kind


def _distinct(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return the layers with one object for equal ones."""
    seen: dict[Block, Block] = {}
    return tuple(seen.setdefault(block, block) for block in blocks)


def _with_layer_inputs(config: Config, shape: Shape, width: int) -> Shape:
    """Return the shape with the table of per-layer embeddings and the projection that feeds every layer."""
    total = len(shape.blocks) * width
    table = Table(name="per_layer", rows=config.integer("vocab_size_per_layer_input"), width=total)
    return replace(
        shape,
        embeddings=(*shape.embeddings, table),
        matrix_parameters=shape.matrix_parameters + shape.hidden_size * total,
        vector_parameters=shape.vector_parameters + width,
    )


def gemma3n(config: Config) -> Shape:
    """Gemma 3n: shared caches, per-layer embeddings, a low-rank detour (LAuReL), several residual streams (AltUp).

    AltUp keeps ``altup_num_inputs`` copies of the hidden state, of which a layer works on one; the others are predicted
    and corrected by small matrices. Sparse activations change no size.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    sizes = heads(config, hidden=hidden)
    bias = config.flag("attention_bias", default=False)
    streams, per_layer = config.integer("altup_num_inputs"), config.integer("hidden_size_per_layer_input")
    matrices = 2 * hidden * config.integer("laurel_rank") + 2 * hidden * per_layer
    matrices += hidden * streams + streams**2 + streams**3
    window, inner = config.integer("sliding_window"), _inner_widths(config, layers)
    kinds = layer_list(config, "layer_types", layers=layers, known=(GLOBAL, LOCAL), default=every(layers, 5))
    blocks = [
        Block(
            name=_name(layer),
            mixers=(_mixer(layer, sizes=sizes, window=window),),
            mlp=Gated(width=inner[layer.place]),
            matrix_parameters=matrices,
            vector_parameters=8 * hidden + _attention_vectors(layer, sizes, hidden, bias=bias),
        )
        for layer in _layers(config, kinds)
    ]
    shape = decoder_shape(config, _distinct(blocks), hidden=hidden, matrices=2 * (streams - 1) * hidden**2)
    return _with_layer_inputs(config, shape, per_layer)


def _inner_widths(config: Config, layers: int) -> list[int]:
    """Return each layer's MLP width: the config gives one for all, or a list."""
    value = config.raw("intermediate_size")
    if not isinstance(value, list):
        return [config.integer("intermediate_size")] * layers
    widths = config.sequence("intermediate_size", length=layers)
    if not all(isinstance(width, int) and width > 0 for width in widths):
        raise config.bad("intermediate_size", widths, "a list of whole numbers")
    return widths


def _attention_vectors(
    layer: _Layer, sizes: tuple[int, int, int], hidden: int, *, bias: bool, value_from_key: bool = False
) -> int:
    """Return the norms of queries and keys, and the biases; a layer without a cache has none for keys and values."""
    query, kv, width = sizes
    norms = width if layer.shared else 2 * width
    if not bias:
        return norms
    if layer.shared:
        return norms + query * width + hidden
    biases = attention_biases(query, kv, width, hidden, inputs=True, output=True)
    return norms + biases - (kv * width if value_from_key else 0)


def gemma4(config: Config) -> Shape:
    """Gemma 4: wider heads in global layers, shared caches, embeddings for each layer, experts beside the MLP.

    With ``attention_k_eq_v`` a global layer has a KV head count of its own, and values come from the key projection;
    both are stored all the same. The last layer is always global.
    """
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    bias, same = config.flag("attention_bias", default=False), config.flag("attention_k_eq_v", default=False)
    kinds = layer_list(config, "layer_types", layers=layers, known=(GLOBAL, LOCAL), default=every(layers, 6))
    kinds[-1] = GLOBAL
    window = config.integer("sliding_window")
    if config.raw("use_bidirectional_attention", default=None) == "all":
        window = window // 2 + 1
    per_layer = config.integer("hidden_size_per_layer_input", default=0, least=0) if _has_layer_inputs(config) else 0
    blocks = []
    for layer, sizes in zip(_layers(config, kinds), _gemma4_sizes(config, kinds, same=same), strict=True):
        from_key = same and layer.kind == GLOBAL
        feed, feed_vectors = _gemma4_mlp(config, hidden, shared=layer.shared)
        block = Block(
            name=_name(layer),
            mixers=(_mixer(layer, sizes=sizes, window=window, value_from_key=from_key),),
            mlp=feed,
            matrix_parameters=2 * hidden * per_layer,
            vector_parameters=4 * hidden
            + feed_vectors
            + (hidden if per_layer else 0)
            + _attention_vectors(layer, sizes, hidden, bias=bias, value_from_key=from_key),
        )
        blocks.append(block)
    shape = decoder_shape(config, _distinct(blocks), hidden=hidden, varied=True)
    return _with_layer_inputs(config, shape, per_layer) if per_layer else shape


def _has_layer_inputs(config: Config) -> bool:
    return config.raw("hidden_size_per_layer_input", default=None) is not None


def _gemma4_sizes(config: Config, kinds: Sequence[str], *, same: bool) -> list[tuple[int, int, int]]:
    """Return heads, KV heads and head width of each layer: by kind, or as ``per_layer_config`` has it."""
    query, kv, width = heads(config, hidden=config.integer("hidden_size"))
    overrides = layer_overrides(config, layers=len(kinds), known=("head_dim", "num_key_value_heads"))
    if overrides is not None:
        return [(query, own.get("num_key_value_heads", kv), own.get("head_dim", width)) for own in overrides]
    wide = config.integer("global_head_dim", default=512)
    few = (config.maybe_integer("num_global_key_value_heads") if same else None) or kv
    return [(query, few, wide) if kind == GLOBAL else (query, kv, width) for kind in kinds]


def _gemma4_mlp(config: Config, hidden: int, *, shared: bool) -> tuple[Mlp, int]:
    """Return a layer's MLP and its vectors; experts beside it bring three norms and two scales more."""
    inner = config.integer("intermediate_size")
    if shared and config.flag("use_double_wide_mlp", default=False):
        inner *= 2
    if not config.flag("enable_moe_block", default=False):
        return Gated(width=inner), 0
    experts = config.integer("num_experts")
    mixture = Mixture(
        experts=experts,
        experts_per_token=config.integer("top_k_experts"),
        width=config.integer("moe_intermediate_size", "expert_intermediate_size"),
        shared_width=inner,
    )
    return mixture, 4 * hidden + experts


def gemma4_unified(config: Config) -> Shape:
    """Gemma 4 unified: Gemma 4 without per-layer embeddings and experts."""
    if config.raw("enable_moe_block", default=None) or config.raw("hidden_size_per_layer_input", default=None):
        raise refuse(config, "enable_moe_block", "a unified Gemma 4 with experts or per-layer embeddings")
    return gemma4(config)


RULES: dict[str, Rule] = {
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gemma3n_text": gemma3n,
    "gemma4_text": gemma4,
    "gemma4_unified_text": gemma4_unified,
    "vaultgemma": vaultgemma,
}
