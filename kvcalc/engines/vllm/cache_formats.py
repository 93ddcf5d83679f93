"""The formats that vLLM keeps its cache in, and what an entry takes in those that pack keys and values together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.formats import cache_formats
from kvcalc.core.model import Chunked, Cross, Latent, Sliding, State
from kvcalc.core.units import ceil_div
from kvcalc.cost.cache import heads_bytes, kv_heads_per_rank
from kvcalc.engines.scaled_fp8 import scaled_latent_bytes
from kvcalc.engines.vllm.releases import known_release

if TYPE_CHECKING:
    from kvcalc.core.model import Attention, ModelProfile
    from kvcalc.core.workload import Formats

__all__ = ["boundary_layers", "check_cache_format", "own_cache_format", "token_bytes"]

# Names of --kv-cache-dtype and the first release that has each, where it is known not to be old.
_FORMATS = {
    "bf16": (0, 0), "fp16": (0, 0), "fp32": (0, 0), "fp8": (0, 0), "fp8_e4m3": (0, 0), "fp8_e5m2": (0, 0),
    "fp8_ds_mla": (0, 11), "fp8_per_token_head": (0, 20), "int8_per_token_head": (0, 20),
    "int4_per_token_head": (0, 20), "nvfp4": (0, 20), "nvfp4_4over6": (0, 26), "nvfp4_ds_mla": (0, 30),
    "turboquant_k8v4": (0, 20), "turboquant_4bit_nc": (0, 20), "turboquant_k3v4_nc": (0, 20),
    "turboquant_3bit_nc": (0, 20), "ultraquant_4bit": (0, 32),
    "octave_k3v4": (0, 33), "octave_k3v3": (0, 33), "octave_k3v3_compact": (0, 33),
}  # fmt: skip
_BY_PAIR = {tuple(form.name for form in cache_formats(name)): name for name in _FORMATS}
# Latent vectors of 512 elements with their rotary key: of DeepSeek-V3.2's kind, and DeepSeek-V4's.
_OF_SPARSE_LATENT = ("fp8_ds_mla", "nvfp4_ds_mla")
# What a token's keys and values of a head are rounded up to together (customize_spec of each backend).
_SLOT_STEP = {"octave_k3v4": 8, "octave_k3v3": 8, "octave_k3v3_compact": 4}
_PACKED_STEP = 2
# Octave stores the rotated part of a key wider; of these the whole head is rotated.
_WHOLE_HEAD_ROTATES = frozenset(
    {"gemma", "gemma2", "gemma3_text", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"}
)
# Layers at each end that keep the model's own format (TurboQuantConfig.get_boundary_skip_layers).
_BOUNDARY = 2
_SM10X = ("blackwell", "blackwell-ultra")
_FIRST_WITH_SHARED_ENTRIES = (0, 33)


def _name(formats: Formats) -> str:
    """Return the name that vLLM has for formats of keys and values; empty where it has none."""
    return _BY_PAIR.get((formats.key.name, formats.value.name), "")


def _is_packed(name: str) -> bool:
    return name.startswith(("octave_", "turboquant_", "ultraquant_"))


def check_cache_format(model: ModelProfile, formats: Formats, *, version: str, generation: str) -> None:
    """Check that vLLM keeps a model's cache in the formats asked for.

    Raises:
        InputError: it does not.
        UnsupportedError: how it lays such a cache out is not known.

    Source: vLLM 0.33, ``config/cache.py: CacheDType``, ``deepseek_v4/attention.py: _resolve_dsv4_kv_cache_dtype``,
    ``flashmla_sparse.py: supports_combination``.
    """
    name, release = _name(formats), known_release(version)
    known = [each for each, first in _FORMATS.items() if release >= first]
    if name not in known:
        asked = " and ".join(dict.fromkeys((formats.key.name, formats.value.name)))
        raise InputError(
            f"vLLM keeps no cache in {asked}", hint=f"its formats are {', '.join(known)}", parameter="kv-dtype"
        )
    sparse = any(isinstance(mixer, Latent) and mixer.indexer is not None for mixer in model.mixers)
    compresses, shares = model.architecture == "deepseek_v4", model.architecture == "deepseek_v41_text"
    if name in _OF_SPARSE_LATENT and not (sparse or shares or (compresses and name.startswith("fp8"))):
        raise InputError(f"{name} is a format of sparse latent attention, not of {model.name}", parameter="kv-dtype")
    if name == "nvfp4_ds_mla" and generation not in ("", *_SM10X):
        raise InputError(f"nvfp4_ds_mla is for B200, B300 and their like, not for a {generation} card")
    if compresses and not name.startswith("fp8"):
        raise InputError(f"vLLM keeps {model.name}'s cache in fp8_ds_mla, not in {name}", parameter="kv-dtype")
    if shares:
        _check_shared(model, name, version=version, generation=generation)
    if _is_packed(name) and model.has(Latent, Sliding, Chunked, Cross):
        raise UnsupportedError(f"how vLLM lays out a cache in {name} is modelled for full attention alone")
    if name in ("octave_k3v4", "octave_k3v3") and model.architecture not in _WHOLE_HEAD_ROTATES:
        raise UnsupportedError(
            f"{name} stores the rotated part of a key wider, and its width in {model.name} is not in the profile",
            hint="octave_k3v3_compact does not depend on it",
        )


def _check_shared(model: ModelProfile, name: str, *, version: str, generation: str) -> None:
    if known_release(version) < _FIRST_WITH_SHARED_ENTRIES:
        raise UnsupportedError(f"how vLLM {version} lays out {model.name} is not described", hint="0.33 is")
    if name not in ("fp8", *_OF_SPARSE_LATENT):
        formats = " or ".join(reversed(_OF_SPARSE_LATENT)) if generation in _SM10X else _OF_SPARSE_LATENT[0]
        raise InputError(f"vLLM keeps {model.name}'s cache in {formats}, not in {name}", parameter="kv-dtype")


def own_cache_format(model: ModelProfile, generation: str) -> str | None:
    """Return the format that vLLM keeps a model's cache in by itself, where that is not the model's own.

    DeepSeek-V4's is always packed fp8, V4.1's packed NVFP4 on B200 and its like; GLM-5's is fp8 there.

    Source: vLLM 0.33, ``model_executor/models/config.py: GlmMoeDsaForCausalLM, Glm5NextModelConfig``;
    ``packed_kv_cache_dtype`` of ``models/deepseek_v41``.
    """
    if model.architecture == "deepseek_v4":
        return "fp8_ds_mla"
    if model.architecture == "deepseek_v41_text":
        return "nvfp4_ds_mla" if generation in _SM10X else "fp8_ds_mla"
    sparse_glm = model.architecture in ("glm_moe_dsa", "glm5_next_text")
    return "fp8_e4m3" if sparse_glm and generation in _SM10X else None


def token_bytes(mixer: Attention | Latent, formats: Formats, *, tensor: int, generation: str = "") -> int:
    """Return the bytes of a token in a layer's page on one rank, without index keys.

    Source: vLLM 0.33, ``mla_attention.py: get_kv_cache_spec`` and ``_canonicalize_sparse_mla_kv_cache_dtype``;
    ``customize_spec`` of the TurboQuant, UltraQuant and Octave backends.
    """
    if isinstance(mixer, Latent):
        return _latent_bytes(mixer, formats, generation)
    name = _name(formats)
    if not _is_packed(name):
        return heads_bytes(mixer, formats, tensor=tensor)
    key = formats.key.bytes(mixer.head_dim, head_dim=mixer.head_dim)
    value = formats.value.bytes(mixer.value_dim, head_dim=mixer.value_dim)
    step = _SLOT_STEP.get(name, _PACKED_STEP)
    return kv_heads_per_rank(mixer.kv_heads, tensor) * step * ceil_div(int(key + value), step)


def _latent_bytes(mixer: Latent, formats: Formats, generation: str) -> int:
    """Return the bytes of a latent vector: packed beside an indexer, where the card's kernel wants it so."""
    name = formats.key.name
    if mixer.indexer is not None and name not in _OF_SPARSE_LATENT:
        # the kernel of SM12x reads nothing else, that of SM10x takes fp8 as it is
        packed = generation == "blackwell-rtx" or (formats.key.unit == "fp8" and generation not in _SM10X)
        if packed:
            return scaled_latent_bytes(mixer, formats)
    width = mixer.kv_lora_rank + mixer.rope_dim
    return int(formats.key.bytes(width, head_dim=width))


def boundary_layers(model: ModelProfile, formats: Formats) -> frozenset[int]:
    """Return the layers that keep the model's own format beside a packed cache: two at each end, none of a hybrid.

    Source: vLLM 0.33, ``TurboQuantConfig.get_boundary_skip_layers``.
    """
    if model.has(State) or not _name(formats).startswith(("turboquant_", "ultraquant_")):
        return frozenset()
    count = min(_BOUNDARY, model.layers // 2)
    return frozenset((*range(count), *range(model.layers - count, model.layers)))
