"""Decoders that attend to a window in some or all of their layers, each with one dense MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.importers.families.grouped import grouped, layer_count
from kvcalc.importers.families.shape import (
    decoder_shape,
    head_width,
    heads,
    mlp,
    mtp_notes,
    refuse,
    stack,
)
from kvcalc.importers.families.windows import GLOBAL, LOCAL, every, layer_windows, local_global

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule, Shape

__all__ = ["RULES", "qwen2", "qwen3_vl"]

# Width of Voxtral Realtime's gate, which its config does not say.
_DELAY_RANK = 32


def _one_window(config: Config) -> list[int | None]:
    """Return windows where ``sliding_window`` holds for every layer, unless the config lists the layers' kinds."""
    layers, window = layer_count(config), config.maybe_integer("sliding_window")
    return layer_windows(config, layers=layers, default=[GLOBAL if window is None else LOCAL] * layers, window=window)


def _upper_windows(config: Config) -> list[int | None]:
    """Return windows of the Qwen line: only if switched on, and then in the layers from ``max_window_layers`` on."""
    layers = layer_count(config)
    window = None
    if config.flag("use_sliding_window", default=False):
        window = config.maybe_integer("sliding_window")
    first = layers if window is None else config.integer("max_window_layers", default=layers, least=0)
    default = [GLOBAL if layer < first else LOCAL for layer in range(layers)]
    return layer_windows(config, layers=layers, default=default, window=window)


def _alternating(config: Config, period: int, *, first: bool = False) -> list[int | None]:
    """Return windows where the config lists the layers' kinds, or else one in ``period`` is global."""
    layers = layer_count(config)
    default = every(layers, period, first=first)
    return layer_windows(
        config, layers=layers, default=default, window=config.maybe_integer("sliding_window", least=0) or None
    )


def _attention_bias(config: Config) -> bool:
    return config.flag("attention_bias", default=False)


def mistral(config: Config) -> Shape:
    """Mistral, Ministral and Phi-3: a window in every layer unless ``sliding_window`` is null; no biases.

    The class's default applies where the key is absent: 4096 for Mistral, none for Phi-3 and Ministral 3.
    """
    return local_global(config, windows=_one_window(config), norms=2 * config.integer("hidden_size"))


def starcoder2(config: Config) -> Shape:
    """StarCoder2: layer norms and an MLP of two matrices, with biases everywhere unless switched off."""
    hidden, bias = config.integer("hidden_size"), config.flag("use_bias", default=True)
    return local_global(
        config,
        windows=_one_window(config),
        biases=(bias, bias, bias),
        norms=4 * hidden,
        gated=False,
        last_norm=2 * hidden,
    )


def qwen2(config: Config) -> Shape:
    """Qwen2 and Qwen2.5: biases on queries, keys and values whatever the config says."""
    return local_global(
        config,
        windows=_upper_windows(config),
        biases=(True, False, False),
        norms=2 * config.integer("hidden_size"),
        notes=mtp_notes(config, "num_nextn_predict_layers"),
    )


def qwen2_vl(config: Config) -> Shape:
    """The text model of Qwen2-VL and Qwen2.5-VL: as `qwen2`, its heads always an equal part of the hidden size."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv = config.integer_or(query, "num_key_value_heads")
    return local_global(
        config,
        windows=_upper_windows(config),
        biases=(True, False, False),
        norms=2 * hidden,
        sizes=(query, kv, head_width(config, hidden, query)),
    )


def qwen2_vl_flat(config: Config) -> Shape:
    """Qwen2-VL and Qwen2.5-VL as first published: the text model's keys stand at the top level."""
    config.integer("num_key_value_heads")
    return qwen2_vl(config)


def qwen3(config: Config) -> Shape:
    """Qwen3: queries and keys are normalised head by head."""
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    *_, width = heads(config, hidden=hidden)
    windows = _upper_windows(config)
    return local_global(config, windows=windows, biases=(bias, bias, False), norms=2 * hidden, vectors=2 * width)


def qwen3_vl(config: Config) -> Shape:
    """The text model of Qwen3-VL: as `qwen3`, without windows."""
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    *_, width = heads(config, hidden=hidden)
    windows = [None] * layer_count(config)
    return local_global(config, windows=windows, biases=(bias, bias, False), norms=2 * hidden, vectors=2 * width)


