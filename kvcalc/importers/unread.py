"""Keys that a rule did not read: those that change the architecture are refused, the others are told apart for lint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError, UnsupportedError
from kvcalc.core.model import Chunked, Compressed, Cross, Full, Latent, Mixture, Shared, Sliding, State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.core.model import Block
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Shape

__all__ = ["WATCHED", "decides_nothing", "looks_relevant", "refuse_unread"]

_EXPERT_COUNTS = (
    "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts", "n_experts",
    "num_moe_experts",
)  # fmt: skip
_SHARED_EXPERTS = (
    "n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts",
    "shared_expert_intermediate_size", "shared_intermediate_size",
)  # fmt: skip
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "use_mla")
_INDEXED = (
    "index_topk", "index_n_heads", "index_head_dim", "sparse_attention_config", "sparse_config", "compress_ratios",
)  # fmt: skip
_STATES = re.compile(
    r"mamba_(?:d_\w+|n_\w+|num_\w+|head\w*|expand|ngroups|inner\w*)|ssm_(?!.*kernels?$)\w+|linear_(?:num|key|value|conv)_\w+|"
    r"linear_attn_config|conv_L_cache|lru_width|kda_\w+|gdn_\w+|state_size|conv_kernel|time_mix\w*"
)
_ALWAYS = (
    "add_cross_attention", "altup_num_inputs", "attn_layer_indices", "block_configs",
    "cla_share_factor", "cross_attention_layers", "full_attn_idxs", "global_head_dim", "hidden_size_per_layer_input",
    "hybrid_override_pattern", "kv_sharing_modes", "laurel_rank", "layers_block_type", "multi_query",
    "multi_query_attention", "num_global_key_value_heads", "num_kv_shared_layers", "num_recurrence",
    "num_sliding_attention_heads", "per_layer_config", "swa_head_dim", "swa_num_key_value_heads",
    "total_ut_steps", "use_cla",
)  # fmt: skip
_PER_LAYER = re.compile(r"\w+_per_layer")
_KV_HEADS = (
    "num_kv_heads", "n_head_kv", "n_kv_heads", "multi_query_group_num", "num_attention_groups", "num_query_groups",
)  # fmt: skip
_HEAD_DIMS = ("head_dim", "attention_head_dim", "kv_channels")
_KIND_LISTS = ("layer_types", "attention_layers", "attn_type_list", "attention_types", "attention_type", "_block_types")
_KINDS = frozenset(
    ("full_attention", "attention", "full", "global", "standard", "softmax", "original_full", "mha", "gqa", "1")
)
_WINDOWS = ("sliding_window", "sliding_window_size", "attention_window_size", "window_length", "attention_chunk_size")
# A single one of these is the same as none.
_ONE_IS_NONE = frozenset((*_EXPERT_COUNTS, "cla_share_factor", "num_recurrence", "altup_num_inputs", "total_ut_steps"))
# Keys that are refused where a rule does not read them: a misspelling of one must not slip through either.
WATCHED = frozenset((
    *_EXPERT_COUNTS, *_SHARED_EXPERTS, *_LATENT, *_INDEXED, *_ALWAYS, *_KV_HEADS, *_HEAD_DIMS, *_KIND_LISTS, *_WINDOWS,
))  # fmt: skip
# The switch that puts a key out of action where it is off.
_SWITCHES = {
    **dict.fromkeys(_LATENT, "use_mla"),
    "cla_share_factor": "use_cla",
    "sliding_window": "use_sliding_window",
    "sparse_attention_config": "use_sparse_attention",
}


def refuse_unread(text: Config, shape: Shape) -> None:
    """Refuse a model whose config has keys that change its layers and that the rule did not read.

    Raises:
        UnsupportedError: such a key, by name.
        ProfileError: head counts that no attention can have.
    """
    _check_heads(text, shape)
    parts = _Parts(shape)
    for key, value in text.data.items():
        if text.key_path(key) in text.uses or _means_nothing(key, value) or _switched_off(text, key):
            continue
        if _structural(text, key, value, parts):
            shown = str(value) if len(str(value)) <= 40 else f"{str(value)[:37]}..."  # noqa: PLR2004
            raise UnsupportedError(
                f"model_type {text.data.get('model_type')!r} has {key!r} ({shown}), which its rule does not know",
                where=f"{text.where}, {text.key_path(key)}",
                hint="describe the model's layers in a profile, or remove the key if it has no effect",
            )


class _Parts:
    """Features of a shape's layers."""

    def __init__(self, shape: Shape) -> None:
        blocks = set(_blocks(shape))
        self.mixers = [mixer for block in blocks for mixer in block.mixers]
        self.mixtures = [block.mlp for block in blocks if isinstance(block.mlp, Mixture)]

    def has(self, *kinds: type) -> bool:
        """Return whether a layer has one of these mixers."""
        return any(isinstance(mixer, kinds) for mixer in self.mixers)

    @property
    def indexed(self) -> bool:
        """Whether a layer chooses tokens, or keeps them compressed."""
        return any(mixer.indexer is not None for mixer in self.mixers) or self.has(Compressed)


