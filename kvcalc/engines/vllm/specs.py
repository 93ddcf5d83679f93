"""Needs of each layer in vLLM's cache: the layer's kind, its block, and the bytes of one page."""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import Chunked, Compressed, Cross, Full, Latent, Shared, Sliding, State
from kvcalc.core.records import dataclass
from kvcalc.core.units import ceil_div
from kvcalc.cost.cache import kv_heads_per_rank, state_bytes
from kvcalc.engines.scaled_fp8 import scaled_fp8_bytes
from kvcalc.engines.vllm.cache_formats import boundary_layers, token_bytes
from kvcalc.engines.vllm.compressed import (
    COMPRESSED_BLOCK,
    compressed_specs,
    shared_block,
    shared_specs,
    window_spec,
)
from kvcalc.engines.vllm.pages import Spec, not_modelled
from kvcalc.engines.vllm.releases import (
    FIRST_WITH_GROUPS,
    FIRST_WITH_WIDE_LATENT_BLOCKS,
    since,
)
from kvcalc.engines.vllm.states import block_step, caches_states, state_as_run, state_blocks
from kvcalc.engines.windows import held_in_full

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import Block, Indexer, Mixer, ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.engines.vllm.options import VllmOptions

__all__ = ["configured_block_size", "draft_specs", "layer_specs"]

# Tokens an attention kernel's block must be a multiple of, and the block the engine takes when none is asked for.
_KERNEL_BLOCK = {"gpu": 16, "cpu": 32}
_DEFAULT_BLOCK = {"gpu": 16, "cpu": 128}
_FLASH_MLA_BLOCK = 64
# Tokens after which states are kept where there is no attention beside them.
_STATE_BLOCK = 16
_CPU_LATENT_BLOCK = 16
_WITH_AMX = frozenset({"sapphire-rapids", "emerald-rapids", "granite-rapids"})
_LATENT_HYBRID_BLOCK, _LATENT_HYBRID_BLOCK_BEFORE = 128, 64

# What vLLM's own model classes do beside the config (vLLM 0.32, vllm/model_executor/models).
_WINDOW_PLUS_ONE = frozenset({"cohere2"})
_LATENT_AS_HEADS = frozenset({"minicpm3"})
# dots3-note pads the rows of its latent layers (Dots3NotePaddedMLAAttention), which then share no page with its index.
_PADDED_LATENT = frozenset({"dots3_note_text"})
# Models of which some layers compress their entries and all are laid out as those.
_COMPRESSING = frozenset({"deepseek_v4"})
# Those of which some layers read the compressed entries of others.
_SHARING = frozenset({"deepseek_v41_text"})
_NEVER_FP8 = frozenset({"falcon"})
_WINDOW_KEEPS_BLOCK = frozenset({"mimo_v2_flash"})
# Prediction layers that read the cache of the model's own layers.
_DRAFTS_IN_OWN_CACHE = frozenset({"gemma4_text"})


def layer_specs(
    model: ModelProfile,
    formats: Formats,
    options: VllmOptions,
    *,
    tensor: int = 1,
    blocks: Sequence[Block] | None = None,
) -> tuple[Spec, ...]:
    """Return the spec of every layer that keeps something, on one tensor-parallel rank.

    A page of full, sliding or chunked attention is block * kv_heads * (head_dim + value_head_dim) * b bytes, of latent
    attention block * (kv_lora_rank + rope_dim) * b, of a state layer the state's bytes whatever the block.

    Args:
        model: the model.
        formats: formats of keys, values and states.
        options: the engine's options.
        tensor: tensor-parallel ranks.
        blocks: the layers of one pipeline stage; all layers where left out.

    Raises:
        UnsupportedError: a layer whose cache in vLLM is not modelled.

    Source: vLLM 0.32, Attention.get_kv_cache_spec, MambaBase.get_kv_cache_spec, kv_cache_interface.
    """
    maker = _maker(model, formats, options, tensor=tensor)
    layers = model.blocks if blocks is None else blocks
    _check_sources(model, layers)
    boundary = boundary_layers(model, formats)
    if boundary and len(layers) != model.layers:
        raise not_modelled("a packed cache on pipeline stages")
    makers = {False: maker, True: replace(maker, formats=_unpacked(formats))}
    # layers of a kind are one object: its specs are made once
    kinds = [(index in boundary, block) for index, block in enumerate(layers)]
    made = {
        (unpacked, id(block)): tuple(spec for mixer in block.mixers for spec in makers[unpacked].of(mixer))
        for unpacked, block in {(unpacked, id(block)): (unpacked, block) for unpacked, block in kinds}.values()
    }
    return tuple(spec for unpacked, block in kinds for spec in made[unpacked, id(block)])


