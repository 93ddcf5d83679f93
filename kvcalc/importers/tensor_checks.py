"""Whether the tensors of a Hugging Face checkpoint are those that its config describes, by their names and shapes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError
from kvcalc.core.model import Attention, Mixture
from kvcalc.cost.parameters import block_matrices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvcalc.core.model import Block, ModelProfile
    from kvcalc.importers.checkpoint import Tensor, TensorTable

__all__ = ["check_tensors"]

# Types whose elements stand one by one, so that a tensor's shape is that of its matrix.
_UNPACKED = frozenset({"BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})

_LORA = re.compile(r"(?:^|\.)lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)(?:\.|$)")

# Names that lead to the text model, wherever a multimodal checkpoint keeps it.
_ROOT = r"(?:(?:model|base_model|transformer|backbone|gpt_neox|language_model|text_model|decoder|llm|thinker|rwkv)\.)*"
_LAYER = re.compile(_ROOT + r"(?:layers|layer|h|blocks|block)\.(\d{1,6})\.")
_ENCODER_LAYER = re.compile(r"(?:model\.)?encoder\.(?:layers|block)\.(\d{1,6})\.")
_PREDICTION = re.compile(r"^(?:eh_proj|enorm|hnorm|shared_head|mtp\w*)(?:\.|$)")
_EXPERT = re.compile(r"(?:^|\.)experts\.(\d{1,6})\.")

_TOKENS = re.compile(_ROOT + r"(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|embeddings)\.weight")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_layer|output|head|proj_out)\.")

# What a layer's matrix is called in `kvcalc.cost.parameters`, by the last words of its name.
_MODULE = re.compile(
    r"(?:^|\.)(?P<module>self_attn|attn|attention|self_attention|SelfAttention|mixer|temporal_block|mlp|feed_forward)\."
    r"(?:(?:attention|shared_experts?|\d{1,3})\.)?(?P<leaf>\w{1,40})\.weight$"
)
_MATRICES: Mapping[str, tuple[str, ...]] = {
    "attention.query": ("q_proj", "wq", "q"),
    "attention.key": ("k_proj", "wk", "k"),
    "attention.value": ("v_proj", "wv", "v"),
    "attention.output": ("o_proj", "wo", "out_proj", "o"),
    "attention.fused": ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "W_pack"),
    "attention.query_down": ("q_a_proj",),
    "attention.query_up": ("q_b_proj",),
    "attention.latent": ("kv_a_proj_with_mqa",),
    "attention.latent_up": ("kv_b_proj",),
    "mlp.gate": ("gate_proj",),
    "mlp.up": ("up_proj", "fc1", "c_fc", "dense_h_to_4h"),
    "mlp.down": ("down_proj", "fc2", "dense_4h_to_h"),
    "mlp.fused": ("gate_up_proj",),
}
_MATRIX_OF = {(name.partition(".")[0], leaf): name for name, leaves in _MATRICES.items() for leaf in leaves}
_FUSED = {
    "attention.fused": ("attention.query", "attention.key", "attention.value"),
    "mlp.fused": ("mlp.gate", "mlp.up"),
}

# A matrix's inputs and outputs.
_Sides = tuple[int, int]


def check_tensors(
    table: TensorTable, profile: ModelProfile, config: Mapping[str, Any]
) -> tuple[ModelProfile, tuple[str, ...]]:
    """Return the profile, without an output head where the file is a bare model, and notes on what was not checked.

    Layers and experts are counted by the names of their tensors; shapes are compared where a name is known and the
    elements are not packed. A name that is not known is never a reason to refuse.

    Args:
        table: the tensors.
        profile: the model that the config describes.
        config: the config, for the prediction layers it announces.

    Raises:
        ProfileError: an adapter instead of a model, or a tensor that the config contradicts.
    """
    _refuse_adapter(table)
    layers, encoder = _layers(table.tensors, _LAYER), _layers(table.tensors, _ENCODER_LAYER)
    if not layers:
        note = "the file names its tensors in a way that is not known: they were not checked against the config"
        return profile, (note,)
    _check_layers(layers, profile, config, table.where)
    if profile.encoder is not None and encoder:
        _check_count("encoder layers", max(encoder) + 1, len(profile.encoder.blocks), table.where)
    tokens = next((name for name in table.tensors if _TOKENS.fullmatch(name)), None)
    notes = _check_matrices(layers, profile, table.where)
    if tokens is None or not profile.embeddings:
        return profile, notes
    first = profile.embeddings[0]
    _check_shape(tokens, table.tensors[tokens], [(first.rows, first.width)], "the token table", table.where)
    if _has_head(table, profile, tokens):
        return profile, notes
    if not _is_bare(tokens, config):
        raise _contradiction(
            f"the file has no output head (lm_head), and the config does not tie one to {tokens!r}", table.where
        )
    return replace(profile, head=None), (*notes, "the file has no output head: it was saved from a model without one")


def _refuse_adapter(table: TensorTable) -> None:
    """Refuse a file of adapters alone; some models hold adapters beside their own weights."""
    adapter = next((name for name in table.tensors if _LORA.search(name)), None)
    if adapter is None and not Path(table.where).name.startswith("adapter_model"):
        return
    if any(_LAYER.match(name) and len(tensor.shape) > 1 and not _LORA.search(name)
           for name, tensor in table.tensors.items()):  # fmt: skip
        return
    named = adapter or next(iter(table.tensors), "")
    raise ProfileError(
        f"the file holds an adapter (such as LoRA), not a model: its tensors are named like {named[:120]!r}",
        where=table.where,
        hint="give the base model's file or config.json",
    )


def _layers(tensors: Mapping[str, Tensor], pattern: re.Pattern[str]) -> dict[int, dict[str, tuple[str, Tensor]]]:
    """Return the tensors of each layer: name inside the layer to full name and tensor."""
    layers: dict[int, dict[str, tuple[str, Tensor]]] = {}
    for name, tensor in tensors.items():
        layer = pattern.match(name)
        if layer is not None:
            layers.setdefault(int(layer[1]), {})[name[layer.end() :]] = (name, tensor)
    return layers


def _check_layers(
    layers: Mapping[int, Iterable[str]], profile: ModelProfile, config: Mapping[str, Any], where: str
) -> None:
    """Refuse layers too many or too few; prediction layers may follow the model's own."""
    predicted = profile.layers + _announced(config)
    own = [
        number for number, inner in layers.items()
        if number < profile.layers or not (number < predicted or any(_PREDICTION.search(name) for name in inner))
    ]  # fmt: skip
    _check_count("layers", max(own, default=-1) + 1, profile.layers, where)
    missing = next((number for number, block in enumerate(profile.blocks)
                    if number not in layers and block.vector_parameters), None)  # fmt: skip
    if missing is not None:
        raise _contradiction(f"the file has no tensor of layer {missing}; the config implies one", where)


