"""Which part of a model a tensor of a Hugging Face checkpoint belongs to, by its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from kvcalc.core.model import Mixture

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile, Part

__all__ = ["part_of"]

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_OUTSIDE = re.compile(
    r"(?:^|\.)(?:vis\w*|audio\w*|mtp\w*|multi_modal\w*|mm_\w*|embed_vision|embed_audio|aligner|image_newline|"
    r"rotary_emb|masked_bias|num_batches_tracked)(?:\.|$)"
)
_ADDED = re.compile(
    r"_(?:scale|scale_2|scale_inv|zero_point|shape|blocks|scales|packed)$|^(?:qweight|qzeros|scales|g_idx)$"
)

# The first pattern that is found in a name decides.
_PATTERNS: tuple[tuple[str, Part], ...] = (
    (r"e_score_correction_bias|A_log$|\.D$|dt_bias$|conv1d?\.|sinks$|layer_scalar$", "vector"),
    (r"norm|(?:^|\.)ln_|\.layer_scale", "vector"),
    (r"(?:^|\.)shared_experts?\.", "mlp"),
    (r"(?:^|\.)experts\.", "experts"),
    (r"(?:^|\.)shared_expert_gate\.", "mlp"),
    (r"(?:mlp|block_sparse_moe|ffn|feed_forward|moe|mixer)\.(?:gate|router)\.", "router"),
    (r"(?:^|\.)(?:lm_head|embed_out|head|output)\.", "head"),
    (r"(?:^|\.)(?:embed_tokens\w*|wte|wpe|word_embeddings|tok_embeddings)(?:\.|$)", "embedding"),
    (r"(?:^|\.)(?:embed_positions|embed_in|embeddings?)(?:\.|$)", "embedding"),
    (r"mixer\.(?:up_proj|down_proj|gate_proj|fc\d_latent_proj)\.", "mlp"),
    (r"(?:^|\.)(?:self_attn|attn|self_attention|attention)\.", "attention"),
    (r"(?:^|\.)(?:linear_attn|mamba|mixer|short_conv|temporal_block)\.", "attention"),
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
    if part == "embedding" and tied and ("token" in name or "wte" in name or "word" in name or "embed_in" in name):
        return "head"
    if part == "head" and tied:
        return "outside"
    if part == "experts":
        return part if _with_bias(profile) or not leaf.endswith("bias") else "vector"
    small = len(shape) <= 1 and not _ADDED.search(leaf)
    return "vector" if part is not None and small else part


def _with_bias(profile: ModelProfile) -> bool:
    return any(isinstance(block.mlp, Mixture) and block.mlp.expert_bias for block in profile.block_counts)
