"""MLX (mlx-lm): caches that grow in steps of tokens, and which of its models keep windows or latent vectors.

Source: mlx-lm 0.32.2, ``models/cache.py`` (``KVCache``, ``RotatingKVCache``, ``QuantizedKVCache``), ``make_cache`` of
each model, ``generate.py`` (``prefill_step_size``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.model import Chunked, Full, Latent, Shared, Sliding, State
from kvcalc.core.records import dataclass
from kvcalc.core.units import ceil_div
from kvcalc.cost.cache import CacheBytes
from kvcalc.cost.sharding import rank_cache
from kvcalc.engines.kinds import Plain
from kvcalc.engines.windows import held_in_full

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer, ModelProfile
    from kvcalc.core.workload import Formats, Parallel

__all__ = ["PREFILL_TOKENS", "VERSION", "MlxPool", "mlx_pool", "ring_tokens", "stepped"]

VERSION = "0.32"
# Tokens by which a cache grows, and tokens of a prompt that are computed at once.
_STEP, PREFILL_TOKENS = 256, 2048

# Models without a cache of their own: every layer keeps all tokens, windows in the config are ignored.
_PLAIN = frozenset({
    "apertus", "bailing_moe", "cohere", "dbrx", "deepseek", "dots1", "ernie4_5", "ernie4_5_moe", "exaone", "gemma",
    "gemma2", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "granite", "granitemoe", "helium",
    "hunyuan_v1_dense", "internlm2", "internlm3", "iquestcoder", "llama", "mimo", "minicpm", "minimax_m2", "mistral",
    "mixtral", "nanochat", "nemotron", "nemotron-nas", "olmo", "olmo2", "olmoe", "openelm", "phi", "phi3", "phimoe",
    "plamo", "qwen", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_moe",
    "qwen3_vl_moe_text", "qwen3_vl_text", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2", "xverse",
})  # fmt: skip
# Models that keep a ring of the window's tokens for their windowed layers.
_WINDOWED = frozenset({
    "afmoe", "cohere2", "exaone4", "exaone_moe", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss", "laguna",
    "mellum", "mimo_v2_flash", "ministral3", "muse_glimmer_text", "olmo3",
})  # fmt: skip
# Models that keep latent vectors, and those that keep all heads of them.
_LATENT = frozenset({"deepseek_v3", "glm4_moe_lite", "kimi_k2", "mistral4"})
_HEADS_OF_LATENT = frozenset({"deepseek_v2", "minicpm3"})
# Models with gated delta nets or short convolutions beside attention (``ArraysCache``).
_STATES = frozenset({"lfm2", "lfm2_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"})
# ``--kv-bits`` 8 and 4, in groups of 64 with a scale and a bias in 16 bits each.
_QUANTISED = ("int8-g64-zp", "int4-g64-zp")
_FORMATS = ("bf16", "fp16", "fp32", *_QUANTISED)


@dataclass(frozen=True, slots=True)
class MlxPool(Plain):
    """Caches that grow by a step of tokens, beside rings for windows.

    Args:
        layers: the model with the layers alone that have one window, or none, and that window.
    """

    layers: tuple[tuple[ModelProfile, int | None], ...] = ()

    def _needed(self, context: int, batch: int) -> CacheBytes:
        total = CacheBytes(growing=0, state=0, cross=0)
        for layers, window in self.layers:
            tokens = stepped(context) if window is None else ring_tokens(context, window=window)
            total += rank_cache(layers, self.formats, self.parallel, tokens=tokens, batch=batch)
        return total


def stepped(tokens: int) -> int:
    """Return the tokens that a cache has room for when it holds so many.

    >>> stepped(256), stepped(257)
    (256, 512)
    """
    return ceil_div(tokens, _STEP) * _STEP


def ring_tokens(tokens: int, *, window: int) -> int:
    """Return the tokens that a window's ring has room for at most while a prompt of so many is computed.

    All but the last token go through in parts, beside up to window - 1 before them; the last one grows a ring that is
    not full by a step. A part of one token counts as such a last one.

    >>> ring_tokens(100, window=512), ring_tokens(5000, window=512)
    (355, 2559)
    """
    parts, rest = divmod(tokens - 1, PREFILL_TOKENS)
    if rest == 1:
        return ring_tokens(tokens - 1, window=window)
    full = min(window - 1, PREFILL_TOKENS * (parts - 1)) + PREFILL_TOKENS if parts else 0
    last = min(window - 1, PREFILL_TOKENS * parts) + rest
    return max(full, last, min(window, tokens - 1 + _STEP))


def _check_formats(formats: Formats) -> None:
    for form in (formats.key, formats.value):
        if form.name not in _FORMATS or form != formats.key:
            raise InputError(
                f"mlx-lm keeps no cache in {form.name}",
                hint=f"its formats are {', '.join(_FORMATS)}",
                parameter="kv-dtype",
            )


def mlx_pool(model: ModelProfile, formats: Formats, parallel: Parallel) -> MlxPool:
    """Return a model's cache as mlx-lm keeps it.

    Raises:
        InputError: a format that it does not keep, or windows in a quantised cache.
        UnsupportedError: a model that mlx-lm has not, or whose cache there is not described.
    """
    _check_formats(formats)
    name = model.architecture
    if name not in _PLAIN | _WINDOWED | _LATENT | _HEADS_OF_LATENT | _STATES:
        raise UnsupportedError(
            f"how mlx-lm caches the architecture {name[:60]!r} is not described",
            hint="--engine ideal counts the KV cache only",
        )
    kept = {mixer: _as_cached(mixer, name) for block in model.block_counts for mixer in block.mixers}
    windows = {mixer: mixer.span if name in _WINDOWED and isinstance(mixer, Sliding) else None for mixer in kept}
    if formats.key.name in _QUANTISED and any(windows.values()):
        raise InputError(
            "mlx-lm quantises no cache of windowed layers", hint="leave --kv-dtype out", parameter="kv-dtype"
        )
    layers = tuple(
        (_with(model, {mixer: kept[mixer] for mixer in kept if windows[mixer] == window}), window)
        for window in dict.fromkeys(windows.values())
    )
    return MlxPool(f"mlx-lm {VERSION}", model, formats, parallel, layers=layers)


def _with(model: ModelProfile, kept: dict[Mixer, Mixer]) -> ModelProfile:
    blocks = {
        block: replace(block, mixers=tuple(kept[mixer] for mixer in block.mixers if mixer in kept))
        for block in model.block_counts
    }
    return replace(model, blocks=tuple(blocks[block] for block in model.blocks))


def _as_cached(mixer: Mixer, architecture: str) -> Mixer:
    """Return a mixer that keeps every token it is asked for; a state keeps kernel - 1 columns and 32-bit matrices."""
    if isinstance(mixer, State) and architecture in _STATES:
        return replace(mixer, conv_window=max(0, mixer.conv_kernel - 1), recurrent_format="fp32")
    if isinstance(mixer, Latent) and architecture in _HEADS_OF_LATENT:
        width = mixer.nope_dim + mixer.rope_dim
        return Full(heads=mixer.heads, kv_heads=mixer.heads, head_dim=width, value_head_dim=mixer.value_head_dim)
    kept = held_in_full(mixer)
    if not isinstance(kept, Full | Latent | Shared) or kept.indexer is not None or isinstance(mixer, Chunked):
        raise UnsupportedError(f"how mlx-lm caches {mixer.kind} layers is not described")
    return kept