def _announced(config: Mapping[str, Any]) -> int:
    """Count the multi-token-prediction layers that a config announces."""
    parts = (config, *(part for part in config.values() if isinstance(part, dict)))
    counts = [value for part in parts for key, value in part.items() if "nextn" in key or "mtp" in key]
    return max((count for count in counts if isinstance(count, int)), default=0)


def _check_count(what: str, count: int, implied: int, where: str) -> None:
    if count != implied:
        raise _contradiction(f"the file has {count} {what}, by its tensors' names; the config implies {implied}", where)


def _contradiction(what: str, where: str) -> ProfileError:
    return ProfileError(what, where=where, hint="is the config.json beside it that of this checkpoint?")


def _has_head(table: TensorTable, profile: ModelProfile, tokens: str) -> bool:
    """Return whether the file holds the output head that the config implies, of whatever name."""
    head = profile.head
    if head is None or head.tied:
        return True
    sides = (head.rows, head.width or profile.hidden_size)
    unnumbered = [name for name, tensor in table.tensors.items() if _LAYER.match(name) is None and name != tokens
             and (_HEAD.search(name) or tensor.shape == sides)]  # fmt: skip
    named = next((name for name in unnumbered if name.endswith("lm_head.weight")), None)
    if named is not None:
        _check_shape(named, table.tensors[named], [sides], "the output head", table.where)
    return bool(unnumbered)


