"""The file types of llama.cpp as tools print them: which recipe of its quantiser each is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcalc.core.formats import FORMATS
from kvcalc.engines.llama_cpp.recipes import RECIPES, find_recipe
from kvcalc.engines.llama_cpp.tensors import unlisted

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile

__all__ = ["gguf_weights", "is_gguf_type"]

_OLD_NAMES = {
    "mxfp4": "mxfp4_moe",
    "q4_0_4_4": "q4_0",
    "q4_0_4_8": "q4_0",
    "q4_0_8_8": "q4_0",
    "mxfp4-moe": "mxfp4_moe",
    "fp16": "f16",
}


def gguf_weights(model: ModelProfile, file_type: str) -> str | None:
    """Return the weights of a file type as ``--weights`` takes them; none for an unknown type or an unknown file.

    Args:
        model: the model that is stored.
        file_type: for example ``Q4_K_M``.

    >>> from kvcalc.core.model import Block, Gated, ModelProfile
    >>> model = ModelProfile(name="x", architecture="llama", hidden_size=256, context_limit=None,
    ...     blocks=(Block(mlp=Gated(width=256)),), embeddings=(), head=None)
    >>> gguf_weights(model, "q4_K - Small"), gguf_weights(model, "F16"), gguf_weights(model, "nf4")
    ('q4_k_s', 'fp16,router=fp32,vector=fp32', None)
    """
    recipe = find_recipe(_type_key(file_type))
    if recipe is None:
        return None
    if FORMATS[RECIPES[recipe]].block_elements == 1:
        return f"{RECIPES[recipe]},router=fp32,vector=fp32"
    return recipe if unlisted(model) is None else None


def is_gguf_type(name: str) -> bool:
    """Whether that is the name of a file type."""
    return find_recipe(_type_key(name)) is not None


def _type_key(name: str) -> str:
    """Return a file type's key: tools print ``q4_K - Medium`` for Q4_K_M."""
    key = re.sub(r" - (small|medium|large)$", lambda match: f"_{match[1][0]}", name.strip().lower())
    return _OLD_NAMES.get(key, key)
