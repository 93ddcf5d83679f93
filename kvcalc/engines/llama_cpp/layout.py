"""The memory of a llama.cpp context: its caches, cell by cell and layer by layer, and its recurrent states."""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.identity import ById
from kvcalc.core.model import Latent, State
from kvcalc.core.records import dataclass
from kvcalc.core.units import ceil_div
from kvcalc.engines.llama_cpp.architectures import find_architecture
from kvcalc.engines.llama_cpp.layers import check_types, key_bytes, recurrent_bytes, shape_layers, value_bytes
from kvcalc.engines.llama_cpp.options import context_sizes, padded

if TYPE_CHECKING:
    from kvcalc.core.formats import Format
    from kvcalc.core.model import Full, ModelProfile
    from kvcalc.engines.llama_cpp.layers import Layer
    from kvcalc.engines.llama_cpp.options import ContextSizes, LlamaCppOptions

__all__ = ["Cache", "CompressorState", "KeptTensor", "LlamaCppMemory", "RecurrentState", "layout", "option_notes"]

# The ratios of compressed attention that llama.cpp knows, and what it calls their caches.
_COMPRESSED_ROLES = {4: "csa", 128: "hca"}
_COMPRESSOR_PLANES = 2


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """A tensor of keys, values or states that one layer keeps.

    Args:
        layer: the layer.
        width: elements of a row.
        form: format of its elements.
        size: its bytes, all cells and streams.
    """

    layer: int
    width: int
    form: Format
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One KV cache.

    Args:
        role: ``main``; ``full`` and ``swa`` where some layers have a window; ``indexer``; ``csa`` and ``hca``.
        cells: tokens (or compressed entries) that one stream holds.
        streams: streams, each with cells of its own.
        layers: layers that keep something in it.
        k_bytes: bytes of keys, all layers and streams.
        v_bytes: bytes of values.
        tensors: keys and values of each layer.
    """

    role: str
    cells: int
    streams: int
    layers: int
    k_bytes: int
    v_bytes: int
    tensors: tuple[KeptTensor, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentState:
    """The states of recurrent layers.

    Args:
        cells: sequences.
        layers: recurrent layers.
        r_bytes: bytes of convolution states.
        s_bytes: bytes of recurrent states.
        tensors: the states of each layer.
    """

    cells: int
    layers: int
    r_bytes: int
    s_bytes: int
    tensors: tuple[KeptTensor, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorState:
    """State of compressed attention's compressors: tokens that are not compressed yet.

    Args:
        role: the cache it fills: ``csa``, ``hca`` or ``indexer``.
        rows: tokens kept.
        width: elements of each.
        layers: layers.
        total_bytes: bytes, all layers and streams.
        tensors: the states of each layer.
    """

    role: str
    rows: int
    width: int
    layers: int
    total_bytes: int
    tensors: tuple[KeptTensor, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppMemory:
    """Allocations of a context.

    Args:
        n_ctx: tokens of all sequences together, as padded.
        n_ctx_seq: tokens of one sequence.
        n_ubatch: tokens computed at once.
        caches: the KV caches, in the order llama.cpp makes them.
        recurrent: the states of recurrent layers, where there are any.
        compressors: the states of compressors, where there are any.
    """

    n_ctx: int
    n_ctx_seq: int
    n_ubatch: int
    caches: tuple[Cache, ...]
    recurrent: RecurrentState | None = None
    compressors: tuple[CompressorState, ...] = ()

    @property
    def kv_bytes(self) -> int:
        """Bytes of all caches."""
        return sum(cache.k_bytes + cache.v_bytes for cache in self.caches)

    @property
    def state_bytes(self) -> int:
        """Bytes of all states, whatever the context."""
        recurrent = self.recurrent.r_bytes + self.recurrent.s_bytes if self.recurrent else 0
        return recurrent + sum(state.total_bytes for state in self.compressors)

    @property
    def total_bytes(self) -> int:
        """Bytes of caches and states."""
        return self.kv_bytes + self.state_bytes

    @property
    def tensors(self) -> tuple[KeptTensor, ...]:
        """Keys, values and states of all layers."""
        parts = (*self.caches, *((self.recurrent,) if self.recurrent else ()), *self.compressors)
        return tuple(tensor for part in parts for tensor in part.tensors)


def layout(model: ModelProfile, options: LlamaCppOptions) -> LlamaCppMemory:
    """Return the memory that llama.cpp allocates for a context of a model.

    Source: llama.cpp commit 0c1e57098bba: ``llama_model::create_memory`` and the constructors of ``llama_kv_cache``,
    ``llama_kv_cache_iswa``, its sparse-attention kin and ``llama_memory_recurrent``.

    Args:
        model: the model; a context always has all its layers (no layers for multi-token prediction).
        options: the context's options.

    Raises:
        InputError: options that llama.cpp refuses.
        UnsupportedError: an architecture or layers whose memory is not described.

    >>> from kvcalc.core.model import Block, Full, ModelProfile
    >>> from kvcalc.engines.llama_cpp import LlamaCppOptions
    >>> block = Block(mixers=(Full(heads=32, kv_heads=8, head_dim=128),))
    >>> model = ModelProfile(name="x", architecture="llama", hidden_size=4096, context_limit=131072,
    ...     blocks=(block,) * 32, embeddings=(), head=None)
    >>> layout(model, LlamaCppOptions(context=5000)).kv_bytes  # 5120 cells
    671088640
    """
    return _layout(ById(model), options)


@lru_cache(maxsize=64)
def _layout(same: ById[ModelProfile], options: LlamaCppOptions) -> LlamaCppMemory:
    """Return the memory of a context, kept since placements are tried by the dozen."""
    model = same.value
    rule = find_architecture(model.architecture)
    layers = shape_layers(model, rule, options)
    one_vector = model.has(Latent) and not (options.legacy_latent or rule.latent_as_heads)
    check_types(layers, options, alike=rule.keys_only or one_vector)
    sizes = context_sizes(options, trained=model.context_limit)
    kept = 1 + options.rollback_tokens if rule.rollback else 1
    return LlamaCppMemory(
        n_ctx=sizes.n_ctx,
        n_ctx_seq=sizes.n_ctx_seq,
        n_ubatch=sizes.n_ubatch,
        caches=_caches(layers, options, sizes),
        recurrent=_recurrent(layers, options, kept),
        compressors=_compressors(layers, options, kept),
    )


def option_notes(model: ModelProfile, options: LlamaCppOptions) -> tuple[str, ...]:
    """Name the options that llama.cpp silently takes otherwise than they were given.

    Source: llama.cpp commit 0c1e57098bba, ``llama_context::llama_context``.
    """
    notes = []
    if options.ubatch > options.batch:
        cut = f"ubatch {options.ubatch:,} is cut to {options.batch:,}"
        notes.append(f"{cut}: llama.cpp computes no more at once than --batch-size")
    states = model.has(State)
    if options.rollback_tokens and states and not find_architecture(model.architecture).rollback:
        notes.append(f"llama.cpp keeps no earlier states of {model.architecture}: drafts cost no copies of them")
    return tuple(notes)


def _caches(layers: tuple[Layer, ...], options: LlamaCppOptions, sizes: ContextSizes) -> tuple[Cache, ...]:
    stored = [(number, layer) for number, layer in enumerate(layers) if layer.stored]
    if not stored:
        return ()
    build = _Builder(options, layers)
    if any(layer.compressed for layer in layers):
        return _compressed_caches(build, layers, sizes)
    indexed = [(number, layer.index) for number, layer in stored if layer.index]
    index = (build.cache("indexer", sizes.n_ctx_seq, sizes.streams, indexed),) if indexed else ()
    if any(layer.window is not None for layer in layers):
        sharing = options.parallel if options.kv_unified else 1
        return _windowed_caches(build, stored, sizes, sharing=sharing, streams=sizes.streams) + index
    entries = [(number, layer.entry) for number, layer in stored if layer.entry]
    return (build.cache("main", sizes.n_ctx_seq, sizes.streams, entries, pad=True), *index)


def _windowed_caches(
    build: _Builder, stored: list[tuple[int, Layer]], sizes: ContextSizes, *, sharing: int, streams: int
) -> tuple[Cache, ...]:
    """Return the cache of layers without and that of layers with a window (``llama_kv_cache_iswa``).

    A window's cells also hold the micro-batch that is being computed, and the windows of all sequences that share them.
    """
    full = [(index, layer.entry) for index, layer in stored if layer.entry and layer.window is None]
    local = [(index, layer.entry) for index, layer in stored if layer.entry and layer.window is not None]
    window = max((layer.window or 0 for _, layer in stored), default=0)
    cells = sizes.n_ctx_seq
    if not build.options.swa_full:
        cells = padded(min(sizes.n_ctx_seq, window * sharing + sizes.n_ubatch))
    return (
        build.cache("full", sizes.n_ctx_seq, streams, full, pad=True),
        build.cache("swa", cells, streams, local, pad=True),
    )


def _compressed_caches(build: _Builder, layers: tuple[Layer, ...], sizes: ContextSizes) -> tuple[Cache, ...]:
    """Return the caches of compressed attention: raw entries in a window, compressed ones, and their index keys.

    Each sequence has streams of its own, even where the context is unified.
    """
    streams = build.options.parallel
    numbered = list(enumerate(layers))
    caches = [*_windowed_caches(build, numbered, sizes, sharing=1, streams=streams)]
    for ratio, role in _COMPRESSED_ROLES.items():
        entries = [(index, layer.entry) for index, layer in numbered if layer.entry and _ratio(layer) == ratio]
        caches.append(build.cache(role, padded(ceil_div(sizes.n_ctx_seq, ratio)), streams, entries))
    indexed = [(index, layer) for index, layer in numbered if layer.index and layer.compressed]
    for ratio in sorted({layer.compressed.ratio for _, layer in indexed if layer.compressed}):
        entries = [(index, layer.index) for index, layer in indexed if layer.index]
        caches.append(build.cache("indexer", padded(ceil_div(sizes.n_ctx_seq, ratio)), streams, entries))
    return tuple(caches)


def _ratio(layer: Layer) -> int | None:
    return layer.compressed.ratio if layer.compressed else None


class _Builder:
    """Makes caches of one context: bytes of a row, times cells, streams and layers.

    Without flash attention values are stored transposed, and each row is as wide as the widest of any layer.
    """

    def __init__(self, options: LlamaCppOptions, layers: tuple[Layer, ...]) -> None:
        self.options = options
        self.formats = options.formats
        self.rows: dict[Full, tuple[int, int]] = {}
        entries = {layer.entry for layer in layers if layer.entry}
        self.widest = max((value_bytes(entry, self.formats) for entry in entries), default=0)

    def cache(
        self, role: str, cells: int, streams: int, entries: list[tuple[int, Full]], *, pad: bool = False
    ) -> Cache:
        """Return a cache with one row a cell for each layer's entry, padded to the widest values where asked for."""
        kept: list[KeptTensor] = []
        values = 0
        for layer, entry in entries:
            keys = self._keys(layer, entry, cells * streams)
            rows = self._values(layer, entry, cells * streams, widen=pad and not self.options.flash)
            values += rows.size
            kept += [keys, rows] if rows.size else [keys]
        return Cache(
            role=role,
            cells=cells,
            streams=streams,
            layers=len(entries),
            k_bytes=sum(tensor.size for tensor in kept) - values,
            v_bytes=values,
            tensors=tuple(kept),
        )

    def _keys(self, layer: int, entry: Full, slots: int) -> KeptTensor:
        size = slots * self._sizes(entry)[0]
        return KeptTensor(layer, entry.kv_heads * entry.head_dim, self.formats.key, size)

    def _values(self, layer: int, entry: Full, slots: int, *, widen: bool) -> KeptTensor:
        size = slots * (self.widest if widen else self._sizes(entry)[1])
        return KeptTensor(layer, entry.kv_heads * entry.value_dim, self.formats.value, size)

    def _sizes(self, entry: Full) -> tuple[int, int]:
        """Return the bytes of a token's keys and values; most layers are alike."""
        if entry not in self.rows:
            self.rows[entry] = key_bytes(entry, self.formats), value_bytes(entry, self.formats)
        return self.rows[entry]


