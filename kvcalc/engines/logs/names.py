"""Names that a catalogue may have for the model and the accelerator that a log names."""

from __future__ import annotations

import re

__all__ = ["card_names", "model_names"]

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


_CARD_NAME = r"([A-Za-z][\w .()/-]{2,60}?)"
_CARD_LINES = (
    # vLLM and SGLang, when they look for tuned kernels of a mixture of experts or of fp8 matrices
    re.compile(r"\bdevice_name=([\w-]{3,60}?)(?:,|\.json|\]|\s|$)", re.MULTILINE),
    # llama.cpp
    re.compile(rf"\bDevice \d{{1,3}}: {_CARD_NAME}, compute capability"),
    re.compile(rf"\busing device \w{{1,20}} \({_CARD_NAME}\) (?:\([\w:.]{{1,20}}\) )?- \d"),
    re.compile(rf"\bggml_vulkan: \d{{1,3}} = {_CARD_NAME}(?: \(| \|)"),
    re.compile(rf"\bGPU name: {{1,6}}{_CARD_NAME}[ \t]*$", re.MULTILINE),
    # nvidia-smi -L and collect_env, then the table of nvidia-smi
    re.compile(r"\bGPU \d{1,3}: ((?:NVIDIA|AMD|Tesla|Quadro) [\w -]{2,60}?)[ \t]*(?:\(UUID|\n|$)"),
    re.compile(r"\|\s{1,4}\d{1,3}\s{1,4}((?:NVIDIA|Tesla|Quadro) [\w -]{2,40}?)\s{1,30}(?:On|Off|N/A)\s{1,4}\|"),
)
_VENDORS = re.compile(r"^(?:nvidia-|amd-|intel-|geforce-|radeon-|instinct-|tesla-)")
_CARD_ENDINGS = re.compile(r"-(?:edition|generation|gpu|graphics)$")
_MAX_PREFIXES = 3


def card_names(text: str) -> tuple[str, ...]:
    """Return names to look up the first accelerator that a log names, the most exact first; none where it names none.

    >>> card_names("llama_model_load: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:01:00.0) - 23871 MiB free")
    ('nvidia-geforce-rtx-3090', 'geforce-rtx-3090', 'rtx-3090')
    >>> card_names("Using default MoE config. E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3.json")[-1]
    'h100-80gb-hbm3'
    """
    matches = [match for pattern in _CARD_LINES if (match := pattern.search(text))]
    if not matches:
        return ()
    name = re.sub(r"\((?:tm|r)\)", "", min(matches, key=lambda match: match.start())[1].lower())
    name = re.sub(r"[\s_]+", "-", name).strip("-")
    names = [name, _CARD_ENDINGS.sub("", name)]
    for _ in range(_MAX_PREFIXES):
        names += [_VENDORS.sub("", each) for each in names[-2:]]
    return tuple(dict.fromkeys(names))
