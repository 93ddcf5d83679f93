"""Mistral's own ``params.json``, in place of a ``config.json``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcalc.core.errors import UnsupportedError
from kvcalc.cost.parameters import parameters
from kvcalc.importers.hugging_face import import_config, read_config

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile

_PARAMS: dict[str, Any] = {
    "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8, "norm_eps": 1e-05,
    "vocab_size": 32768,
}  # fmt: skip


def _from_params(**keys: object) -> ModelProfile:
    return import_config(read_config(json.dumps(_PARAMS | keys)), name="m")[0]


def test_mistrals_own_params_are_read_by_the_names_of_transformers() -> None:
    """Mistral-7B-v0.3 and Mixtral-8x7B as their repositories count them."""
    model = _from_params()
    assert (model.architecture, sum(parameters(model).values())) == ("mistral", 7_248_023_552)
    mixtral = _from_params(vocab_size=32000, moe={"num_experts": 8, "num_experts_per_tok": 2})
    assert (mixtral.architecture, sum(parameters(mixtral).values())) == ("mixtral", 46_702_792_704)


def test_a_list_of_windows_in_params_repeats_over_the_layers() -> None:
    model = _from_params(sliding_window=[None, 1024, 1024, 1024])
    assert [block.name for block in model.blocks[:5]] == ["global", "local", "local", "local", "global"]


def test_pixtral_in_params_has_its_tower() -> None:
    tower = {
        "hidden_size": 1024, "num_channels": 3, "image_size": 1024, "patch_size": 16, "intermediate_size": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16, "adapter_bias": True,
    }  # fmt: skip
    (seen,) = _from_params(vision_encoder=tower).towers
    layer = 4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024
    assert seen.parameters == 3 * 16**2 * 1024 + 1024 + 24 * layer + 1024 * 4096 + 4096 + 4096 * 4096 + 4096


def test_a_quantisation_of_params_that_has_no_counterpart_is_refused() -> None:
    assert _from_params(quantization={"qformat_weight": "fp8_e4m3"}).weight_formats["mlp"] == "fp8"
    with pytest.raises(UnsupportedError, match="quantization"):
        _from_params(quantization={"qformat_weight": "int3"})


def test_a_map_of_every_patch_has_biases_where_nothing_is_said_and_a_merger_has_none() -> None:
    """LLaVA's two maps to 4,096 and Mistral's merger, by ``adapter_bias``."""
    tower = {
        "hidden_size": 1024, "num_channels": 3, "image_size": 1024, "patch_size": 16, "intermediate_size": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16,
    }  # fmt: skip

    def count(**keys: object) -> int:
        (seen,) = _from_params(vision_encoder=tower | keys).towers
        return seen.parameters

    assert count() == count(adapter_bias=True) == count(adapter_bias=False) + 2 * 4096
    merged = count(spatial_merge_size=2)
    assert merged == count(spatial_merge_size=2, adapter_bias=False)
    assert merged == count(spatial_merge_size=2, adapter_bias=True) - 2 * 4096


def test_params_that_tell_no_longest_context_are_of_128_000_tokens() -> None:
    assert _from_params().context_limit == 128_000
    assert _from_params(max_seq_len=32768).context_limit == 32768