def _check_sources(model: ModelProfile, layers: Sequence[Block]) -> None:
    """Refuse a pipeline stage whose first reader of compressed entries stands before their source.

    Source: vLLM 0.33, ``models/deepseek_v41/attention.py`` (``PP splits inside a v4.1 kv-sharing group``).
    """
    kinds = (mixer.entries for block in layers for mixer in block.mixers if isinstance(mixer, Compressed))
    if next((kind for kind in kinds if kind != "none"), "own") == "earlier":
        raise UnsupportedError(
            f"vLLM parts no layers of {model.name} from the source of the compressed entries that they read",
            hint="--tp, --ep and --dp spread it without pipeline stages",
        )


def draft_specs(model: ModelProfile, formats: Formats, options: VllmOptions, *, tensor: int = 1) -> tuple[Spec, ...]:
    """Return the spec of every draft layer that keeps something: its blocks have as many tokens as the model's.

    Args:
        model: the model that verifies.
        formats: its formats.
        options: the engine's options, the draft among them.
        tensor: tensor-parallel ranks.

    Raises:
        UnsupportedError: a draft layer whose cache in vLLM is not modelled.

    Source: vLLM 0.32, Attention.get_kv_cache_spec of the drafter's layers, which stand among the model's own in
    kv_cache_utils.get_kv_cache_configs.
    """
    draft = options.draft
    if draft is None or draft.cached is None or (draft.is_head and model.architecture in _DRAFTS_IN_OWN_CACHE):
        return ()
    beside = _maker(model, formats, options, tensor=tensor)
    ranks = draft.ranks(draft.cached, tensor)
    maker = replace(
        _maker(draft.cached, draft.formats or formats, options, tensor=ranks),
        block_size=beside.block_size,
        state_page_bytes=beside.state_page_bytes,
    )
    return tuple(spec for block in draft.cached.blocks for mixer in block.mixers for spec in maker.of(mixer))


