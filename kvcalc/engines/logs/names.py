"""From a model's name as an engine prints it to names it may have in a catalogue."""

from __future__ import annotations

import re

__all__ = ["model_names"]

# Endings that say how the weights are stored or tuned, not how large the cache is.
_ENDINGS = re.compile(
    r"[-_.](?:instruct|chat|it|hf|base|thinking|gguf|awq|gptq|int[48]|w[48]a(?:8|16)|fp[48]|nvfp4|mxfp4|bf16|fp16|f16|"
    r"autoround|auto|qat|quantized|dynamic|exl[23]|(?:ud-)?i?q\d(?:-[0-9a-z]{1,3}){0,3}|g128|sym|[48]bit|bnb|mtp)$"
)
_FAMILIES = (
    (re.compile(r"^(?:meta-)?llama-?(\d)"), r"llama\1"),
    (re.compile(r"^nvidia-"), ""),
    (re.compile(r"^deepseek-(?:ai-)?"), "deepseek-"),
)
_MAX_ENDINGS = 8
_LONGEST = 200


def model_names(printed: str) -> tuple[str, ...]:
    """Return names to look a model up by, the most exact first.

    Args:
        printed: an id (``owner/name``), a path, or a name with spaces.

    >>> model_names("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4")[-1]
    'llama3.1-70b'
    >>> model_names("/models/Qwen3-8B-Q4_K_M.gguf")[-1]
    'qwen3-8b'
    """
    whole = printed.strip()[:_LONGEST]
    bare = re.sub(r"\([^()]*\)", "", whole).strip()
    parts = [part for part in re.split(r"[\\/]", bare) if part]
    if not parts:
        return ()
    names = [whole]
    for part in _telling(parts):
        name = re.sub(r"[\s:_]+", "-", part.lower()).removesuffix(".gguf").strip("-.")
        for _ in range(_MAX_ENDINGS):
            names += [name, _in_family(name)]
            shorter = _ENDINGS.sub("", name)
            if shorter == name:
                break
            name = shorter
    return tuple(dict.fromkeys(name for name in names if name))


def _telling(parts: list[str]) -> list[str]:
    """Return the parts of a path that may name the model: the last, or the folder of a snapshot in a hub cache."""
    cached = [part.rpartition("--")[2] for part in parts if part.startswith("models--")]
    return cached or parts[-1:]


def _in_family(name: str) -> str:
    for pattern, replacement in _FAMILIES:
        name = pattern.sub(replacement, name)
    return name