def _recurrent(layers: tuple[Layer, ...], options: LlamaCppOptions, kept: int) -> RecurrentState | None:
    """Return the states of recurrent layers: one cell a sequence, ``kept`` times over (``llama_memory_recurrent``)."""
    states = [(index, state) for index, layer in enumerate(layers) for state in layer.states]
    if not states:
        return None
    sizes = [recurrent_bytes(state, options.formats) for _, state in states]
    times = options.parallel * kept
    return RecurrentState(
        cells=options.parallel,
        layers=len(states),
        r_bytes=times * sum(convolution for convolution, _ in sizes),
        s_bytes=times * sum(recurrence for _, recurrence in sizes),
        tensors=tuple(
            KeptTensor(index, 1, options.formats.state, times * part)
            for (index, _), size in zip(states, sizes, strict=True)
            for part in size
        ),
    )


def _compressors(layers: tuple[Layer, ...], options: LlamaCppOptions, kept: int) -> tuple[CompressorState, ...]:
    """Return the compressors' states: two planes of the tokens of one entry, twice as many and as wide with overlap."""
    shapes: dict[tuple[str, int, int], list[int]] = {}
    for index, layer in enumerate(layers):
        if layer.compressed is None:
            continue
        ratio, branches = layer.compressed.ratio, 2 if layer.compressed.overlap else 1
        if ratio not in _COMPRESSED_ROLES:
            raise UnsupportedError(f"llama.cpp knows no compressed attention with one entry for {ratio} tokens")
        widths = {_COMPRESSED_ROLES[ratio]: layer.compressed.head_dim}
        if layer.index:
            widths["indexer"] = layer.index.head_dim
        for role, width in widths.items():
            shapes.setdefault((role, branches * ratio, branches * width), []).append(index)
    times = options.parallel * kept
    made = []
    for (role, rows, width), places in shapes.items():
        each = int(options.formats.state.bytes(_COMPRESSOR_PLANES * rows * width)) * times
        made.append(
            CompressorState(
                role=role,
                rows=rows,
                width=width,
                layers=len(places),
                total_bytes=each * len(places),
                tensors=tuple(KeptTensor(index, width, options.formats.state, each) for index in places),
            )
        )
    return tuple(made)
