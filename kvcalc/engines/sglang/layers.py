"""Bytes of a token in each of a rank's buffers, and of a slot of states, over the layers of a stage.

Source: SGLang 0.5.23, ``mem_cache/memory_pool.py`` and ``swa_memory_pool.py`` (the buffers),
``model_executor/pool_configurator.py`` (the cell of a token), ``configs/mamba_utils.py`` (the shapes of states).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.layers import Chunked, Compressed, Cross, Full, Latent, Shared, Sliding, State
from kvcalc.core.records import dataclass
from kvcalc.core.units import ceil_div
from kvcalc.engines.scaled_fp8 import scaled_fp8_bytes, scaled_latent_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.core.formats import Format
    from kvcalc.core.layers import Attention, Mixer
    from kvcalc.core.model import Block, ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.engines.sglang.architectures import Architecture

__all__ = ["RankLayers", "StateSlot", "TokenBuffer", "rank_layers"]

# A convolution's columns are kept in bf16 whatever the model runs in (SGLANG_MAMBA_CONV_DTYPE).
_CONV = FORMATS["bf16"]
_RECURRENT = FORMATS["fp32"]
_INDEX = FORMATS["bf16"]
# Classes whose key that names a format for recurrent states is another than the one that is read.
_OTHER_STATE_KEY = ("nemotron_h",)
_WHOLE_HEADS = ("mistral4",)
_ALTERNATING = ("zaya",)
# Kimi's delta attention, whose convolutions keep a window for each drafted token.
_OWN_WINDOWS = ("bailing_hybrid", "glm5_next_text", "kimi_linear")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBuffer:
    """A buffer with a row for each token of its pool, in every layer that has it.

    Args:
        name: the engine's name of it.
        token_bytes: bytes of a token on one rank, over all layers.
    """

    name: str
    token_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSlot:
    """Bytes of one slot of recurrent states on one rank, over all layers.

    Args:
        conv_bytes: of convolutions, each kind of them.
        recurrent_bytes: of recurrent states.
        column_bytes: of one column of the convolutions, which drafted tokens have in a window.
        columns: columns that are kept of them.
        own_windows: whether each drafted token keeps a window of its own.
    """

    conv_bytes: tuple[int, ...] = ()
    recurrent_bytes: int = 0
    column_bytes: int = 0
    columns: int = 0
    own_windows: bool = False

    @property
    def total(self) -> int:
        """Bytes by which the share of the states is divided."""
        return sum(self.conv_bytes) + self.recurrent_bytes

    def drafted_window_bytes(self, tokens: int) -> int:
        """Return the bytes of a request's drafted tokens in convolutions: columns that overlap, or a window each."""
        columns = tokens * self.columns if self.own_windows else tokens + self.columns - 1
        return columns * self.column_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayers:
    """The buffers of one rank's layers.

    Args:
        full: of the pool of all tokens.
        windows: of the pool of windowed layers; none where there is one pool.
        window: the window in tokens that the second pool is checked against.
        slot: a slot of recurrent states; none without such layers.
        layers: layers of the first pool; a draft's are priced as one of them.
        window_layers: layers of the second.
        index_bytes: bytes of a token's index key in one layer; 0 without an index.
    """

    full: tuple[TokenBuffer, ...]
    windows: tuple[TokenBuffer, ...] = ()
    window: int = 0
    slot: StateSlot | None = None
    layers: int = 0
    window_layers: int = 0
    index_bytes: int = 0

    @property
    def full_bytes(self) -> int:
        """Bytes of a token in the pool of all tokens."""
        return sum(buffer.token_bytes for buffer in self.full)

    @property
    def window_bytes(self) -> int:
        """Bytes of a token in the pool of windowed layers."""
        return sum(buffer.token_bytes for buffer in self.windows)


