"""Kinds of quantised checkpoints that each engine loads, by the words people have for them."""

from __future__ import annotations

TYPE_CHECKING = False  # read with every deployment that names its weights
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["does_not_load"]

# Words by the method that such a checkpoint declares.
_METHODS: Mapping[str, tuple[str, ...]] = {
    "AutoRound": ("autoround",),
    "AWQ": ("awq",),
    "BitNet": ("bitnet",),
    "bitsandbytes": ("bnb-4bit", "bnb-8bit"),
    "compressed-tensors": (
        "fp8-dynamic", "int4", "mxfp4-w4a4", "mxfp8-w8a8", "nvfp4", "nvfp4a16", "w4a16", "w4a8", "w8a16", "w8a8",
    ),
    "FP8": ("fp8", "fp8-block"),
    "GPTQ": ("gptq", "gptq-int3", "gptq-int8"),
    "HQQ": ("hqq",),
    "torchao": ("torchao-int4",),
    "W4AFP8": ("w4afp8",),
}  # fmt: skip
# Source: vLLM 0.33, ``quantization/__init__.py: QUANTIZATION_METHODS`` (``inc`` is AutoRound's; bitsandbytes and GGUF
# were left out by 0.32); SGLang 0.5.23, ``layers/quantization``; transformers 5.24, ``quantizers/auto.py``; llama.cpp
# and mlx-lm load what their own tools convert.
_LOADED: Mapping[str, frozenset[str]] = {
    "vllm": frozenset({"AutoRound", "AWQ", "compressed-tensors", "FP8", "GPTQ", "torchao", "W4AFP8"}),
    "sglang": frozenset(
        {"AutoRound", "AWQ", "bitsandbytes", "compressed-tensors", "FP8", "GGUF", "GPTQ", "torchao", "W4AFP8"}
    ),
    "transformers": frozenset(
        {"AutoRound", "AWQ", "BitNet", "bitsandbytes", "compressed-tensors", "FP8", "GGUF", "GPTQ", "HQQ", "torchao"}
    ),
    "llama.cpp": frozenset({"GGUF"}),
    "mlx": frozenset({"MLX"}),
}
_SHOWN = {"vllm": "vLLM 0.33", "sglang": "SGLang 0.5.23", "transformers": "transformers 5.24", "mlx": "mlx-lm"}
_INSTEAD = {"llama.cpp": "it takes GGUF files: --weights q4_k_m", "mlx": "it takes MLX's own: --weights mlx-4bit"}


def does_not_load(engine: str | None, word: str, *, is_recipe: bool) -> str:
    """Return a note that an engine loads no checkpoint of such a kind; empty where it does, or no kind is named.

    Args:
        engine: the engine that was asked for; none where any may run the weights.
        word: the word for the weights, spelled with hyphens.
        is_recipe: whether the word is a recipe of llama.cpp's files.

    >>> does_not_load("llama.cpp", "awq", is_recipe=False)
    'llama.cpp loads no AWQ checkpoints; it takes GGUF files: --weights q4_k_m'
    >>> does_not_load("vllm", "awq", is_recipe=False)
    ''
    """
    if engine is None or engine not in _LOADED:
        return ""
    method = "GGUF" if is_recipe else "MLX" if word.startswith("mlx-") else ""
    method = method or next((method for method, words in _METHODS.items() if word in words), "")
    if not method or method in _LOADED[engine]:
        return ""
    instead = _INSTEAD.get(engine, "")
    return f"{_SHOWN.get(engine, engine)} loads no {method} checkpoints{f'; {instead}' if instead else ''}"
