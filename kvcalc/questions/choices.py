"""Parameters whose values are known by name, for front ends that offer them."""

from __future__ import annotations

__all__ = ["parameter_choices"]

_FORMATS = ("bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4")
_CACHES = ("bf16", "fp16", "fp8", "int8", "int4", "nvfp4", "q8_0", "q5_1", "q4_0")
_MULTIPLIED = ("bf16", "fp16", "fp8", "int8", "nvfp4")


def parameter_choices() -> dict[str, list[str]]:
    """Return the usual values of parameters, by the parameter's name; others may be written out."""
    from kvcalc.engines.llama_cpp.recipes import RECIPES
    from kvcalc.engines.pools import ENGINES
    from kvcalc.plan.speculative import METHODS
    from kvcalc.plan.weight_words import WORDS

    weights = dict.fromkeys((*_FORMATS, *WORDS, *(recipe.lower() for recipe in RECIPES)))
    return {
        "weights": list(weights),
        "kv-dtype": list(_CACHES),
        "activations": list(_MULTIPLIED),
        "engine": sorted(ENGINES, key=lambda name: name == "ideal"),
        "method": list(METHODS),
    }
