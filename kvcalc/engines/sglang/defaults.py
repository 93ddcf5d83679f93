"""SGLang (0.5.23): what it takes where nothing is asked for: a share of the memory, chunks of prefills, a cache format.

``mem_fraction_static`` follows from what graphs and activations will need, by tables over the card's memory.

Source: SGLang 0.5.23, ``arg_groups/memory_hook.py`` (reserve and tables).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Latent
from kvcalc.core.records import dataclass
from kvcalc.core.units import GIB, MIB
from kvcalc.engines.sglang.architectures import find_architecture
from kvcalc.engines.sglang.options import BLACKWELL, model_length

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Parallel
    from kvcalc.engines.options import EngineOptions

__all__ = [
    "cache_format",
    "chunk_tokens",
    "default_share",
    "is_multimodal",
    "mem_fraction_static",
    "vision_factor",
    "workspace_factor",
]

# Up to which memory a card takes which chunk of a prefill, and graphs of which batch below and from tensor parallel 4
# on.
_CARDS = (
    (20 * GIB, 2048, 8, 8),
    (35 * GIB, 4096, 48, 160),
    (60 * GIB, 4096, 32, 160),
    (160 * GIB, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)
_MANY_RANKS = 4
_HOPPER_CHUNK = 8192
_COMPRESSED = ("deepseek_ref", "deepseek_v4")
_CACHED_IN_FP8 = (*_COMPRESSED, "muse_spark_text")
# Shapes of a prefill for which graphs are captured, by chunk, 8 MiB each; latent attention has its own reserve.
_PREFILL_SHAPES = {2048: 42, 4096: 50, 8192: 58, 16384: 74}
_SHAPE_BYTES, _LATENT_SHAPES_BYTES = 8 * MIB, 1536 * MIB
# The reserve: a base, and more for each token of a chunk, each rank and each row of a graph.
_BASE_BYTES, _TOKEN_BYTES, _RANK_BYTES, _ROW_BYTES = 512 * MIB, 1.5 * MIB, 128 * MIB, 2 * MIB
_MIN_CHUNK = 2048
# Rows of the graphs of data-parallel attention, for each copy: 3 MiB, above 300 rows 4.5.
_COPY_ROW_BYTES, _WIDE_COPY_ROW_BYTES, _WIDE_ROWS = 3 * MIB, 4.5 * MIB, 300
_LARGE_CARD_BYTES, _LARGE_CARD_RESERVE_BYTES = 60 * GIB, 10 * GIB
# What AMD's kernels (AITER) leave of a share beyond that many tokens, and the heads of latent attention that they have.
_AITER_FACTOR, _SHORT_CONTEXT, _AITER_HEADS = 0.85, 8192, (16, 128)
# Layers and width of the image encoder that others are measured by; a config that names one or none has these.
_VISION = (24, 1024)
# Text models that it serves without their image encoder, and those for whose prefills it captures graphs beside one.
_TEXT_ALONE = ("gemma3_text", "inkling", "llama4", "step3_text")
_CAPTURED_BESIDE_IMAGES = ("cohere2", "glm5_next", "kimi_k2", "kimi_k3", "minimax_m3", "muse_", "qwen3_5", "qwen4_exp")
# Those without graphs of prefills, and those that take sound in an encoder of their own.
_NOT_CAPTURED = (*_COMPRESSED, "kimi_linear")
_HEARING = ("whisper",)
# Configs that name the encoder's layers otherwise, or neither these nor its width where they are looked for.
_OTHER_LAYERS, _OTHER_VISION = ("minimax_m3", "qwen3_5", "qwen4_exp"), ("minimax_m3",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    chunk_tokens: int
    graph_rows: int


def _card(memory_bytes: int, tensor: int) -> _Card:
    _, chunk, few, many = next(row for row in _CARDS if memory_bytes < row[0])
    return _Card(chunk_tokens=chunk, graph_rows=many if tensor >= _MANY_RANKS else few)


def mem_fraction_static(
    memory_bytes: int,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    copies: int = 1,
    latent: bool = False,
    prefill_graphs: bool = True,
    chunk_tokens: int | None = None,
    max_requests: int | None = None,
    vision: float | None = None,
) -> float:
    """Return the share of the memory that SGLang gives weights and cache where none is asked for.

    Args:
        memory_bytes: the card's memory, as the driver reports it.
        tensor: tensor-parallel ranks (``--tp-size``), those of all copies of data-parallel attention.
        pipeline: pipeline stages.
        copies: copies of data-parallel attention (``--dp-size``).
        latent: whether the model has latent attention.
        prefill_graphs: whether graphs of prefills are captured; of few models that read images.
        chunk_tokens: tokens of a chunk of a prefill (``--chunked-prefill-size``); the card's where left out.
        max_requests: most requests at once (``--max-running-requests``); it limits the graphs.
        vision: a factor for the image encoder, as `vision_factor` has it; none for text.

    >>> from kvcalc.core.units import GIB, MIB
    >>> [mem_fraction_static(mib * MIB) for mib in (24564, 81559, 143771)]  # RTX 4090, H100, H200
    [0.704, 0.83, 0.903]
    """
    card = _card(memory_bytes, tensor)
    chunk = card.chunk_tokens if chunk_tokens is None else chunk_tokens
    rows = card.graph_rows if max_requests is None else min(card.graph_rows, max_requests)
    reserve = _BASE_BYTES + _TOKEN_BYTES * max(chunk, _MIN_CHUNK) + _RANK_BYTES * tensor * pipeline + _ROW_BYTES * rows
    if copies > 1:
        reserve += (_WIDE_COPY_ROW_BYTES if rows > _WIDE_ROWS else _COPY_ROW_BYTES) * rows * copies
    if prefill_graphs:
        reserve += _LATENT_SHAPES_BYTES if latent else _SHAPE_BYTES * _shapes(chunk)
    if memory_bytes > _LARGE_CARD_BYTES:
        reserve = max(reserve, _LARGE_CARD_RESERVE_BYTES)
    fraction = round((memory_bytes - reserve) / memory_bytes, 3)
    return fraction if vision is None else fraction * vision


def chunk_tokens(hardware: HardwareProfile | None) -> int:
    """Return the tokens of a chunk of a prefill (``--chunked-prefill-size``) on a card; Hopper's without one."""
    return _HOPPER_CHUNK if hardware is None else _card(hardware.driver_memory_bytes, 1).chunk_tokens


