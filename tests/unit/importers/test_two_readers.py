"""The same model as a config of transformers and as the keys of a GGUF file has the same layers: two readers, one model."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvcalc.core.model import State
from kvcalc.importers.checkpoint import TensorTable
from kvcalc.importers.gguf_families import gguf_profile
from kvcalc.importers.hugging_face import import_config

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer, ModelProfile

TYPES = Path(__file__).parents[2] / "conformance" / "transformers_types.json"
CASES: dict[str, Any] = json.loads(TYPES.read_text(encoding="utf-8"))

SSM = {"ssm.conv_kernel": 4}
# type: architecture, changes of the config so that a GGUF file can say it, and the file's keys beside those of the sizes
PAIRS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {"attention.key_length": 32, "attention.value_length": 32}),
    "mamba": ("mamba", {}, SSM | {"ssm.inner_size": 1536, "ssm.state_size": 16, "ssm.time_step_rank": 48}),
    "mamba2": ("mamba2", {}, SSM | {"ssm.inner_size": 8192, "ssm.state_size": 128, "ssm.time_step_rank": 128, "ssm.group_count": 8}),
    "falcon_h1": ("falcon-h1", {}, SSM | {"ssm.inner_size": 1024, "ssm.state_size": 256, "ssm.time_step_rank": 128, "ssm.group_count": 1,
                                          "attention.key_length": 128, "attention.value_length": 128}),
    "granitemoehybrid": ("granitehybrid", {}, SSM | {
        "ssm.inner_size": 512, "ssm.state_size": 24, "ssm.time_step_rank": 16, "ssm.group_count": 2,
        "attention.head_count_kv": [0, 0, 2, 0, 2], "expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 328,
        "expert_shared_feed_forward_length": 72}),
    "nemotron_h": ("nemotron_h_moe", {}, SSM | {
        "ssm.inner_size": 8192, "ssm.state_size": 128, "ssm.time_step_rank": 128, "ssm.group_count": 8,
        "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 7688, 0, 328], "attention.key_length": 32,
        "attention.value_length": 32, "expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 104}),
    # one width for keys and values of the states
    "qwen3_next": ("qwen3next", {"linear_value_head_dim": 16}, SSM | {
        "ssm.state_size": 16, "ssm.time_step_rank": 4, "ssm.group_count": 2, "ssm.inner_size": 64, "attention.key_length": 32,
        "attention.value_length": 32, "expert_count": 16, "expert_used_count": 3, "expert_feed_forward_length": 104,
        "expert_shared_feed_forward_length": 136}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"] * 7}, {
        "shortconv.l_cache": 3, "attention.head_count_kv": [0, 2] * 7, "feed_forward_length": 256}),
}  # fmt: skip


def _both(name: str) -> tuple[ModelProfile, ModelProfile]:
    architecture, changes, keys = PAIRS[name]
    config = CASES[name]["config"] | changes
    one, _ = import_config(config, name="m")
    sizes = {
        "block_count": one.layers,
        "embedding_length": one.hidden_size,
        "feed_forward_length": config.get("intermediate_size", 0),
        "context_length": config.get("max_position_embeddings", 4096),
        "attention.head_count": config.get("num_attention_heads", 1),
        "attention.head_count_kv": config.get("num_key_value_heads", 1),
        "vocab_size": 1003,
    }
    metadata = {f"{architecture}.{key}": value for key, value in (sizes | keys).items()}
    return one, gguf_profile({"general.architecture": architecture} | metadata, TensorTable("m.gguf", {}), name="m")


def _kept(mixer: Mixer) -> dict[str, Any]:
    """What decides cache and matrices; formats and names of variants aside."""
    assert is_dataclass(mixer)
    left = {"requested_format", "recurrent_format", "conv_format", "variant", "conv_window", "value_head_dim"}
    return {field.name: getattr(mixer, field.name) for field in fields(mixer) if field.name not in left} | {
        "values": getattr(mixer, "value_dim", None)
    }


@pytest.mark.parametrize("name", PAIRS)
def test_both_readers_see_the_same_mixers(name: str) -> None:
    one, other = _both(name)
    assert [len(block.mixers) for block in one.blocks] == [len(block.mixers) for block in other.blocks]
    for block, same in zip(one.blocks, other.blocks, strict=True):
        # a state beside attention may be named first or last
        pairs = zip(*(sorted(each.mixers, key=lambda mixer: mixer.kind) for each in (block, same)), strict=True)
        for mixer, again in pairs:
            assert type(mixer) is type(again)
            assert _kept(mixer) == _kept(again)
            if isinstance(mixer, State) and isinstance(again, State):
                assert mixer.conv_kernel == again.conv_kernel


@pytest.mark.parametrize(
    "name", [name for name in PAIRS if name != "nemotron_h"]
)  # whose file says it with its tensors
def test_both_readers_see_the_same_mlps(name: str) -> None:
    one, other = _both(name)
    kinds = [(getattr(block.mlp, "kind", ""), getattr(block.mlp, "width", 0)) for block in one.blocks]
    assert kinds == [(getattr(block.mlp, "kind", ""), getattr(block.mlp, "width", 0)) for block in other.blocks]
