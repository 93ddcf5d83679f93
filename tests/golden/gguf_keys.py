"""Headers of GGUF files without their tensors, one for each kind of architecture, all of whose keys say something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.importers.checkpoint import TensorTable
from kvcalc.importers.gguf_families import gguf_profile

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile

__all__ = ["HEADERS", "imported"]

_PLAIN: dict[str, Any] = {
    "block_count": 6, "context_length": 4096, "embedding_length": 256, "feed_forward_length": 640, "vocab_size": 1000,
    "attention.head_count": 8, "attention.head_count_kv": 2, "attention.key_length": 48, "attention.value_length": 40,
}  # fmt: skip
_EXPERTS = {
    "expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 96, "expert_shared_count": 1,
    "expert_shared_feed_forward_length": 112, "leading_dense_block_count": 2,
}  # fmt: skip
_WINDOWS = {
    "attention.sliding_window": 37, "attention.key_length_swa": 24, "attention.value_length_swa": 20,
    "attention.shared_kv_layers": 2,
}  # fmt: skip
_PATTERN = _WINDOWS | {"attention.sliding_window_pattern": [1, 1, 0, 1, 1, 0]}
_LATENT = {
    "attention.q_lora_rank": 72, "attention.kv_lora_rank": 64, "attention.key_length": 80, "attention.value_length": 64,
    "attention.key_length_mla": 56, "attention.value_length_mla": 44, "rope.dimension_count": 16,
}  # fmt: skip
_INDEX = {"attention.indexer.head_count": 4, "attention.indexer.key_length": 32, "attention.indexer.top_k": 64,
          "attention.indexer.block_size": 16}  # fmt: skip
_STATES = {
    "ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 16, "ssm.time_step_rank": 8, "ssm.group_count": 2,
    "attention.head_count_kv": [0, 2, 0, 0, 2, 0],
}  # fmt: skip
_KINDS: dict[str, dict[str, Any]] = {
    "llama": {}, "falcon": {}, "command-r": {}, "bloom": {}, "gptneox": {"use_parallel_residual": True}, "stablelm": {},
    "gpt2": {}, "phi3": _WINDOWS, "qwen2moe": _EXPERTS, "qwen3moe": _EXPERTS, "arctic": _EXPERTS, "grok": _EXPERTS,
    "gemma2": _WINDOWS, "gemma3": _WINDOWS, "gemma3n": _WINDOWS, "gemma4": _PATTERN | _EXPERTS, "cohere2": _WINDOWS,
    "gpt-oss": _WINDOWS | _EXPERTS, "llama4": _EXPERTS, "exaone4": _WINDOWS, "laguna": _WINDOWS | _EXPERTS,
    "deepseek2": _LATENT | _EXPERTS, "minicpm3": _LATENT, "deepseek32": _LATENT | _EXPERTS | _INDEX,
    "glm-dsa": _LATENT | _EXPERTS | _INDEX, "jamba": _STATES | _EXPERTS, "mamba": _STATES, "mamba2": _STATES,
    "nemotron_h": _STATES, "falcon-h1": _STATES | {"attention.head_count_kv": 2}, "granitehybrid": _STATES | _EXPERTS, "plamo2": _STATES,
    "qwen3next": _STATES | _EXPERTS | {"full_attention_interval": 3}, "qwen35": _STATES | {"full_attention_interval": 3},
    "kimi-linear": _LATENT | _EXPERTS | _STATES | {"kda.head_dim": 32}, "lfm2": {"shortconv.l_cache": 3} | _STATES,
    "minimax-01": _EXPERTS | {"attention.recurrent_layers": [1, 0, 1, 1, 0, 1]}, "minimax-m3": _EXPERTS | _INDEX,
    "rwkv6": {"wkv.head_size": 32, "token_shift_count": 2}, "rwkv7": {"wkv.head_size": 32, "token_shift_count": 2},
    "mimo2": _PATTERN | _EXPERTS, "glm4moe": _EXPERTS | {"nextn_predict_layers": 1}, "hy_v3": _EXPERTS,
}  # fmt: skip
HEADERS = {name: {"model_type": name, **_PLAIN, **keys} for name, keys in _KINDS.items()}


def imported(header: dict[str, Any]) -> ModelProfile:
    """Return the model of a header; ``model_type`` is its architecture."""
    name = header["model_type"]
    metadata = {f"{name}.{key}": value for key, value in header.items() if key != "model_type"}
    return gguf_profile({"general.architecture": name, **metadata}, TensorTable("model.gguf", {}), name="model")