def rank_layers(
    model: ModelProfile,
    formats: Formats,
    architecture: Architecture,
    *,
    blocks: tuple[Block, ...] | None = None,
    tensor: int = 1,
    raw_latent: bool = False,
    windows: bool = True,
    state_format: Format | None = None,
) -> RankLayers:
    """Return the buffers of the layers of one stage on one tensor-parallel rank.

    Args:
        model: the model.
        formats: formats of keys and values.
        architecture: the pools that SGLang gives it.
        blocks: the layers of a pipeline stage; all of them where left out.
        tensor: tensor-parallel ranks of the attention (``tp_size / dp_size`` with data-parallel attention).
        raw_latent: whether sparse latent attention in fp8 is kept without scales, as Blackwell's kernels want it.
        windows: whether windowed layers have a pool of their own.
        state_format: format of recurrent states; the config's, else fp32, where left out.

    Raises:
        UnsupportedError: layers whose pool is not described, or state heads that the ranks do not share evenly.

    >>> from kvcalc.core.model import Block, Full, ModelProfile
    >>> from kvcalc.core.workload import Formats
    >>> from kvcalc.engines.sglang.architectures import find_architecture
    >>> block = Block(mixers=(Full(heads=64, kv_heads=4, head_dim=128),))
    >>> model = ModelProfile(name="x", architecture="qwen3_moe", hidden_size=4096, context_limit=None,
    ...     blocks=(block,) * 94, embeddings=(), head=None)
    >>> [buffer.token_bytes for buffer in rank_layers(model, Formats(), find_architecture(model), tensor=4).full]
    [24064, 24064]
    """
    stage = model.blocks if blocks is None else blocks
    mixers = [mixer for block in stage for mixer in block.mixers]
    states = [mixer for mixer in mixers if isinstance(mixer, State)]
    if architecture.pools == "states" and states:
        attention = _attention_beside_states(model, formats, architecture, mixers, tensor=tensor, raw=raw_latent)
        return replace(attention, slot=_slot(model, states, tensor=tensor, state_format=state_format))
    if architecture.pools == "windows" and windows and any(_window_of(mixer) is not None for mixer in mixers):
        return _windowed(model, formats, architecture, mixers, tensor=tensor, raw=raw_latent)
    layers = max(len(stage), len(mixers)) + _encoder_layers(model)
    if architecture.own_class and any(isinstance(mixer, Latent) for mixer in mixers):
        return _latent(formats, mixers, layers=layers, raw=raw_latent, sparse=architecture.latent_class)
    main = _main(model)
    heads = _heads(main, formats, layers=layers, tensor=tensor)
    index = _index_keys(mixers, formats)
    if index is None:
        return RankLayers(full=heads, layers=layers)
    named = tuple(replace(buffer, name=f"main_pool.{buffer.name}") for buffer in heads)
    return RankLayers(full=(*named, index), layers=layers)


def _encoder_layers(model: ModelProfile) -> int:
    """Layers of an encoder, for which a pool of an encoder-decoder model has buffers too."""
    return 0 if model.encoder is None else len(model.encoder.blocks)


def _main(model: ModelProfile) -> Attention:
    """Return the attention whose heads a uniform pool takes for every layer: that of the full layers, if any."""
    by_kind: dict[str, Attention] = {}
    for block in model.block_counts:
        for mixer in block.mixers:
            heads = _as_heads(mixer, model)
            if heads is not None:
                by_kind.setdefault(mixer.kind, heads)
    if not by_kind:
        raise UnsupportedError(f"SGLang's pool for {model.name}, which has no attention, is not described")
    return next((by_kind[kind] for kind in ("full", "latent", "sliding", "chunked") if kind in by_kind), None) or next(
        iter(by_kind.values())
    )


def _as_heads(mixer: Mixer, model: ModelProfile) -> Attention | None:
    """Return the heads that a mixer stores; none for a state.

    transformers' classes keep latent attention decompressed, and its config's ``head_dim`` is the rotary part's.
    """
    match mixer:
        case Full() | Sliding() | Chunked() | Shared() | Cross():
            return mixer
        case Latent():
            width = mixer.rope_dim + (mixer.nope_dim if model.architecture in _WHOLE_HEADS else 0)
            return Full(heads=mixer.heads, kv_heads=mixer.heads, head_dim=width, value_head_dim=mixer.value_head_dim)
        case State() | Compressed():
            return None
        case _:
            assert_never(mixer)


