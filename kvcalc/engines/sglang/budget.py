"""Memory that SGLang (0.5.23) takes of a GPU before its pools: contexts, links, and room for images.

The share is taken of what is free after the CUDA context, before the weights are loaded.

Source: SGLang 0.5.23, ``KVCacheConfigurator._profile_available_bytes`` and ``mm_runtime_reservation_gb``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import GIB, MIB
from kvcalc.engines.sglang.defaults import is_multimodal
from kvcalc.engines.terms import NOTHING, Interval

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile

__all__ = ["images_bytes", "taken_before"]

# Embeddings of images that it keeps; where Qwen3-VL runs on Hopper, features between processes in their place.
_IMAGES_BYTES, _FEATURES_BYTES = 100 * MIB, GIB
_FEATURES = ("qwen3_vl_text", "qwen3_vl_moe_text")
# CUDA's context and libraries, allocated before the share is taken.
_CONTEXT = Interval(least=300 * MIB, most=GIB)
_LINKS = Interval(least=0, most=2 * GIB)


def images_bytes(model: ModelProfile, *, generation: str = "") -> int:
    """Return the bytes set aside for images and sound; nothing for text.

    Args:
        model: the model.
        generation: the accelerator's architecture; Hopper where left out.
    """
    if not is_multimodal(model):
        return 0
    between = model.architecture in _FEATURES and generation in ("", "hopper")
    return _FEATURES_BYTES if between else _IMAGES_BYTES


def taken_before(model: ModelProfile, *, share: float, ranks: int, generation: str = "") -> Interval:
    """Return the bytes that the budget lacks: of contexts and links between ranks the share, and the need of images.

    The share is taken of free memory. 0.5 to 0.6 GiB of an H100 are not free at start-up; with 0.93 of four H100s,
    weights of 55.2 and a cache of 16.5 GiB leave 2.1 (https://github.com/vllm-project/vllm/issues/21348).
    """
    context = _CONTEXT.plus(NOTHING if ranks == 1 else _LINKS)
    images = images_bytes(model, generation=generation)
    return Interval(least=int(share * context.least) + images, most=int(share * context.most) + images)
