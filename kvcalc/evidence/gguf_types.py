"""The file types of llama.cpp: which tensor of a model is stored in which format.

Source: llama.cpp, src/llama-quant.cpp, llama_tensor_get_type (without an importance matrix). The rule holds
for the files that its own tool writes; files quantised by another recipe may differ from it.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from kvcalc.core.formats import FORMATS
from kvcalc.core.model import Mixture
from kvcalc.cost.parameters import block_matrices, expert_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.model import ModelProfile

__all__ = ["GGUF_TYPES", "gguf_weights", "is_gguf_type"]

# Layers that get the wider format; "more bits" are the first and last eighth and every third between.
Layers = Literal["all", "first four", "first eighth", "more bits"]

_VALUE, _OUTPUT, _DOWN = "attention.value", "attention.output", "mlp.down"

# File type: format of most tensors, format of the output head, and what is stored wider in which layers.
GGUF_TYPES: dict[str, tuple[str, str, dict[str, tuple[str, Layers]]]] = {
    "f32": ("fp32", "fp32", {}),
    "f16": ("fp16", "fp16", {}),
    "q8_0": ("q8_0", "q8_0", {}),
    "q4_0": ("q4_0", "q6_k", {}),
    "q4_1": ("q4_1", "q6_k", {}),
    "q5_0": ("q5_0", "q6_k", {}),
    "q5_1": ("q5_1", "q6_k", {}),
    "q6_k": ("q6_k", "q6_k", {}),
    "q2_k": ("q2_k", "q6_k", {_VALUE: ("q3_k", "all"), _OUTPUT: ("q3_k", "all"), _DOWN: ("q3_k", "all")}),
    "q3_k_s": ("q3_k", "q6_k", {}),
    "q3_k_m": ("q3_k", "q6_k", {_VALUE: ("q4_k", "all"), _OUTPUT: ("q4_k", "all"), _DOWN: ("q4_k", "all")}),
    "q4_k_s": ("q4_k", "q6_k", {_VALUE: ("q5_k", "first four"), _DOWN: ("q5_k", "first eighth")}),
    "q4_k_m": ("q4_k", "q6_k", {_VALUE: ("q6_k", "more bits"), _DOWN: ("q6_k", "more bits")}),
    "q5_k_s": ("q5_k", "q6_k", {}),
    "q5_k_m": ("q5_k", "q6_k", {_VALUE: ("q6_k", "more bits"), _DOWN: ("q6_k", "more bits")}),
    "iq4_nl": ("iq4_nl", "q6_k", {_DOWN: ("q5_k", "first eighth")}),
    "iq4_xs": ("iq4_xs", "q6_k", {_DOWN: ("q5_k", "first eighth")}),
    # gpt-oss and others as ggml-org publishes them: experts in mxfp4, the rest in q8_0
    "mxfp4_moe": ("q8_0", "q8_0", {"experts": ("mxfp4", "all"), "experts.down": ("mxfp4", "all")}),
}
_OLD_NAMES = {
    "mxfp4": "mxfp4_moe",
    "q4_0_4_4": "q4_0",
    "q4_0_4_8": "q4_0",
    "q4_0_8_8": "q4_0",
    "mxfp4-moe": "mxfp4_moe",
    "fp16": "f16",
}
# Stacks of experts are stored as the MLP's tensors are.
_ALIKE = {"experts.down": _DOWN}
_EDGE = 8


def gguf_weights(model: ModelProfile, file_type: str) -> str | None:
    """Return the weight formats of a file type, part by part, as ``--weights`` takes them; none for an unknown type.

    Args:
        model: the model that is stored.
        file_type: for example ``Q4_K_M``.

    >>> from kvcalc.core.model import Block, Gated, ModelProfile
    >>> blocks = (Block(mlp=Gated(width=256)),) * 16
    >>> model = ModelProfile(name="x", architecture="x", hidden_size=256, context_limit=None, blocks=blocks,
    ...     embeddings=(), head=None)
    >>> gguf_weights(model, "Q4_0"), gguf_weights(model, "Q4_K_S")
    ('q4_0,head=q6_k,router=fp32,vector=fp32', 'q4_k,head=q6_k,router=fp32,vector=fp32,mlp=mixed-1785856/3145728:int8')
    """
    key = _type_key(file_type)
    if key not in GGUF_TYPES:
        return None
    base, head, wider = GGUF_TYPES[key]
    parts = {"head": head, "router": "fp32", "vector": "fp32"} | _mixtures(model, base, wider)
    return ",".join([base, *(f"{part}={name}" for part, name in parts.items())])


def is_gguf_type(name: str) -> bool:
    """Whether that is the name of a file type."""
    return _type_key(name) in GGUF_TYPES


def _type_key(name: str) -> str:
    """Return a file type's key: tools print ``q4_K - Medium`` for Q4_K_M."""
    key = re.sub(r" - (small|medium|large)$", lambda found: f"_{found[1][0]}", name.strip().lower())
    return _OLD_NAMES.get(key, key)


def _mixtures(model: ModelProfile, base: str, wider: dict[str, tuple[str, Layers]]) -> dict[str, str]:
    """Return the parts that hold tensors of several formats, each as the exact mixture of them."""
    elements: dict[str, int] = {}
    stored: dict[str, Fraction] = {}
    formats: dict[str, set[str]] = {}
    for layer in range(model.layers):
        for tensor, part, count in _tensors(model, layer):
            name, where = wider.get(tensor) or wider.get(_ALIKE.get(tensor, ""), (base, "all"))
            used = FORMATS[name if _is_wider(layer, model.layers, where) else base]
            elements[part] = elements.get(part, 0) + count
            size = Fraction(count * used.block_bytes, used.block_elements)
            stored[part] = stored.get(part, Fraction(0)) + size
            formats.setdefault(part, set()).add(used.name)
    unit = FORMATS[base].unit
    found = {}
    for part, names in formats.items():
        if part in ("router", "vector", "head") or names == {base}:
            continue
        only = next(iter(names))
        found[part] = only if len(names) == 1 else f"mixed-{round(stored[part])}/{elements[part]}:{unit}"
    return found


def _tensors(model: ModelProfile, layer: int) -> Iterator[tuple[str, str, int]]:
    """Yield the tensors of a layer: name, part and elements; a mixture's stacks of experts like the MLP's tensors."""
    block = model.blocks[layer]
    for matrix in block_matrices(block, model.hidden_size):
        if matrix.stored:
            yield matrix.name, matrix.part, matrix.elements
    if isinstance(block.mlp, Mixture):
        stack = block.mlp.experts * expert_parameters(block.mlp, model.hidden_size)
        down = stack // (block.mlp.branches + 1)
        yield "experts", "experts", stack - down
        yield "experts.down", "experts", down


def _is_wider(layer: int, layers: int, where: Layers) -> bool:
    edge = layers // _EDGE
    if where == "all":
        return True
    if where == "more bits":
        return layer < edge or layer >= 7 * layers // _EDGE or (layer - edge) % 3 == 2  # noqa: PLR2004  every third
    return layer < (4 if where == "first four" else edge)
