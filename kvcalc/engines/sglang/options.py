"""The options of SGLang that decide its pools, with what it takes for the model and card where none is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.layers import Full, Latent, State
from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from kvcalc.core.formats import Format
    from kvcalc.core.layers import Mixer
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Parallel
    from kvcalc.engines.drafts import Draft
    from kvcalc.engines.options import EngineOptions
    from kvcalc.engines.sglang.architectures import Architecture

__all__ = [
    "BLACKWELL",
    "WINDOW_RATIOS",
    "SglangOptions",
    "model_length",
    "page_size",
    "sglang_options",
    "started_length",
]

# Generations whose kernels are SM100's.
BLACKWELL = ("blackwell", "blackwell-ultra")
# A config without a limit, and one whose limit has a name that is not read.
_NO_LIMIT = 2048
_UNREAD_LIMITS = ("whisper",)
# Configs that scale positions by the kind of layer, which is not read.
_SCALED_BY_LAYER = ("gemma3_text",)
# Tokens of windows for each other, by default and of DeepSeek-V4; memory of states for that of tokens.
WINDOW_RATIOS = (0.8, 0.1)
_WINDOW_RATIO, _COMPRESSED_RATIO = WINDOW_RATIOS
_STATE_RATIO = 0.9
# Most requests that it asks for by itself, of DeepSeek-V4 and where tokens are drafted.
_COMPRESSED_REQUESTS, _DRAFTED_REQUESTS = 256, 48
# Slots of a running request: its own, the last prefix's, and one that is copied to.
_SLOTS_WITHOUT_BUFFER = 3
_SPARSE_PAGE, _INDEXED_PAGE, _COMPRESSED_PAGE, _ASYMMETRIC_PAGE = 64, 128, 256, 128
# Pages that Blackwell's kernels have for latent and for other attention; any other becomes the first.
_LATENT_PAGES, _PAGES = (64, 32), (64, 16, 32, 128)
# Models with states for which Blackwell's kernels are taken: always, and where states have a buffer or are not kept.
_PAGED_STATES = ("nemotron_h",)
_PAGED_WITH_BUFFER = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
# Heads of the model's own that a config does not count (``num_nextn_predict_layers``), and no pool is priced for.
_UNCOUNTED_HEADS = _PAGED_WITH_BUFFER


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangOptions:
    """Options that decide the pools of one data-parallel copy.

    Args:
        context_length: tokens of the longest request (``--context-length``).
        page_size: tokens of a page.
        chunk_tokens: tokens of a chunk of a prefill; none where prompts are not cut.
        max_requests: most requests at once that were asked for.
        max_total_tokens: tokens that the pool is capped at.
        radix_cache: whether prefixes are kept for later requests.
        overlap: whether the next step is scheduled while one runs.
        window_ratio: tokens of the windowed layers' pool for each of the full layers'.
        windows: whether windowed layers have a pool of their own.
        state_ratio: memory of states for that of tokens.
        max_state_slots: slots of states that were asked for.
        state_format: format of recurrent states that was asked for.
        slots_per_request: slots that a running request takes.
        draft_tokens: tokens of a verification; 0 without drafts.
        draft_layers: layers of the draft that keep tokens, of the pool of all and of the windowed layers'.
        raw_latent: whether sparse latent attention in fp8 is kept without scales.
    """

    context_length: int
    page_size: int = 1
    chunk_tokens: int | None = 8192
    max_requests: int | None = None
    max_total_tokens: int | None = None
    radix_cache: bool = True
    overlap: bool = True
    window_ratio: float = _WINDOW_RATIO
    windows: bool = True
    state_ratio: float = _STATE_RATIO
    max_state_slots: int | None = None
    state_format: Format | None = None
    slots_per_request: int = 1
    draft_tokens: int = 0
    draft_layers: tuple[int, int] = (0, 0)
    raw_latent: bool = False

    @property
    def caps_windows(self) -> bool:
        """Whether the pool of windowed layers is made for the requests asked for, and no ratio of the other."""
        return not self.radix_cache and self.max_requests is not None and self.chunk_tokens is not None


def sglang_options(
    model: ModelProfile,
    architecture: Architecture,
    parallel: Parallel,
    options: EngineOptions,
    *,
    draft: Draft | None = None,
) -> SglangOptions:
    """Return the options of one start.

    Args:
        model: the model.
        architecture: the pools that SGLang gives it.
        parallel: how it is spread; its copies share the requests and slots that were asked for.
        options: what the user says of the engine, and the accelerator's generation; Hopper's kernels where left out.
        draft: layers that draft for the model.

    Raises:
        InputError: options that SGLang refuses together.

    Source: SGLang 0.5.23, ``arg_groups`` (defaults and checks), ``KVCacheConfigurator.resolve_max_num_reqs`` and
    ``_handle_max_mamba_cache`` (shares of data-parallel ranks).
    """
    copies = parallel.data
    compressed = architecture.pools == "compressed"
    default_requests = _COMPRESSED_REQUESTS * copies if compressed else _DRAFTED_REQUESTS if draft is not None else None
    requests = options.max_num_seqs or default_requests
    if compressed and not options.hybrid_swa_memory:
        raise InputError("SGLang does not start DeepSeek-V4 without its pool for windows")
    ratio = options.swa_full_tokens_ratio or (_COMPRESSED_RATIO if compressed else _WINDOW_RATIO)
    slots = options.max_mamba_cache_size
    return SglangOptions(
        context_length=options.max_model_len or model_length(model),
        page_size=page_size(model, architecture, options, drafting=draft is not None),
        chunk_tokens=options.max_num_batched_tokens,
        max_requests=None if requests is None else max(1, requests // copies),
        max_total_tokens=options.max_total_tokens,
        radix_cache=options.prefix_caching is not False,
        overlap=options.overlap_schedule,
        window_ratio=ratio,
        windows=options.hybrid_swa_memory,
        state_ratio=options.mamba_full_memory_ratio or _STATE_RATIO,
        max_state_slots=None if slots is None else slots // copies,
        state_format=options.state_format,
        slots_per_request=_slots_per_request(model, architecture, options),
        draft_tokens=0 if draft is None else draft.tokens + 1,
        draft_layers=_draft_layers(model, architecture, draft),
        raw_latent=options.generation in BLACKWELL,
    )


def model_length(model: ModelProfile) -> int:
    """Return the tokens of the longest request by the config: the model's limit, stretched as it scales positions.

    It is 2,048 where no limit is read.

    Source: SGLang 0.5.23, ``get_context_length``.
    """
    if model.architecture in _UNREAD_LIMITS:
        return _NO_LIMIT
    stretched = None if model.architecture in _SCALED_BY_LAYER else model.rotary_positions
    return stretched or model.context_limit or _NO_LIMIT


def started_length(model: ModelProfile, context: int | None) -> int | None:
    """Return the tokens that it is started for, for sequences of a context; none where none was asked about.

    The pool of a model of states alone has as many tokens as one request may have, and they cost nothing: it is started
    for no fewer than by itself.
    """
    if context is None or not all(isinstance(mixer, State) for mixer in _mixers(model)):
        return context
    return max(context, model_length(model))


def _slots_per_request(model: ModelProfile, architecture: Architecture, options: EngineOptions) -> int:
    """Return the slots of states that a running request takes: its own, its last prefix's, and a buffer.

    Source: SGLang 0.5.23, ``KVCacheConfigurator._calculate_mamba_ratio``.
    """
    if architecture.pools != "states" or options.prefix_caching is False:
        return 1
    asked = options.mamba_radix_cache_strategy or "auto"
    has_states = any(isinstance(mixer, State) for mixer in _mixers(model))
    if architecture.radix != "none" and has_states:
        strategy = _radix_strategy(model, architecture, options, asked)
    elif asked.startswith("extra_buffer"):
        raise InputError(f"SGLang keeps no states of {model.name} for prefixes: it refuses {asked}")
    else:
        strategy = "no_buffer"
    buffer = 2 if strategy == "extra_buffer" and options.overlap_schedule else int(strategy != "no_buffer")
    return _SLOTS_WITHOUT_BUFFER + buffer


def _radix_strategy(model: ModelProfile, architecture: Architecture, options: EngineOptions, asked: str) -> str:
    """Return the way that states are kept for prefixes, which decides pages and scheduling.

    Source: SGLang 0.5.23, ``_mamba_radix_cache_resolution``, ``validate_mamba_extra_buffer`` and
    ``validate_mamba_no_buffer``.
    """
    page, buffers = options.block_size or 1, architecture.radix == "extra_buffer"
    strategy = asked
    if asked == "auto":
        strategy = "extra_buffer" if buffers and (options.overlap_schedule or page > 1) else "no_buffer"
    if strategy == "no_buffer":
        if page > 1:
            raise InputError("SGLang's radix cache of states without a buffer has pages of 1 token")
        if asked == "no_buffer" and options.overlap_schedule:
            raise InputError("no_buffer does not go with overlap scheduling", hint="add --disable-overlap-schedule")
        return strategy
    if not buffers:
        raise InputError(f"SGLang has no {strategy} for {model.name}", hint="it has no_buffer")
    if strategy == "extra_buffer_lazy" and not options.overlap_schedule:
        raise InputError("extra_buffer_lazy goes with overlap scheduling alone")
    return strategy


def page_size(
    model: ModelProfile,
    architecture: Architecture,
    options: EngineOptions,
    *,
    drafting: bool = False,
) -> int:
    """Return the tokens of a page: what was asked for, or what the kernels want.

    Source: SGLang 0.5.23, ``arg_groups/overrides.py`` (page constraints of backends), ``model_override_base.py``
    (``get_default_attn_backend``) and ``model_overrides``.
    """
    asked, mixers = options.block_size, _mixers(model)
    if architecture.pools == "compressed":
        return _COMPRESSED_PAGE
    latents = [mixer for mixer in mixers if isinstance(mixer, Latent)] if architecture.own_class else []
    pooled = [mixer.indexer.pool for mixer in latents if mixer.indexer is not None]
    if pooled and architecture.latent_class:
        return _SPARSE_PAGE * max(pooled)
    if any(isinstance(mixer, Full) and mixer.indexer is not None for mixer in mixers):
        return _SPARSE_PAGE if architecture.pools == "states" else asked or _INDEXED_PAGE
    if options.generation not in BLACKWELL:
        return asked or 1
    if latents:
        return _one_of(_LATENT_PAGES, asked) if architecture.latent_class else asked or 1
    if architecture.pools == "states":
        return _page_beside_states(model, options, drafting=drafting)
    if any(mixer.head_dim != mixer.value_dim for mixer in mixers if isinstance(mixer, Full)):
        return _ASYMMETRIC_PAGE
    return _one_of(_PAGES, asked)


def _page_beside_states(model: ModelProfile, options: EngineOptions, *, drafting: bool) -> int:
    if model.architecture in _PAGED_STATES:
        return _one_of(_PAGES, options.block_size)
    if model.architecture in _PAGED_WITH_BUFFER:
        buffered = (options.mamba_radix_cache_strategy or "auto").startswith("extra_buffer")
        return _PAGES[0] if buffered or drafting or options.prefix_caching is False else 1
    return options.block_size or 1


def _one_of(pages: tuple[int, ...], asked: int | None) -> int:
    return asked if asked in pages else pages[0]


def _draft_layers(model: ModelProfile, architecture: Architecture, draft: Draft | None) -> tuple[int, int]:
    """Return the layers by which a draft is priced: a windowed model's own head counts as one of its windowed layers.

    Source: SGLang 0.5.23, ``spec_aux_hidden_state.py`` and ``HybridSWAPoolConfigurator``.
    """
    if draft is None or draft.cached is None:
        return 0, 0
    layers = draft.cached.layers
    if draft.method != "mtp":
        return layers, 0
    if model.architecture in _UNCOUNTED_HEADS:
        return 0, 0
    return (0, layers) if architecture.pools == "windows" else (layers, 0)


def _mixers(model: ModelProfile) -> tuple[Mixer, ...]:
    return tuple(mixer for block in model.block_counts for mixer in block.mixers)
