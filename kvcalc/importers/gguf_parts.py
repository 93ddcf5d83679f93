"""Parts of a model that GGUF tensors belong to, and the MLP that a layer's tensors make up."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError
from kvcalc.core.formats import exact_format, parse_format
from kvcalc.core.model import Dense, Gated, Mixture
from kvcalc.cost.parameters import block_parameters, parameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvcalc.core.model import Block, Mixer, Mlp, ModelProfile, Part
    from kvcalc.importers.checkpoint import Tensor, TensorTable
    from kvcalc.importers.config_reader import Config

__all__ = ["OUTER", "ROUTES", "check_sizes", "layer_mlp", "layer_tensors", "part_of", "whole_profile"]

# Tensors outside the layers that are no norms or factors.
OUTER: dict[str, Part] = {
    "token_embd.weight": "embedding",
    "position_embd.weight": "embedding",
    "token_types.weight": "embedding",
    "per_layer_token_embd.weight": "embedding",
    "output.weight": "head",
    "per_layer_model_proj.weight": "other",
    "altup_proj.weight": "other",
    "altup_unembd_proj.weight": "other",
    "output_hc_fn.weight": "other",
}

_ATTENTION = frozenset({
    "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_gate", "attn_q_a", "attn_q_b", "attn_kv_a_mqa",
    "attn_kv_b", "attn_k_b", "attn_v_b", "ssm_in", "ssm_x", "ssm_dt", "ssm_out", "ssm_ba", "ssm_alpha", "ssm_beta",
    "ssm_f_a", "ssm_f_b", "ssm_g", "ssm_g_a", "ssm_g_b", "shortconv.in_proj", "shortconv.out_proj", "indexer.proj",
    "indexer.attn_k", "indexer.attn_q_b", "indexer.q_proj", "indexer.k_proj", "attn_kv", "attn_output_a",
    "attn_output_b", "attn_compressor_kv", "attn_compressor_gate", "indexer_compressor_kv", "indexer_compressor_gate",
})  # fmt: skip
_MLP = frozenset({
    "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "ffn_gate_inp_shexp",
    "ffn_latent_down", "ffn_latent_up", "ffn_routed_down", "ffn_routed_up",
})  # fmt: skip
_OTHER = frozenset(
    {"inp_gate", "proj", "laurel_l", "laurel_r", "altup_correct_coef", "altup_predict_coef", "altup_router"}
    | {"hc_attn_fn", "hc_ffn_fn"}
)
# The experts of each token, by its number in the vocabulary: a table of which one row is looked up.
ROUTES = "ffn_gate_tid2eid"
_LAYER = re.compile(r"blk\.(\d{1,9})\.(.+)")
# Factors of RWKV's channels, which stand in several rows.
_RWKV_VECTOR = re.compile(r"_(?:lerp|first)")
_OLD_EXPERT = re.compile(r"ffn_(?:gate|up|down)\.\d+$")

# Architectures whose MLP has two matrices; where the tensors are there, they decide.
_UNGATED = frozenset({
    "bloom", "codeshell", "falcon", "gpt2", "gptj", "gptneox", "jais", "jais2", "mpt", "plm", "nemotron", "nemotron_h",
    "nemotron_h_moe", "phi2", "starcoder", "starcoder2", "apertus", "arcee",
})  # fmt: skip


def part_of(key: str, tensor: Tensor) -> Part:
    """Return a tensor's part, by its name without ``blk.N.``.

    >>> from kvcalc.importers.checkpoint import Tensor
    >>> part_of("attn_q.weight", Tensor("bf16", (8, 8), 128)), part_of("attn_q.bias", Tensor("fp32", (8,), 32))
    ('attention', 'vector')
    """
    if key in OUTER:
        return OUTER[key]
    name, _, leaf = key.rpartition(".")
    if name.endswith("_exps"):
        return "experts" if leaf in ("weight", "bias") else "vector"
    if leaf != "weight":
        return "vector"
    if name == "ffn_gate_inp":
        return "router"
    if name == ROUTES:
        return "embedding"
    if name in _MLP:
        return "mlp"
    matrix = sum(side > 1 for side in tensor.shape) > 1
    if matrix and (name in _ATTENTION or (name.startswith("time_mix_") and not _RWKV_VECTOR.search(name))):
        return "attention"
    other = name in _OTHER or name in ("channel_mix_key", "channel_mix_value", "channel_mix_receptance")
    return "other" if matrix and other else "vector"


def layer_tensors(table: TensorTable, layers: int) -> tuple[dict[int, dict[str, Tensor]], dict[str, Tensor]]:
    """Return the tensors of each counted layer by name without ``blk.N.``, and those outside the layers.

    Experts in tensors of their own, as files of early 2024 have them, are refused.
    """
    inside: dict[int, dict[str, Tensor]] = {}
    outer: dict[str, Tensor] = {}
    for name, tensor in table.tensors.items():
        match = _LAYER.fullmatch(name)
        if match is None:
            outer[name] = tensor
        elif int(match[1]) < layers:
            if _OLD_EXPERT.search(match[2].removesuffix(".weight")):
                raise ProfileError(
                    "each expert is a tensor of its own: an old file", where=table.where, hint="convert it again"
                )
            inside.setdefault(int(match[1]), {})[match[2]] = tensor
    # Some conversions hold the up-projection of a latent cache twice, whole and in its two halves.
    for tensors in inside.values():
        if "attn_k_b.weight" in tensors and "attn_v_b.weight" in tensors:
            tensors.pop("attn_kv_b.weight", None)
    return inside, outer


def layer_mlp(
    keys: Config, tensors: Mapping[str, Tensor], *, inner: int, layer: int, known: tuple[Mixer, ...]
) -> Mlp | None:
    """Return a layer's MLP: experts, one MLP, both beside each other, or none.

    Args:
        keys: the metadata.
        tensors: the layer's tensors.
        inner: ``feed_forward_length`` of the layer.
        layer: its place.
        known: its token mixers.
    """
    experts = keys.integer("expert_count", default=0, least=0)
    down = tensors.get("ffn_down_exps.weight")
    sparse = down is not None
    if not any(key.startswith("ffn_") for key in tensors):
        lead = keys.integer("leading_dense_block_count", default=0, least=0)
        sparse = experts > 0 and layer >= lead
    if sparse and experts:
        return _mixture(keys, tensors, inner=inner, experts=experts, layer=layer)
    if keys.path in ("mamba", "mamba2", "rwkv6", "rwkv7") or (keys.path.startswith("nemotron_h") and known):
        return None
    gated = _gated(keys, tensors, inner)
    width = inner or _rows(tensors.get("ffn_up.weight"))
    if not width:
        return None
    return Gated(width=width) if gated else Dense(width=width)


def _gated(keys: Config, tensors: Mapping[str, Tensor], inner: int) -> bool:
    up = tensors.get("ffn_up.weight")
    if up is None:
        return keys.path not in _UNGATED
    return "ffn_gate.weight" in tensors or _rows(up) == 2 * inner


def _rows(tensor: Tensor | None) -> int:
    return tensor.shape[1] if tensor is not None and len(tensor.shape) > 1 else 0


def _mixture(keys: Config, tensors: Mapping[str, Tensor], *, inner: int, experts: int, layer: int) -> Mixture:
    down = tensors.get("ffn_down_exps.weight")
    each = keys.raw("expert_feed_forward_length", default=None)
    each = each[layer] if isinstance(each, list) and layer < len(each) else each
    width = each if isinstance(each, int) and each > 0 else inner
    if down is not None and down.shape:
        width = down.shape[0]
    used = keys.raw("expert_used_count", default=0)
    used = used[layer] if isinstance(used, list) and layer < len(used) else used
    if isinstance(used, bool) or not isinstance(used, int) or not 1 <= used <= experts:
        raise keys.bad("expert_used_count", used, f"a number from 1 to {experts}")
    if width < 1:
        raise keys.bad("expert_feed_forward_length", width, "a whole number from 1")
    latent = _rows(tensors.get("ffn_latent_down.weight") or tensors.get("ffn_routed_down.weight"))
    return Mixture(
        experts=experts,
        experts_per_token=used,
        width=width,
        gated=_gated_experts(keys, tensors),
        shared_width=_shared_width(keys, tensors, width=width),
        shared_gate="ffn_gate_inp_shexp.weight" in tensors,
        inputs=latent or None,
        expert_bias="ffn_down_exps.bias" in tensors,
    )


def _gated_experts(keys: Config, tensors: Mapping[str, Tensor]) -> bool:
    if "ffn_down_exps.weight" in tensors:
        return "ffn_gate_exps.weight" in tensors or "ffn_gate_up_exps.weight" in tensors
    return keys.path not in _UNGATED


def _shared_width(keys: Config, tensors: Mapping[str, Tensor], *, width: int) -> int:
    """Return the width of what every token passes: shared experts, or a whole MLP beside the experts."""
    for name in ("ffn_up_shexp.weight", "ffn_up.weight"):
        if name in tensors:
            return _rows(tensors[name])
    if any(key.startswith("ffn_") for key in tensors):
        return 0
    shared = keys.integer("expert_shared_feed_forward_length", default=0, least=0)
    return shared or width * keys.integer("expert_shared_count", default=0, least=0)


def check_sizes(block: Block, tensors: Iterable[tuple[str, Tensor]], *, hidden: int, what: str, where: str) -> None:
    """Refuse tensors that are not of the sizes the metadata gives; absent ones are told of later.

    Args:
        block: the layer that the metadata gives.
        tensors: the layer's tensors, by name without ``blk.N.``.
        hidden: width of the hidden state.
        what: the layer, for the message.
        where: the file.

    Raises:
        ProfileError: sizes that contradict the metadata.
    """
    sizes: dict[str, int] = {}
    names = set()
    for key, tensor in tensors:
        stored = part_of(key, tensor)
        sizes[stored] = sizes.get(stored, 0) + tensor.elements
        names.add(key)
    wanted = block_parameters(block, hidden)
    finals = {
        "attention": ("attn_output.weight", "ssm_out.weight", "shortconv.out_proj.weight"),
        "mlp": ("ffn_down.weight", "ffn_down_shexp.weight"),
        "experts": ("ffn_down_exps.weight",),
    }
    for part, last in finals.items():
        size, whole = sizes.get(part, 0), wanted.get(part, 0)
        if size > whole or (size < whole and not names.isdisjoint(last)):
            raise ProfileError(
                f"{what}: {part} tensors of {size} elements, but the metadata speaks of {whole}",
                where=where,
                hint="the file is incomplete, or of a variant that kvcalc does not know",
            )


def whole_profile(draft: ModelProfile, tensors: Iterable[tuple[str, Tensor]], notes: Iterable[str]) -> ModelProfile:
    """Return a profile with the parameters that its layers do not explain and the formats that the file stores.

    Args:
        draft: the profile of the metadata.
        tensors: the tensors that it counts, by name without ``blk.N.``.
        notes: on the file.
    """
    tied = draft.head is not None and draft.head.tied
    by_part = [
        ("head" if tied and key == "token_embd.weight" else part_of(key, tensor), tensor) for key, tensor in tensors
    ]
    rest = sum(tensor.elements for _, tensor in by_part) - sum(parameters(draft).values())
    if rest < 0:
        notes = (*notes, f"tensors of {-rest} elements that the metadata speaks of are not in the file")
    whole = replace(draft, vector_parameters=max(0, rest), notes=tuple(notes))
    return replace(whole, weight_formats=_formats(by_part, whole))


def _formats(tensors: Iterable[tuple[str, Tensor]], profile: ModelProfile) -> dict[str, str]:
    """Return each part's format: the one its tensors are stored in, or the exact mixture of their bytes."""
    sizes: dict[str, dict[str, int]] = {}
    for part, tensor in tensors:
        stored = sizes.setdefault(part, {})
        stored[tensor.dtype] = stored.get(tensor.dtype, 0) + tensor.size
    formats: dict[str, str] = {}
    for name, elements in parameters(profile).items():
        stored = sizes.get(name, {})
        if stored:
            main = max(stored, key=lambda dtype: stored[dtype])
            main = {"int16": "fp16", "int32": "fp32"}.get(main, main)
            formats[name] = exact_format(sum(stored.values()), elements, names=(main,), unit=parse_format(main).unit)
    return {name: form for name, form in formats.items() if form != profile.dtype}