def smollm3(config: Config) -> Shape:
    """SmolLM3: one layer in four has no positions; those alone have a window, if windows are switched on."""
    layers, bias = layer_count(config), _attention_bias(config)
    window = config.maybe_integer("sliding_window") if config.flag("use_sliding_window", default=False) else None
    default = [GLOBAL] * layers
    if window is not None and not config.has("layer_types"):
        rotary = config.raw("no_rope_layers", default=None)
        if rotary is None:
            period = config.integer("no_rope_layer_interval")
            rotary = [(layer + 1) % period != 0 for layer in range(layers)]
        elif not isinstance(rotary, list) or len(rotary) != layers:
            raise config.bad("no_rope_layers", rotary, f"{layers} entries, one for each layer")
        default = [GLOBAL if turned else LOCAL for turned in rotary]
    return local_global(
        config,
        windows=layer_windows(config, layers=layers, default=default, window=window),
        biases=(bias, bias, config.flag("mlp_bias", default=False)),
        norms=2 * config.integer("hidden_size"),
    )


def cohere2(config: Config) -> Shape:
    """Command R7B: attention and MLP side by side behind one layer norm, one layer in four global."""
    bias = _attention_bias(config)
    return local_global(
        config,
        windows=_alternating(
            config, 4 if config.has("layer_types") else config.integer_or(4, "sliding_window_pattern")
        ),
        biases=(bias, bias, False),
        norms=config.integer("hidden_size"),
        parallel=True,
    )


def cohere_compass(config: Config) -> Shape:
    """North Micro Vision's text model: as `cohere2`, every layer global unless a list says otherwise."""
    bias, layers = _attention_bias(config), layer_count(config)
    window = config.maybe_integer("sliding_window")
    return local_global(
        config,
        windows=layer_windows(config, layers=layers, default=[GLOBAL] * layers, window=window),
        biases=(bias, bias, False),
        norms=config.integer("hidden_size"),
        parallel=True,
    )