def _blocks(shape: Shape) -> Iterable[Block]:
    return (*shape.blocks, *(shape.encoder.blocks if shape.encoder else ()))


def _structural(text: Config, key: str, value: Any, parts: _Parts) -> bool:
    """Return whether a key changes layers in a way that the parts do not show."""
    if key in _EXPERT_COUNTS:
        return value not in [mixture.experts for mixture in parts.mixtures]
    if key in _SHARED_EXPERTS:
        return bool(parts.mixtures) and not any(mixture.shared_width for mixture in parts.mixtures)
    if key in _INDEXED:
        return not parts.indexed
    if _STATES.fullmatch(key):
        return not parts.has(State)
    if key in _KIND_LISTS:
        return not _named_kinds(value) <= _KINDS
    if key in _WINDOWS:
        return value not in [getattr(mixer, "window", None) for mixer in parts.mixers] and _narrow(text, value)
    listed = _PER_LAYER.fullmatch(key) is not None and isinstance(value, list | dict)
    return listed or key in _ALWAYS or _other_heads(key, value, parts)


def _other_heads(key: str, value: Any, parts: _Parts) -> bool:
    """Return whether a key gives attention another form or size than the parts have."""
    if key in _LATENT:
        return not parts.has(Latent, Compressed) and not (key == "v_head_dim" and value in _widths(parts))
    if key in _HEAD_DIMS:
        return bool(_widths(parts)) and not parts.has(Latent, Compressed) and value not in _widths(parts)
    if key in _KV_HEADS:
        return value not in [getattr(mixer, "kv_heads", None) for mixer in parts.mixers]
    return key == "attention_head_type" and value == "multiquery"


def _widths(parts: _Parts) -> list[int]:
    return [mixer.head_dim for mixer in parts.mixers if isinstance(mixer, Full | Sliding | Chunked | Shared | Cross)]


def _named_kinds(value: Any) -> set[str]:
    entries = value if isinstance(value, list) else [value]
    kinds: set[str] = set()
    for entry in entries:
        kinds |= _named_kinds(entry) if isinstance(entry, list) else {str(entry)}
    return kinds


def _narrow(text: Config, value: Any) -> bool:
    """Return whether a window is in force: narrower than the context, and some layer is said to have it."""
    kinds = text.data.get("layer_types")
    if isinstance(kinds, list) and _named_kinds(kinds) <= _KINDS:
        return False
    limit = text.data.get("max_position_embeddings")
    return not (isinstance(limit, int) and isinstance(value, int | float) and value >= limit)


def _means_nothing(key: str, value: Any) -> bool:
    if isinstance(value, list):
        return key not in _KIND_LISTS and all(_means_nothing(key, entry) for entry in value)
    return not value or bool(value == 1 and not isinstance(value, bool) and key in _ONE_IS_NONE)


def _switched_off(text: Config, key: str) -> bool:
    switch = _SWITCHES.get(key)
    if switch is None:
        return False
    use = text.uses.get(text.key_path(switch))
    value = use.value if use is not None else text.data.get(switch, text.defaults.get(switch, True))
    return value is False or value is None


def _check_heads(text: Config, shape: Shape) -> None:
    for mixer in _Parts(shape).mixers:
        heads, kv = getattr(mixer, "heads", 0), getattr(mixer, "kv_heads", 0)
        if not isinstance(mixer, State) and kv and heads % kv:
            raise ProfileError(
                f"{heads} query heads do not share {kv} KV heads evenly",
                where=f"{text.where}, {text.path or 'top level'}",
            )