def configured_block_size(model: ModelProfile, formats: Formats, options: VllmOptions, *, tensor: int = 1) -> int:
    """Return the tokens of an attention block after the engine has checked its options, before groups are formed.

    Beside state layers the block grows until one attention page holds one state: with s bytes of the largest state,
    t bytes of a token, kernel block k and the block r asked for, a = max(k, r) (at least 128 for latent attention),
    raised to a multiple of the tokens between exported states, and block = max(r, a * ceil(s / (a * t))).

    Source: vLLM 0.33, ``CpuPlatform.check_and_update_config``, ``Platform._align_hybrid_block_size``.
    """
    return _maker(model, formats, options, tensor=tensor).block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """Makes the specs of a model's layers; the block size is the same for all of them."""

    architecture: str
    formats: Formats
    options: VllmOptions
    tensor: int
    block_size: int
    state_page_bytes: int | None

    def of(self, mixer: Mixer) -> tuple[Spec, ...]:
        if self.architecture in _PADDED_LATENT:
            raise not_modelled("latent attention that is padded to the rows of windowed layers")
        if mixer.indexer is not None and mixer.indexer.pool > 1:
            raise not_modelled("an index that pools tokens")
        mixer = _as_run(mixer, self.architecture, self.options, tensor=self.tensor)
        if isinstance(mixer, Shared):
            return ()
        if isinstance(mixer, State):
            return (self._state(mixer),)
        if isinstance(mixer, Latent):
            return self._latent(mixer)
        if isinstance(mixer, Compressed):
            return self._compressed(mixer)
        if isinstance(mixer, Sliding) and self.architecture in _COMPRESSING:
            return (window_spec(mixer),)
        if isinstance(mixer, Full) and mixer.indexer is not None:
            return self._indexed(mixer, mixer.indexer)
        if isinstance(mixer, Full | Sliding | Chunked | Cross):
            return (self._heads(mixer),)
        raise not_modelled(f"{mixer.kind} attention")

    def _compressed(self, mixer: Compressed) -> tuple[Spec, ...]:
        if not mixer.index_from_entries:
            return compressed_specs(mixer)
        return shared_specs(
            mixer,
            cache_format=self.formats.key.name,
            generation=self.options.generation,
            speculative_tokens=self.options.speculative_tokens,
        )

    def _indexed(self, mixer: Full, indexer: Indexer) -> tuple[Spec, ...]:
        """Return keys and values, and index keys in the model's own format (MiniMax-M3)."""
        heads = self._heads(replace(mixer, indexer=None))
        if not indexer.stored:
            return (heads,)
        return heads, self._index(int(self.formats.hidden.bytes(indexer.kept_dim)))

    def _heads(self, mixer: Full | Sliding | Chunked | Cross) -> Spec:
        block, reach = self.block_size, 0
        if isinstance(mixer, Sliding):
            block, reach = self._window_block(), mixer.window
        elif isinstance(mixer, Chunked):
            reach = mixer.chunk
        elif isinstance(mixer, Cross):
            reach = mixer.encoder_tokens
        return Spec(
            kind=mixer.kind,
            block_size=block,
            page_bytes=block * token_bytes(mixer, self.formats, tensor=self.tensor),
            reach=reach,
            shape=(kv_heads_per_rank(mixer.kv_heads, self.tensor), mixer.head_dim, mixer.value_dim),
        )

    def _window_block(self) -> int:
        """Return the block of a windowed layer: the common one if its kernel takes it, else the kernel's smallest."""
        kernel = _KERNEL_BLOCK[self.options.platform]
        if self.architecture in _WINDOW_KEEPS_BLOCK or self.block_size % kernel == 0:
            return self.block_size
        return kernel

    def _latent(self, mixer: Latent) -> tuple[Spec, ...]:
        token = token_bytes(mixer, self.formats, tensor=self.tensor, generation=self.options.generation)
        width = mixer.kv_lora_rank + mixer.rope_dim
        latent = Spec(
            kind="latent", block_size=self.block_size, page_bytes=self.block_size * token, shape=(1, width, 0)
        )
        if mixer.indexer is None or not mixer.indexer.stored:
            return (latent,)
        return self._index(scaled_fp8_bytes(mixer.indexer.kept_dim)), latent

    def _index(self, token: int) -> Spec:
        return Spec(kind="index", block_size=self.block_size, page_bytes=self.block_size * token, shape=(1, token, 0))

    def _state(self, mixer: State) -> Spec:
        real = state_bytes(mixer, self.formats, tensor=self.tensor)
        cached = self.options.block_size or _STATE_BLOCK if self.state_page_bytes is None else self.block_size
        return Spec(
            kind="state",
            block_size=cached if caches_states(self.options) else self.options.max_model_len,
            page_bytes=max(real, self.state_page_bytes or 0),
            held_blocks=state_blocks(mixer, self.architecture, self.options),
            shape=(mixer.heads, mixer.key_dim, mixer.value_dim, mixer.conv_channels),
        )