def muse_glimmer(config: Config) -> Shape:
    """Muse Glimmer: a gate as wide as the queries on the attention's output, one layer in four global from the last.

    Norms stand before and after attention and MLP; those on queries and keys have no weights.
    """
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    bias = _attention_bias(config)
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias, gate=True)
    default = [LOCAL if (layers - 1 - index) % 4 else GLOBAL for index in range(layers)]
    windows = layer_windows(config, layers=layers, default=default, window=config.maybe_integer("sliding_window"))
    feed = (mlp(config.integer("intermediate_size")), 0)
    blocks = stack([(of.mixer(window), of.vectors) for window in windows], [feed] * layers, norms=4 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def doge(config: Config) -> Shape:
    """Doge: a mask that the values decide (one row a KV head), and a scale for each element of both residuals."""
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    if config.flag("is_moe", default=False):
        raise refuse(config, "is_moe", "a Doge whose experts are rows of a table")
    for key in ("num_experts", "num_experts_per_tok"):
        config.pass_over(key, "the MLP is dense")
    _, kv, width = heads(config, hidden=hidden)
    return local_global(
        config,
        windows=_one_window(config),
        biases=(bias, bias, config.flag("mlp_bias", default=False)),
        norms=4 * hidden,
        vectors=2 * width + kv + (kv if bias else 0),
        matrices=kv * kv * width,
    )


def voxtral_realtime(config: Config) -> Shape:
    """Voxtral Realtime's text model: Mistral with a low-rank gate, told how far the text lags, before each MLP."""
    hidden = config.integer("hidden_size")
    return local_global(config, windows=_one_window(config), norms=2 * hidden, matrices=2 * _DELAY_RANK * hidden)


def modernbert(config: Config) -> Shape:
    """ModernBERT as a decoder: one layer in three global, no norm before the first attention, a map before the head."""
    hidden, layers, bias = config.integer("hidden_size"), layer_count(config), _attention_bias(config)
    for key in ("norm_bias", "mlp_bias"):
        if config.flag(key, default=False):
            raise refuse(config, key, f"a ModernBERT with {key}")
    config.pass_over("sliding_window", "half of local_attention")
    query, every = config.integer("num_attention_heads"), config.integer("global_attn_every_n_layers", default=3)
    windows = layer_windows(
        config,
        layers=layers,
        default=[LOCAL if index % every else GLOBAL for index in range(layers)],
        window=config.integer("local_attention") // 2,
    )
    shape = local_global(
        config,
        windows=windows,
        biases=(bias, bias, False),
        norms=2 * hidden,
        sizes=(query, query, head_width(config, hidden, query)),
    )
    first, *others = shape.blocks
    first = replace(first, name=f"first-{first.name}", vector_parameters=first.vector_parameters - hidden)
    head = None if shape.head is None else replace(shape.head, bias=config.flag("decoder_bias"))
    classified = hidden if config.flag("classifier_bias", default=False) else 0
    return replace(
        shape,
        blocks=(first, *others),
        head=head,
        matrix_parameters=hidden * hidden,
        vector_parameters=3 * hidden + classified,
    )


def olmo3(config: Config) -> Shape:
    """OLMo-3: norms after attention and MLP, norms on all queries and all keys together, one layer in four global."""
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    query, kv, width = heads(config, hidden=hidden)
    windows = _alternating(config, 4)
    return local_global(
        config, windows=windows, biases=(bias, bias, False), norms=2 * hidden, vectors=(query + kv) * width
    )


def exaone4(config: Config) -> Shape:
    """EXAONE 4: norms after attention and MLP, norms on queries and keys; without a window every layer is global.

    Published configs write ``sliding_window_pattern`` as a number or as letters (``LLLG``).
    """
    hidden, layers = config.integer("hidden_size"), layer_count(config)
    *_, width = heads(config, hidden=hidden)
    window = config.maybe_integer("sliding_window")
    return local_global(
        config,
        windows=layer_windows(config, layers=layers, default=_exaone_kinds(config, layers, window), window=window),
        norms=2 * hidden,
        vectors=2 * width,
        notes=mtp_notes(config, "num_nextn_predict_layers"),
    )


def _exaone_kinds(config: Config, layers: int, window: int | None) -> list[str]:
    if window is None or config.has("layer_types"):
        return [GLOBAL] * layers
    pattern = config.raw("sliding_window_pattern", default=4)
    if not isinstance(pattern, str):
        return every(layers, config.integer("sliding_window_pattern"))
    letters = {"L": LOCAL, "G": GLOBAL}
    for letter in pattern:
        config.choice(letter, tuple(letters), key="sliding_window_pattern", what="the layer kind")
    return [letters[pattern[layer % len(pattern)]] for layer in range(layers)] if pattern else [GLOBAL] * layers


def cwm(config: Config) -> Shape:
    """Code World Model: Llama without attention biases, the first layer in four global."""
    return local_global(
        config,
        windows=_alternating(config, 4, first=True),
        biases=(False, False, config.flag("mlp_bias", default=False)),
        norms=2 * config.integer("hidden_size"),
    )


def granite_swa(config: Config) -> Shape:
    """Granite with windows: the first layer in four global, a learned sink for each head."""
    bias, query = _attention_bias(config), config.integer("num_attention_heads")
    return local_global(
        config,
        windows=_alternating(config, 4, first=True),
        biases=(bias, bias, config.flag("mlp_bias", default=False)),
        norms=2 * config.integer("hidden_size"),
        vectors=query,
    )


RULES: dict[str, Rule] = {
    "cohere2": cohere2,
    "cohere_compass_text": cohere_compass,
    "cwm": cwm,
    "doge": doge,
    "exaone4": exaone4,
    "exaone4_5_text": exaone4,
    "granite_swa": granite_swa,
    "mimo": qwen2,
    "ministral": mistral,
    "ministral3": mistral,
    "mistral": mistral,
    "muse_glimmer_text": muse_glimmer,
    "olmo3": olmo3,
    "phi3": mistral,
    "phi3_v": mistral,
    "phi4_multimodal": mistral,
    "qwen2": qwen2,
    "qwen2_5_omni_text": qwen2,
    "qwen2_5_vl": qwen2_vl_flat,
    "qwen2_5_vl_text": qwen2_vl,
    "qwen2_vl": qwen2_vl_flat,
    "qwen2_vl_text": qwen2_vl,
    "qwen3": qwen3,
    "qwen3_vl_text": qwen3_vl,
    "smollm3": smollm3,
    "voxtral_realtime_text": voxtral_realtime,
    "modernbert-decoder": modernbert,
    "starcoder2": starcoder2,
}
