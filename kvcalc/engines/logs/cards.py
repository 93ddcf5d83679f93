"""The accelerator that a log names, from the lines of engines, of nvidia-smi and of PyTorch's collect_env."""

from __future__ import annotations

import re

__all__ = ["card_names"]

_NAME = r"([A-Za-z][\w .()/-]{2,60}?)"
_PRINTED = (
    # vLLM and SGLang, when they look for tuned kernels of a mixture of experts or of fp8 matrices
    re.compile(r"\bdevice_name=([\w-]{3,60}?)(?:,|\.json|\]|\s|$)", re.MULTILINE),
    # llama.cpp
    re.compile(rf"\bDevice \d{{1,3}}: {_NAME}, compute capability"),
    re.compile(rf"\busing device \w{{1,20}} \({_NAME}\) (?:\([\w:.]{{1,20}}\) )?- \d"),
    re.compile(rf"\bggml_vulkan: \d{{1,3}} = {_NAME}(?: \(| \|)"),
    re.compile(rf"\bGPU name: {{1,6}}{_NAME}[ \t]*$", re.MULTILINE),
    # nvidia-smi -L and collect_env, then the table of nvidia-smi
    re.compile(r"\bGPU \d{1,3}: ((?:NVIDIA|AMD|Tesla|Quadro) [\w -]{2,60}?)[ \t]*(?:\(UUID|\n|$)"),
    re.compile(r"\|\s{1,4}\d{1,3}\s{1,4}((?:NVIDIA|Tesla|Quadro) [\w -]{2,40}?)\s{1,30}(?:On|Off|N/A)\s{1,4}\|"),
)
_VENDORS = re.compile(r"^(?:nvidia-|amd-|intel-|geforce-|radeon-|instinct-|tesla-)")
_ENDINGS = re.compile(r"-(?:edition|generation|gpu|graphics)$")
_MAX_PREFIXES = 3


def card_names(text: str) -> tuple[str, ...]:
    """Return names to look up the first accelerator that a log names, the most exact first; none where it names none.

    >>> card_names("llama_model_load: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:01:00.0) - 23871 MiB free")
    ('nvidia-geforce-rtx-3090', 'geforce-rtx-3090', 'rtx-3090')
    >>> card_names("Using default MoE config. E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3.json")[-1]
    'h100-80gb-hbm3'
    """
    matches = [match for pattern in _PRINTED if (match := pattern.search(text))]
    if not matches:
        return ()
    name = re.sub(r"\((?:tm|r)\)", "", min(matches, key=lambda match: match.start())[1].lower())
    name = re.sub(r"[\s_]+", "-", name).strip("-")
    names = [name, _ENDINGS.sub("", name)]
    for _ in range(_MAX_PREFIXES):
        names += [_VENDORS.sub("", each) for each in names[-2:]]
    return tuple(dict.fromkeys(names))
