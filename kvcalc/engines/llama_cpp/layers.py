"""Layers as llama.cpp allocates them: rows of keys and values, a window, index keys, states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.model import Attention, Chunked, Compressed, Cross, Full, Latent, Shared, Sliding, State
from kvcalc.core.records import dataclass
from kvcalc.cost.cache import entry_bytes, state_bytes

if TYPE_CHECKING:
    from kvcalc.core.formats import Format
    from kvcalc.core.model import Mixer, ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.engines.llama_cpp.architectures import Architecture
    from kvcalc.engines.llama_cpp.options import LlamaCppOptions

__all__ = ["Layer", "check_types", "key_bytes", "recurrent_bytes", "shape_layers", "value_bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Rows and states that one layer keeps.

    Args:
        entry: the heads it keeps for a token, as plain attention; none for a layer without attention.
        stored: whether it has cells of its own.
        window: its sliding window in tokens, where llama.cpp applies one.
        index: the index keys it keeps for a token, likewise as plain attention.
        compressed: the compressed attention it is, which keeps further entries.
        states: its recurrent states.
    """

    entry: Full | None = None
    stored: bool = False
    window: int | None = None
    index: Full | None = None
    compressed: Compressed | None = None
    states: tuple[State, ...] = ()


def shape_layers(model: ModelProfile, rule: Architecture, options: LlamaCppOptions) -> tuple[Layer, ...]:
    """Return the rows and states that each layer of a model keeps in llama.cpp.

    Source: llama.cpp commit 0c1e57098bba: the hyper-parameters each architecture reads (``src/models``) and the layer
    filters of ``llama_model::create_memory``.

    Raises:
        UnsupportedError: layers of a kind that is not described.
    """
    known: dict[tuple[tuple[Mixer, ...], bool | None], Layer] = {}
    layers = []
    for index, block in enumerate(model.blocks):
        owned = None if rule.own_caches is None else index < rule.own_caches
        key = (block.mixers, owned)
        if key not in known:
            known[key] = _layer(block.mixers, owned=owned, rule=rule, options=options, count=model.layers)
        layers.append(known[key])
    _check_layers(layers, model.name)
    return tuple(layers)


def _layer(
    mixers: tuple[Mixer, ...], *, owned: bool | None, rule: Architecture, options: LlamaCppOptions, count: int
) -> Layer:
    states = tuple(mixer for mixer in mixers if isinstance(mixer, State))
    if rule.states is not None and any(state.variant != rule.states for state in states):
        raise UnsupportedError("llama.cpp does not run this model's kind of recurrent layers")
    skipped = State | Cross if rule.encoded_anew else State
    attentions = [mixer for mixer in mixers if not isinstance(mixer, skipped)]
    if not attentions:
        return Layer(states=states)
    mixer = attentions[0]
    if len(attentions) > 1 or isinstance(mixer, Cross):
        raise UnsupportedError("llama.cpp's memory of layers with several attentions or an encoder is not described")
    if not isinstance(mixer, Full | Sliding | Chunked | Shared | Latent | Compressed):
        raise UnsupportedError(f"llama.cpp's memory of {mixer.kind} attention is not described")
    applied = rule.windows and rule.window_layers in (None, count)
    return Layer(
        entry=_entry(mixer, rule, options),
        stored=not isinstance(mixer, Shared) if owned is None else owned,
        window=_window(mixer, rule) if applied else None,
        index=_index(mixer, rule),
        compressed=mixer if isinstance(mixer, Compressed) else None,
        states=states,
    )


def _entry(mixer: Attention | Latent | Compressed, rule: Architecture, options: LlamaCppOptions) -> Full:
    """Return the entry of a token in the layer, as heads of plain attention; a width of 0 for values that are not kept.

    A latent layer keeps one key and no values, but for the uncompressed heads of some models and of old files.
    """
    if isinstance(mixer, Latent) and (options.legacy_latent or rule.latent_as_heads):
        width = mixer.nope_dim + mixer.rope_dim
        return Full(heads=mixer.heads, kv_heads=mixer.heads, head_dim=width, value_head_dim=mixer.value_head_dim)
    if isinstance(mixer, Latent):
        return _one_head(mixer.kv_lora_rank + mixer.rope_dim)
    if isinstance(mixer, Compressed):
        return _one_head(mixer.head_dim)
    if rule.one_vector:
        return _one_head(mixer.head_dim + mixer.value_dim)
    return Full(
        heads=mixer.heads,
        kv_heads=mixer.kv_heads,
        head_dim=mixer.head_dim,
        value_head_dim=0 if rule.keys_only else mixer.value_dim,
    )