def _is_bare(tokens: str, config: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint was saved from the class without a head, as those of embedding models are."""
    named = config.get("architectures")
    saved_as = named[0] if isinstance(named, list) and named else None
    return tokens.count(".") == 1 or (isinstance(saved_as, str) and saved_as.endswith("Model"))


def _check_matrices(
    layers: Mapping[int, Mapping[str, tuple[str, Tensor]]], profile: ModelProfile, where: str
) -> tuple[str, ...]:
    implied = {block: _implied(block, profile.hidden_size) for block in profile.block_counts}
    checked = 0
    for number, inner in sorted(layers.items()):
        if number >= profile.layers:
            continue
        block = profile.blocks[number]
        _check_experts(inner, block, number, where)
        for local, (name, tensor) in inner.items():
            matrix = _matrix_of(local)
            sides = implied[block].get(matrix or "")
            if matrix and sides and tensor.dtype in _UNPACKED:
                _check_shape(name, tensor, sides, f"{matrix} of layer {number}", where)
                checked += matrix.startswith("attention")
    if checked or not any(name.startswith("attention.") for sides in implied.values() for name in sides):
        return ()
    return ("the file's attention matrices are packed or not named as usual: their shapes were not checked",)


def _matrix_of(local: str) -> str | None:
    match = _MODULE.search(local)
    if match is None:
        return None
    leaf, module = match["leaf"], match["module"]
    if module in {"mlp", "feed_forward"}:
        return _MATRIX_OF.get(("mlp", leaf))
    either = _MATRIX_OF.get(("mlp", leaf)) if module == "mixer" else None
    return _MATRIX_OF.get(("attention", leaf), either)


def _implied(block: Block, hidden: int) -> dict[str, list[_Sides]]:
    """Return the sides that a layer's matrices may have, by name."""
    sides: dict[str, list[_Sides]] = {}
    for matrix in block_matrices(block, hidden):
        sides.setdefault(matrix.name, []).append((matrix.outputs, matrix.inputs))
    for mixer in block.mixers:
        if isinstance(mixer, Attention) and mixer.output_gate and "attention.query" in sides:
            # the gate stands in a matrix of its own in some families, beside the queries in others
            sides["attention.query"].append((mixer.heads * mixer.head_dim, mixer.inputs or hidden))
    for fused, names in _FUSED.items():
        if all(len(sides.get(name, ())) == 1 for name in names):
            sides[fused] = [(sum(sides[name][0][0] for name in names), sides[names[0]][0][1])]
    return sides


def _check_experts(inner: Iterable[str], block: Block, layer: int, where: str) -> None:
    numbers = [int(match[1]) for match in map(_EXPERT.search, inner) if match is not None]
    if numbers and isinstance(block.mlp, Mixture):
        _check_count(f"experts in layer {layer}", max(numbers) + 1, block.mlp.experts, where)


def _check_shape(name: str, tensor: Tensor, implied: list[_Sides], what: str, where: str) -> None:
    """Compare the sides in either order: some families store a matrix the other way round."""
    if tensor.dtype not in _UNPACKED or any(sorted(tensor.shape) == sorted(sides) for sides in implied):
        return
    wanted = " or ".join(str(list(sides)) for sides in dict.fromkeys(implied))
    raise _contradiction(
        f"the tensor {name[:120]!r} has the shape {str(list(tensor.shape))[:80]}; the config implies {wanted} ({what})",
        where,
    )
