"""Parts of a model that tensors of a Hugging Face checkpoint belong to, by name; and the formats of the parts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from kvcalc.core.formats import exact_format, parse_format
from kvcalc.core.model import Mixture, Tower, TowerPart
from kvcalc.cost.parameters import parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import ModelProfile, Part
    from kvcalc.importers.checkpoint import TensorTable

__all__ = ["part_of", "with_stored_parts"]

# How a stored type is called as a format, for parts that are stored in one type throughout.
_PLAIN = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F64": "fp64"}
_UNITS = {"F8_E4M3": "fp8", "F8_E5M2": "fp8", "I8": "int8", "F4": "fp4"}

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
# What the text model does not multiply with: towers, what leads from them, and what no engine loads for text.
_VISION = re.compile(
    r"(?:^|\.)(?:vis\w*|vit\w*|embed_vision|aligner|image_\w+|video_tower|patch_merge\w*|connector|merger)(?:\.|$)"
)
_AUDIO = re.compile(r"(?:^|\.)(?:audio\w*|embed_audio|speech\w*)(?:\.|$)")
_PROJECTOR = re.compile(r"(?:^|\.)(?:multi_modal\w*|mm_\w*|projector)(?:\.|$)")
_OUTSIDE = re.compile(
    r"(?:^|\.)(?:mtp\w*|lora_[AB]|lora_embedding_[AB]|rotary_emb|masked_bias|num_batches_tracked)(?:\.|$)"
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
    """Return a tensor's part, ``outside`` for what engines do not load, or none where the name does not tell.

    Biases and norms are vectors; the biases of experts go with them where the profile counts them so. A token table
    that is also the head goes with the head. Prediction layers and copies of a tied head are outside; a tower is whole.
    """
    tower = _tower_of(name, profile)
    layer = _LAYER.search(name)
    if _OUTSIDE.search(name) or (tower is None and layer is not None and int(layer[1][:9]) >= profile.layers):
        return "outside"
    if tower is not None:
        return tower
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


def _tower_of(name: str, profile: ModelProfile) -> TowerPart | None:
    if _AUDIO.search(name):
        return "audio"
    if _VISION.search(name):
        return "vision"
    if _PROJECTOR.search(name):
        return profile.towers[0].part if profile.towers else "vision"
    return None


def _with_bias(profile: ModelProfile) -> bool:
    return any(isinstance(block.mlp, Mixture) and block.mlp.expert_bias for block in profile.block_counts)


def with_stored_parts(table: TensorTable, profile: ModelProfile) -> ModelProfile:
    """Return a profile with the formats, towers and bytes that a file's tensors have.

    Each part gets the exact mixture of formats it is stored in. Towers are counted as stored. Prediction layers, copies
    of a tied head and what else no engine loads is not among the bytes held. Where a tensor's part cannot be told from
    its name, formats and towers stay those of the config.
    """
    sizes: dict[str, dict[str, int]] = {}
    stored_bytes: dict[str, int] = {}
    outside = 0
    for name, tensor in table.tensors.items():
        part = part_of(name, tensor.shape, profile)
        if part is None:
            kept = f"the tensor {name[:80]!r} belongs to no part that is known: parts keep the formats of the config"
            return replace(profile, held_weight_bytes=table.total_bytes, notes=(*profile.notes, kept))
        if part == "outside":
            outside += tensor.size
            continue
        stored = sizes.setdefault(part, {})
        stored[tensor.dtype] = stored.get(tensor.dtype, 0) + tensor.size
        stored_bytes[part] = stored_bytes.get(part, 0) + tensor.elements
    counted = replace(profile, towers=_stored_towers(profile, stored_bytes, sizes))
    implied = parameters(counted)
    formats: dict[str, str] = {}
    notes: list[str] = []
    for known, stored in sizes.items():
        elements = implied.get(known, 0)
        if elements:
            formats[known] = _stored_format(stored, elements, profile.weight_formats.get(known))
        if known != "vector" and stored.keys() <= _PLAIN.keys() and stored_bytes[known] != elements:
            notes.append(f"by their names {stored_bytes[known]} elements are of {known}; the config implies {elements}")
    if outside:
        notes.append(f"{outside} bytes of the file are not loaded with the model (prediction layers, copies)")
    return replace(
        counted,
        weight_formats={known: form for known, form in formats.items() if form != profile.dtype},
        held_weight_bytes=table.total_bytes - outside,
        notes=(*profile.notes, *notes),
    )


def _stored_towers(
    profile: ModelProfile, stored_bytes: Mapping[str, int], sizes: Mapping[str, Mapping[str, int]]
) -> tuple[Tower, ...]:
    """Return the towers as the file has them: elements stand one by one where they are not packed."""
    known = {tower.part: tower for tower in profile.towers}
    towers = []
    for part in get_args(TowerPart):
        if part in stored_bytes and (part not in known or sizes[part].keys() <= _PLAIN.keys()):
            plain = known.get(part, Tower(part=part, parameters=0))
            towers.append(replace(plain, parameters=stored_bytes[part]))
        elif part in stored_bytes:
            towers.append(known[part])
    return tuple(towers)


def _stored_format(stored: dict[str, int], elements: int, declared: str | None) -> str:
    main = max(stored, key=lambda dtype: stored[dtype])
    if len(stored) == 1 and main in _PLAIN:
        return _PLAIN[main]
    unit = parse_format(declared).unit if declared else _UNITS.get(main, "bf16")
    names = (declared,) if declared else ()
    return exact_format(sum(stored.values()), elements, names=names, unit=unit)