def _shapes(chunk: int) -> int:
    """Shapes that graphs of prefills are captured for: those of the largest chunk of the table that is not above it."""
    known = [shapes for tokens, shapes in _PREFILL_SHAPES.items() if tokens <= chunk]
    return known[-1] if known else next(iter(_PREFILL_SHAPES.values()))


def vision_factor(*, layers: int, hidden_size: int) -> float:
    """Return the factor of the share for an image encoder: less for one larger than 24 layers of width 1,024."""
    usual_layers, usual_size = _VISION
    size = layers * hidden_size**2 / (usual_layers * usual_size**2)
    return 0.95 * min(1.05, max(0.8, 1 - 0.1 * (size - 1)))


def default_share(model: ModelProfile, hardware: HardwareProfile, parallel: Parallel, options: EngineOptions) -> float:
    """Return `mem_fraction_static` for a model on an accelerator.

    Copies of the attention part are SGLang's data-parallel attention: its ``--tp-size`` counts the ranks of all.
    A card that the rule leaves nothing of has a share of 0.

    Raises:
        UnsupportedError: latent attention of a model that SGLang does not serve.
    """
    multimodal = is_multimodal(model)
    share = mem_fraction_static(
        hardware.driver_memory_bytes,
        tensor=parallel.tensor * parallel.data,
        pipeline=parallel.pipeline,
        copies=parallel.data,
        latent=_runs_latent(model),
        prefill_graphs=_captures_prefills(model),
        chunk_tokens=options.max_num_batched_tokens,
        max_requests=options.max_num_seqs,
        vision=_vision(model) if multimodal else None,
    )
    return max(0.0, share)


def workspace_factor(
    model: ModelProfile, hardware: HardwareProfile, parallel: Parallel, options: EngineOptions
) -> float:
    """Return the part of the share, asked for or not, that AMD's kernels leave beside their workspace.

    Source: SGLang 0.5.23, ``handle_attention_backend_compatibility`` (AITER beyond 8,192 tokens of context) and
    ``get_default_attn_backend`` (of latent attention with 16 or 128 heads alone).
    """
    length = options.max_model_len or model_length(model)
    if hardware.vendor != "amd" or length <= _SHORT_CONTEXT:
        return 1.0
    latents = (mixer for mixer in model.mixers if isinstance(mixer, Latent))
    heads = next((mixer.heads // (parallel.tensor * parallel.data) for mixer in latents), None)
    return _AITER_FACTOR if heads is None or heads in _AITER_HEADS else 1.0


def cache_format(model: ModelProfile, generation: str) -> str | None:
    """Return the format of keys and values where none is asked for; none where it is the model's own.

    Args:
        model: the model.
        generation: the accelerator's architecture; Hopper where left out.
    """
    if model.architecture in _CACHED_IN_FP8:
        return "fp8_e4m3"
    sparse = any(
        isinstance(mixer, Latent) and mixer.indexer is not None
        for block in model.block_counts
        for mixer in block.mixers
    )
    return "fp8_e4m3" if sparse and generation in BLACKWELL else model.kv_dtype


def is_multimodal(model: ModelProfile) -> bool:
    """Whether SGLang serves a model with its towers for images or sound."""
    seeing = bool(model.towers) and not model.architecture.startswith(_TEXT_ALONE)
    return seeing or model.architecture in _HEARING


def _runs_latent(model: ModelProfile) -> bool:
    """Whether latent attention runs as such: transformers' classes run it decompressed."""
    return model.has(Latent) and find_architecture(model).own_class


def _captures_prefills(model: ModelProfile) -> bool:
    """Whether graphs of prefills are captured."""
    if is_multimodal(model):
        return model.architecture.startswith(_CAPTURED_BESIDE_IMAGES)
    return model.architecture not in _NOT_CAPTURED


def _vision(model: ModelProfile) -> float | None:
    """Return the factor of the model's image encoder; none for a model that only hears."""
    layers, hidden_size = _VISION
    tower = next((tower for tower in model.towers if tower.part == "vision"), None)
    if tower is None:
        return None
    if tower.layers is not None and not model.architecture.startswith(_OTHER_LAYERS):
        layers = tower.layers
    if tower.hidden_size is not None and not model.architecture.startswith(_OTHER_VISION):
        hidden_size = tower.hidden_size
    return vision_factor(layers=layers, hidden_size=hidden_size)
