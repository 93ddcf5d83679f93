"""Which part of a model a tensor of a Hugging Face checkpoint belongs to, by its name; and the formats of the parts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from kvcalc.core.formats import parse_format
from kvcalc.core.model import Mixture
from kvcalc.cost.parameters import parameters
from kvcalc.importers.checkpoint import exact_format

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile, Part
    from kvcalc.importers.checkpoint import TensorTable

__all__ = ["part_formats", "part_of"]

# How a stored type is called as a format, for parts that are stored in one type throughout.
_PLAIN = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F64": "fp64"}
_UNITS = {"F8_E4M3": "fp8", "F8_E5M2": "fp8", "I8": "int8", "F4": "fp4"}

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_OUTSIDE = re.compile(
    r"(?:^|\.)(?:vis\w*|audio\w*|mtp\w*|multi_modal\w*|mm_\w*|embed_vision|embed_audio|aligner|image_newline|"
    r"lora_[AB]|lora_embedding_[AB]|rotary_emb|masked_bias|num_batches_tracked)(?:\.|$)"
)
_TOKENS = re.compile(r"token|wte|word|embed_in|(?:^|\.)embeddings\.weight$|^(?:model\.)?shared\.")
_ADDED = re.compile(
    r"_(?:scale|scale_2|scale_inv|zero_point|shape|blocks|scales|packed)$|^(?:qweight|qzeros|scales|g_idx)$"
)

# The first pattern that is found in a name decides.
_PATTERNS: tuple[tuple[str, Part], ...] = (
    (r"e_score_correction_bias|A_log$|\.D$|dt_bias$|conv1d?\.|conv\.conv\.|sinks$|layer_scalar$", "vector"),
    (r"norm|(?:^|\.)ln_|\.layer_scale|router\.(?:per_expert_)?scale$|_gating$", "vector"),
    (r"(?:^|\.)(?:shared_experts?|shared_mlp)\.", "mlp"),
    (r"(?:^|\.)experts\.", "experts"),
    (r"(?:^|\.)shared_expert_gate\.", "mlp"),
    (r"(?:mlp|block_sparse_moe|ffn|feed_forward|moe|mixer)\.(?:gate|router)\.|\.router\.proj\.", "router"),
    (r"(?:^|\.)per_layer_(?:model_projection|projection|input_gate)\.", "other"),
    (r"(?:^|\.)(?:lm_head|embed_out|head|output)\.", "head"),
    (r"(?:^|\.)(?:embed_tokens\w*|wte|wpe|word_embeddings|tok_embeddings)(?:\.|$)", "embedding"),
    (r"(?:^|\.)(?:embed_positions|embed_in|embeddings?)(?:\.|$)|^(?:model\.)?shared\.", "embedding"),
    (r"mixer\.(?:up_proj|down_proj|gate_proj|fc\d_latent_proj)\.", "mlp"),
    (r"(?:^|\.)(?:self_attn|attn|self_attention|attention|encoder_attn|cross_attn)\.", "attention"),
    (r"(?:^|\.)(?:linear_attn|mamba|mixer|short_conv|temporal_block|conv)\.", "attention"),
    (r"(?:^|\.)(?:mlp|feed_forward|ffn|mlp_block|block_sparse_moe|fc1|fc2)\.", "mlp"),
)  # fmt: skip
_RULES = tuple((re.compile(pattern), part) for pattern, part in _PATTERNS)


def part_of(name: str, shape: tuple[int, ...], profile: ModelProfile) -> Part | Literal["outside"] | None:
    """Return a tensor's part, ``outside`` for what the profile does not count, or none where the name does not tell.

    Biases and norms are vectors; the biases of experts go with them where the profile counts them so. A token table
    that is also the head goes with the head.
    """
    layer = _LAYER.search(name)
    if _OUTSIDE.search(name) or (layer is not None and int(layer[1][:9]) >= profile.layers):
        return "outside"
    leaf = name.rpartition(".")[2]
    part = next((part for pattern, part in _RULES if pattern.search(name)), None)
    tied = profile.head is not None and profile.head.tied
    if part == "embedding" and tied and _TOKENS.search(name) and "per_layer" not in name:
        return "head"
    if part == "head" and tied:
        return "outside"
    if part == "experts":
        return part if _with_bias(profile) or not leaf.endswith("bias") else "vector"
    small = len(shape) <= 1 and not _ADDED.search(leaf)
    return "vector" if part is not None and small else part


def _with_bias(profile: ModelProfile) -> bool:
    return any(isinstance(block.mlp, Mixture) and block.mlp.expert_bias for block in profile.block_counts)


def part_formats(table: TensorTable, profile: ModelProfile) -> tuple[dict[str, str], list[str]]:
    """Return the formats of the parts that differ from the profile's, and notes on tensors that fit no part.

    Where a tensor's part cannot be told from its name, what the config declares is kept.
    """
    sizes: dict[str, dict[str, int]] = {}
    held: dict[str, int] = {}
    outside = 0
    for name, tensor in table.tensors.items():
        part = part_of(name, tensor.shape, profile)
        if part is None:
            kept = f"the tensor {name[:80]!r} belongs to no part that is known: parts keep the formats of the config"
            return dict(profile.weight_formats), [kept]
        if part == "outside":
            outside += tensor.size
            continue
        stored = sizes.setdefault(part, {})
        stored[tensor.dtype] = stored.get(tensor.dtype, 0) + tensor.size
        held[part] = held.get(part, 0) + tensor.elements
    implied = parameters(profile)
    formats: dict[str, str] = {}
    notes: list[str] = []
    for known, stored in sizes.items():
        elements = implied.get(known, 0)
        if elements:
            formats[known] = _stored_format(stored, elements, profile.weight_formats.get(known))
        if known != "vector" and stored.keys() <= _PLAIN.keys() and held[known] != elements:
            notes.append(f"by their names {held[known]} elements are of {known}; the config implies {elements}")
    if outside:
        notes.append(
            f"{outside} bytes of the file belong to no part of the text model (other towers, prediction layers, copies)"
        )
    return {known: form for known, form in formats.items() if form != profile.dtype}, notes


def _stored_format(stored: dict[str, int], elements: int, declared: str | None) -> str:
    main = max(stored, key=lambda dtype: stored[dtype])
    if len(stored) == 1 and main in _PLAIN:
        return _PLAIN[main]
    unit = parse_format(declared).unit if declared else _UNITS.get(main, "bf16")
    names = (declared,) if declared else ()
    return exact_format(sum(stored.values()), elements, names=names, unit=unit)
