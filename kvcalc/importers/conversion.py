"""Keys of a config that only conversions to GGUF need: rotary factors, and layers that predict further tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Attention

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.core.model import Block
    from kvcalc.importers.config_reader import Config

__all__ = ["prediction_layers", "rotary_factors"]


def rotary_factors(text: Config, blocks: Iterable[Block]) -> int:
    """Return the elements of the rotary factors: Llama 3.1's for each pair of a head's dimensions, or LongRoPE's lists.

    Args:
        text: the text model's config.
        blocks: its layers.

    Source: llama.cpp, ``convert_hf_to_gguf.py``, ``generate_extra_tensors`` (``rope_freqs``, ``rope_factors_long`` and
    ``rope_factors_short``).
    """
    scaling = next((text.raw(key) for key in ("rope_scaling", "rope_parameters") if text.has(key)), None)
    if not isinstance(scaling, dict):
        return 0
    if "llama3" in (scaling.get("rope_type"), scaling.get("type")):
        mixers = (mixer for block in blocks for mixer in block.mixers)
        return next((mixer.head_dim // 2 for mixer in mixers if isinstance(mixer, Attention)), 0)
    given = next(key for key in ("rope_scaling", "rope_parameters") if text.has(key))
    part = text.child(given)
    lists = [part.raw(key, default=None) for key in ("long_factor", "short_factor")]
    return sum(len(factors) for factors in lists if isinstance(factors, list))


def prediction_layers(text: Config) -> int:
    """Count the layers behind the others that predict further tokens.

    Raises:
        ProfileError: the config names no whole number of them.
    """
    key = "num_nextn_predict_layers"
    return text.integer(key, least=0) if text.has(key) else 0