def _heads(
    mixer: Attention, formats: Formats, *, layers: int, tensor: int, prefix: str = "", whole: bool = False
) -> tuple[TokenBuffer, ...]:
    """Return the buffers of keys and values, with scales beside them in formats that have such.

    Args:
        mixer: the heads.
        formats: formats of keys and values.
        layers: layers that have them.
        tensor: tensor-parallel ranks; a rank has one head at least.
        prefix: what the names begin with.
        whole: whether an element takes a byte at least.
    """
    heads = max(1, mixer.kv_heads // tensor)
    data, scales = [], []
    for name, form, width in (("k", formats.key, mixer.head_dim), ("v", formats.value, mixer.value_dim)):
        elements = heads * width
        scale = elements // form.block_elements if form.block_elements > 1 and not (whole and form.unit == "fp4") else 0
        taken = elements if whole and form.unit == "fp4" else int(form.bytes(elements)) - scale
        data.append(TokenBuffer(name=f"{prefix}{name}_buffer", token_bytes=layers * taken))
        if scale:
            native = "native_" if form.unit == "fp4" else ""
            scales.append(TokenBuffer(name=f"{prefix}{native}{name}_scale_buffer", token_bytes=layers * scale))
    return (*data, *scales)


def _index_keys(mixers: Iterable[Mixer], formats: Formats) -> TokenBuffer | None:
    """Return the index keys beside keys and values (MiniMax-M3): one a token in each sparse layer, as wide as these."""
    kept = [
        mixer.indexer.kept_dim
        for mixer in mixers
        if isinstance(mixer, Full) and mixer.indexer is not None and mixer.indexer.stored
    ]
    if not kept:
        return None
    return TokenBuffer(name="index_k_pool.k_buffer", token_bytes=sum(int(formats.key.bytes(dim)) for dim in kept))


def _latent(
    formats: Formats, mixers: Iterable[Mixer], *, layers: int, raw: bool, sparse: bool, prefix: str = ""
) -> RankLayers:
    """Return the buffers of latent attention, whole on every rank, and of the index of its sparse layers."""
    latents = [mixer for mixer in mixers if isinstance(mixer, Latent)]
    first = latents[0]
    indexed = [mixer.indexer for mixer in latents if mixer.indexer is not None] if sparse else []
    taken = int(formats.key.bytes(first.kv_lora_rank + first.rope_dim))
    if indexed and formats.key.unit == "fp8" and not raw:
        taken = scaled_latent_bytes(first, formats)
    buffers = [TokenBuffer(name=f"{prefix}kv_buffer", token_bytes=layers * taken)]
    index = 0
    if indexed:
        stored = [ceil_div(scaled_fp8_bytes(each.head_dim), each.pool) for each in indexed if each.stored]
        index = max(stored, default=0)
        buffers.append(TokenBuffer(name="index_key_cache.buffer", token_bytes=sum(stored)))
    return RankLayers(full=tuple(buffers), layers=layers, index_bytes=index)


def _windowed(
    model: ModelProfile,
    formats: Formats,
    architecture: Architecture,
    mixers: list[Mixer],
    *,
    tensor: int,
    raw: bool,
) -> RankLayers:
    """Return the buffers of full and of windowed layers; those that read an earlier layer's have their own here."""
    inside = [mixer for mixer in mixers if _window_of(mixer) is not None]
    whole = [mixer for mixer in mixers if _window_of(mixer) is None]
    if any(isinstance(mixer, Latent) for mixer in whole):
        sparse = architecture.latent_class
        full = _latent(formats, whole, layers=len(whole), raw=raw, sparse=sparse, prefix="full_kv_pool.")
    else:
        buffers = _pool_of_heads(model, formats, whole, tensor=tensor, prefix="full_kv_pool.")
        full = RankLayers(full=buffers, layers=len(whole))
    return replace(
        full,
        windows=_pool_of_heads(model, formats, inside, tensor=tensor, prefix="swa_kv_pool."),
        window=max(_window_of(mixer) or 0 for mixer in inside) - architecture.window_excess,
        window_layers=len(inside),
    )


def _pool_of_heads(
    model: ModelProfile, formats: Formats, mixers: list[Mixer], *, tensor: int, prefix: str
) -> tuple[TokenBuffer, ...]:
    """Return the buffers of one of two pools, as wide in every layer as in its first; none without layers."""
    heads = next((heads for heads in (_as_heads(mixer, model) for mixer in mixers) if heads is not None), None)
    if heads is None:
        return ()
    return _heads(heads, formats, layers=len(mixers), tensor=tensor, prefix=prefix, whole=True)


def _window_of(mixer: Mixer) -> int | None:
    if isinstance(mixer, Sliding | Shared):
        return mixer.window
    return mixer.chunk if isinstance(mixer, Chunked) else None


def _attention_beside_states(
    model: ModelProfile,
    formats: Formats,
    architecture: Architecture,
    mixers: list[Mixer],
    *,
    tensor: int,
    raw: bool,
) -> RankLayers:
    """Return the buffers of the layers with attention."""
    attention = [mixer for mixer in mixers if not isinstance(mixer, State)]
    # its layers alternate between attention with a state and experts
    layers = ceil_div(len(attention), 2) if model.architecture in _ALTERNATING else len(attention)
    if any(isinstance(mixer, Latent) for mixer in attention):
        sparse = architecture.latent_class
        return _latent(formats, attention, layers=layers, raw=raw, sparse=sparse, prefix="full_kv_pool.")
    full = _heads(_main(model), formats, layers=layers, tensor=tensor, prefix="full_kv_pool.") if attention else ()
    pooled = [mixer.indexer for mixer in attention if isinstance(mixer, Full) and mixer.indexer is not None]
    if pooled:  # keys of an index in 16 bits, one for each block of tokens
        taken = sum(int(_INDEX.bytes(indexer.kept_dim)) // indexer.pool for indexer in pooled)
        full = (*full, TokenBuffer(name="qsa_compressed_k_buffer", token_bytes=taken))
    return RankLayers(full=full, layers=layers)


def _slot(model: ModelProfile, states: list[State], *, tensor: int, state_format: Format | None) -> StateSlot:
    convolutions = recurrent = beside = 0
    if model.architecture in _ALTERNATING:
        states = states[::2]
    elif any(state.key_dim for state in states):  # convolutions alone, beside such, are of no budget
        states = [state for state in states if state.key_dim]
    for state in states:
        channels = _channels(state, model, tensor)
        convolutions += int(_CONV.bytes(channels * _columns(state, model)))
        if model.architecture in _ALTERNATING:
            beside += int(_CONV.bytes(model.hidden_size))  # the last hidden state, whole on every rank
        elif state.key_dim:
            requested = None if model.architecture in _OTHER_STATE_KEY else state.requested_format
            form = state_format or (parse_format(requested) if requested else _RECURRENT)
            recurrent += int(form.bytes(_shared(state.heads, model, tensor) * state.key_dim * state.value_dim))
    columns = _columns(states[0], model)
    return StateSlot(
        conv_bytes=(convolutions, beside) if beside else (convolutions,),
        recurrent_bytes=recurrent,
        column_bytes=convolutions // columns,
        columns=columns,
        own_windows=model.architecture in _OWN_WINDOWS,
    )


def _columns(state: State, model: ModelProfile) -> int:
    return state.conv_window if model.architecture in _ALTERNATING else state.conv_kernel - 1


def _channels(state: State, model: ModelProfile, tensor: int) -> int:
    """Channels of a convolution on a rank; groups that the ranks do not share evenly are repeated for each of them."""
    repeated = tensor - state.groups if state.variant == "mamba2" and state.groups % tensor else 0
    return _shared(state.conv_channels + 2 * repeated * state.key_dim, model, tensor)


def _shared(number: int, model: ModelProfile, tensor: int) -> int:
    if number % tensor:
        raise UnsupportedError(
            f"the state heads of {model.name} are not shared evenly by {tensor} tensor-parallel ranks",
            hint="SGLang refuses such a size; --pp cuts the layers",
        )
    return number // tensor