def _maker(model: ModelProfile, formats: Formats, options: VllmOptions, *, tensor: int) -> _Maker:
    architecture = _served_as(model)
    if architecture in _NEVER_FP8:
        formats = _unpacked(formats)
    mixers = [
        _as_run(mixer, architecture, options, tensor=tensor) for block in model.block_counts for mixer in block.mixers
    ]
    states = [mixer for mixer in mixers if isinstance(mixer, State)]
    attention = next((mixer for mixer in mixers if isinstance(mixer, Full | Sliding | Chunked | Latent)), None)
    block = _requested_block(attention, architecture, options, hybrid=bool(states))
    page = None
    if states and attention is not None:
        token = token_bytes(attention, formats, tensor=tensor, generation=options.generation)
        largest = max(state_bytes(state, formats, tensor=tensor) for state in states)
        step = max(_KERNEL_BLOCK[options.platform], block)
        step = max(step, _latent_step(options)) if isinstance(attention, Latent) else step
        step = lcm(step, block_step(states, architecture, options))
        block = max(block, step * ceil_div(largest, step * token))
        page = block * token
    if attention is not None and boundary_layers(model, formats):
        block = _covering(block, attention, formats, tensor=tensor)
    return _Maker(
        architecture=architecture,
        formats=formats,
        options=options,
        tensor=tensor,
        block_size=block,
        state_page_bytes=page,
    )


def _covering(block: int, mixer: Full | Sliding | Chunked | Latent, formats: Formats, *, tensor: int) -> int:
    """Return the tokens of a block whose packed page covers one of the model's own format, of the smallest block.

    Source: vLLM 0.33, ``Platform._align_heterogeneous_kv_block_size``.
    """
    plain = token_bytes(mixer, _unpacked(formats), tensor=tensor)
    smallest = _KERNEL_BLOCK["gpu"]
    step = max(smallest, block)
    return step * ceil_div(smallest * plain, step * token_bytes(mixer, formats, tensor=tensor))


def _unpacked(formats: Formats) -> Formats:
    return replace(formats, key=formats.hidden, value=formats.hidden)


def _served_as(model: ModelProfile) -> str:
    """Return the architecture that decides vLLM's class: Kimi-K3's text model calls itself ``kimi_linear``, too.

    Its latent attention is gated, which Kimi-Linear's is not.
    """
    if model.architecture != "kimi_linear":
        return model.architecture
    gated = any(
        isinstance(mixer, Latent) and mixer.output_gate for block in model.block_counts for mixer in block.mixers
    )
    return "kimi_k3" if gated else model.architecture


def _latent_step(options: VllmOptions) -> int:
    """Return the tokens that a block of latent attention beside states is a multiple of."""
    wide = since(options.version, FIRST_WITH_WIDE_LATENT_BLOCKS)
    return _LATENT_HYBRID_BLOCK if wide else _LATENT_HYBRID_BLOCK_BEFORE


def _requested_block(attention: Mixer | None, architecture: str, options: VllmOptions, *, hybrid: bool) -> int:
    """Return the block asked for, or the platform's: a CPU's plain latent attention takes no other than 16 without AMX.

    Source: vLLM 0.33, ``CpuPlatform.check_and_update_config``.
    """
    if architecture in _COMPRESSING:
        return COMPRESSED_BLOCK
    if architecture in _SHARING:
        return shared_block(generation=options.generation)
    plain = isinstance(attention, Latent) and attention.indexer is None and options.generation not in _WITH_AMX
    if plain and options.platform == "cpu" and not hybrid:
        return _CPU_LATENT_BLOCK
    if options.block_size is not None:
        return options.block_size
    if isinstance(attention, Latent) and options.platform == "gpu":
        return _FLASH_MLA_BLOCK
    return _DEFAULT_BLOCK[options.platform]


def _as_run(mixer: Mixer, architecture: str, options: VllmOptions, *, tensor: int) -> Mixer:
    """Return a mixer as vLLM's model class runs it, and as its version holds it."""
    if not since(options.version, FIRST_WITH_GROUPS):
        mixer = held_in_full(mixer)
    if isinstance(mixer, Sliding) and architecture in _WINDOW_PLUS_ONE:
        return replace(mixer, window=mixer.window + 1)
    if isinstance(mixer, Latent) and architecture in _LATENT_AS_HEADS:
        return Full(heads=mixer.heads, kv_heads=mixer.heads, head_dim=mixer.nope_dim + mixer.rope_dim)
    if isinstance(mixer, State):
        return state_as_run(mixer, architecture, options, tensor=tensor)
    return mixer