# Parts of a config that describe neither the text model's layers nor how they are stored.
_ELSEWHERE = re.compile(
    r"(?:vision|visual|audio|video|image|speech|talker|token2wav|code2wav|projector|aligner|connector|encoder_audio)\w*|"
    r"gen_(?:vision|aligner|head)\w*|auto_map|id2label|label2id|task_specific_params|rope_scaling|rope_parameters|init_config"
)
# Names that never decide bytes or FLOP, whole.
_HARMLESS = re.compile(
    r"\w*token_(?:id|ids|index|indices)s?|\w*_tokens?(?:_ids?)?|(?:\w+_)?(?:dropout|pdrop|layerdrop)(?:_\w+)?|\w*eps(?:ilon)?|"
    r"initializer_\w+|init_(?:std|method\w*|device|scale|cutoff\w*|gain)|\w*_init(?:_\w+)?|\w*(?:rope_theta|rope_base|base_freq)|rope_(?:theta|scaling|type|factor|parameters)|"
    r"(?:\w+_)?rotary_(?:\w+)|rotary_\w+|partial_rotary_factor|(?:\w+_)?(?:hidden_)?act(?:ivation)?(?:_(?:function|func|fn|type))?|"
    r"\w*loss\w*|\w*_coef(?:_\w+)?|use_cache|architectures?|model_type|\w*version|auto_map|return_\w+|"
    r"output_(?:hidden_states|attentions|router_logits|scores|past)|\w*_name(?:_or_path)?|\w*softcap(?:ping)?|\w*_clip|clip_\w+|"
    r"\w*multipliers?|\w*(?:_scale|_scaling|_scaling_factor|_scale_factor)|scale_\w*(?:embedding\w*|attn\w*weights|depth|emb)|"
    r"temperature|top_p|max_length|min_length|max_new_tokens|(?:torch_)?dtype|\w*_range|\w*_std|\w*beams?\w*|\w*penalty|"
    r"norm_topk_prob|routed_scaling_factor|scoring_func|topk_method|topk_group|n_group|num_expert_group|moe_renormalize|"
    r"(?:\w+_)?router_jitter\w*|seq_aux|_?attn_implementation\w*|attn_impl\w*|cache_implementation|chunk_size\w*|"
    r"use_(?:flash_attn\w*|mamba_kernels|mambapy|bfloat16|dynamic_ntk|logn_attn|mrope|associative_scan|expert_bias|fused\w*)|"
    r"pretraining_tp|tokenizer_\w+|attention_(?:dropout\w*|softmax_in_fp32|multiplier)|\w*softmax_in_fp32|"
    r"problem_type|add_(?:prefix|bos|eos)\w*|is_decoder|max_position_embeddings|\w*time_step_(?:min|max|floor|limit|scale|init\w*)|"
    r"original_max_position_embeddings|pad_vocab\w*|tie_encoder_decoder|classifier_\w+|summary_\w+|gradient_\w+|"
    r"(?:vision|image|video|audio|mm|gen_vision|gen_head|talker|code2wav)_(?!\w*layers)\w*|\w*projector_\w+|spatial_merge_size|patch_size"
)
_TELLING = re.compile(
    r"layer|head|kv|hidden|size|dim|rank|expert|window|chunk|cache|state|conv|ssm|mamba|attn|attention|moe|vocab|quant|"
    r"bias|tie|ffn|intermediate|block|pattern|position|nextn|mtp|group|width|lora|index|query|dense|replace|compress|"
    r"d_model|d_ff|n_embd|ratio|mla|cla(?:$|_)|share|recurren|altup|laurel|top_?k|sparse|depth|factor|per_|norm"
)


def decides_nothing(name: str, value: Any) -> bool:
    """Return whether a key is of those that never decide memory or compute, whoever reads it; parts of a config may."""
    if isinstance(value, dict):
        return False
    return _HARMLESS.fullmatch(name) is not None or _ELSEWHERE.fullmatch(name) is not None


def looks_relevant(path: str) -> bool:
    """Return whether a key that was not read looks as if it decided memory or compute."""
    *sections, name = path.split(".")
    if any(_ELSEWHERE.fullmatch(section) for section in sections):
        return False
    return _HARMLESS.fullmatch(name) is None and _TELLING.search(name) is not None