def _one_head(width: int, *, values: int = 0) -> Full:
    return Full(heads=1, kv_heads=1, head_dim=width, value_head_dim=values)


def _window(mixer: Mixer, rule: Architecture) -> int | None:
    return None if mixer.span is None else rule.fixed_window or mixer.span - rule.window_excess


def _index(mixer: Mixer, rule: Architecture) -> Full | None:
    """Return the index keys of a token, and unused values where room for them is allocated too."""
    indexer = mixer.indexer
    if indexer is None or not indexer.stored:
        return None
    if indexer.pool > 1 and not rule.pooled_index:
        raise UnsupportedError("llama.cpp's memory of index keys that are pooled later is not described")
    width = indexer.head_dim * (rule.pooled_index or 1)
    return _one_head(width, values=mixer.value_dim if isinstance(mixer, Full) and rule.index_values else 0)


def _check_layers(layers: list[Layer], name: str) -> None:
    windows = {layer.window for layer in layers if layer.window is not None}
    if len(windows) > 1:
        raise UnsupportedError(f"{name} has windows of {sorted(windows)} tokens; a GGUF file holds one for all layers")
    if windows and any(layer.states for layer in layers):
        raise UnsupportedError("llama.cpp's memory of recurrent layers beside windows is not described")


def key_bytes(entry: Full, formats: Formats) -> int:
    """Return the bytes of a layer's keys for one token.

    Source: `entry_bytes` without the values; llama.cpp commit 0c1e57098bba, ``n_embd_k_gqa``.

    >>> from kvcalc.core.workload import Formats
    >>> key_bytes(Full(heads=32, kv_heads=8, head_dim=128), Formats())
    2048
    """
    return entry_bytes(replace(entry, value_head_dim=0), formats)


def value_bytes(entry: Full, formats: Formats) -> int:
    """Return the bytes of a layer's values for one token.

    Source: `entry_bytes` without the keys; llama.cpp commit 0c1e57098bba, ``n_embd_v_gqa``.
    """
    return entry_bytes(entry, formats) - key_bytes(entry, formats)


def recurrent_bytes(state: State, formats: Formats) -> tuple[int, int]:
    """Return the bytes of a layer's convolution and recurrent state for one sequence, both in 32 bits.

    The convolution keeps the columns before the new one: one less than its kernel is wide.

    Source: `state_bytes`; llama.cpp commit 0c1e57098bba, ``llama_hparams::n_embd_r`` and ``n_embd_s``.

    >>> from kvcalc.core.formats import FORMATS
    >>> from kvcalc.core.workload import Formats
    >>> recurrent_bytes(State(variant="mamba", heads=1536, key_dim=16, value_dim=1, conv_channels=1536, conv_window=4,
    ...     conv_kernel=4), Formats(state=FORMATS["fp32"]))
    (18432, 98304)
    """
    columns = max(0, state.conv_kernel - 1)
    plain = replace(state, conv_window=columns, recurrent_format=None, extra_state_bytes=0)
    convolution = state_bytes(replace(plain, heads=0), formats)
    return convolution, state_bytes(plain, formats) - convolution


def check_types(layers: tuple[Layer, ...], options: LlamaCppOptions, *, alike: bool) -> None:
    """Raise where llama.cpp refuses the types of a cache.

    With flash attention a block of a quantised type must divide each head; without it only the row, and values cannot
    be quantised at all.

    Source: llama.cpp commit 0c1e57098bba, ``llama_init_from_model``.

    Args:
        layers: the layers.
        options: the options.
        alike: whether the model takes only one type for keys and values.

    Raises:
        InputError: types that cannot be used.
    """
    key, value = options.key, options.value
    if alike and key != value:
        raise InputError(
            f"llama.cpp keeps one vector for keys and values of this model: not types {key.name} and {value.name}",
            hint="give both caches the same type",
        )
    if value.block_elements > 1 and not options.flash:
        raise InputError(
            f"llama.cpp needs flash attention for values of type {value.name}", hint="leave flash attention on auto"
        )
    for layer in layers:
        for entry in (layer.entry, layer.index):
            if entry is not None:
                heads = 1 if options.flash else entry.kv_heads
                _check_block(key, heads * entry.head_dim, "keys")
                _check_block(value, heads * entry.value_dim, "values")


def _check_block(form: Format, width: int, what: str) -> None:
    if width % form.block_elements:
        raise InputError(
            f"llama.cpp cannot keep {what} {width} wide in type {form.name}, whose blocks are {form.block_elements}",
            hint="take f16 or bf16",
        )
