"""Every key of every type that kvcalc imports: numbers below the least, lists that the class would give by itself."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import Full, State
from kvcalc.importers.config_reader import Config
from kvcalc.importers.families.latent import indexer_kinds
from kvcalc.importers.hugging_face import import_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvcalc.core.model import ModelProfile

TYPES = Path(__file__).parents[2] / "conformance" / "transformers_types.json"
CASES: dict[str, Any] = json.loads(TYPES.read_text(encoding="utf-8"))
Path_ = tuple[str, ...]

# Mappings inside a config that describe the text model; those of towers have readers of their own.
TEXT = {"text_config", "thinker_config", "encoder", "decoder", "compress_rates"}
# What there may be none of.
NONE_ALLOWED = {
    "additional_vocab_size", "attn_layer_offset", "expert_layer_offset", "max_window_layers", "num_sparse_decoder_layers", "num_sparse_encoder_layers",
    "decoder_sparse_step", "encoder_sparse_step", "expand", "first_k_dense_replace", "hidden_size_per_layer_input",
    "intermediate_multiple_size", "mamba_expand", "moe_layer_end_index", "moe_layer_start_index", "moe_num_shared_experts",
    "n_shared_experts", "num_dense_layers", "num_experts", "num_kv_shared_layers", "num_local_experts", "num_nextn_predict_layers",
    "num_shared_experts", "qk_nope_head_dim", "qk_rope_head_dim", "shared_expert_intermediate_size", "shared_intermediate_size",
    "zero_expert_num",
}  # fmt: skip
# The last layer, counted from the end.
BELOW_ZERO = {"moe_layer_end_index"}
# Lists that these configs have otherwise than their class would make them, or that the class cannot make.
OWN_LISTS = {
    ("bamba", "attn_layer_indices"), ("ernie4_5_vl_moe", "moe_intermediate_size"),
    ("cohere_compass", "layer_types"), ("cohere_compass_text", "layer_types"), ("dory", "layer_types"),
    ("muse_glimmer", "layer_types"), ("qwen4_exp_text", "ple_layer_ids"),
    ("deepseek_v32", "mlp_layer_types"), ("glm_moe_dsa", "mlp_layer_types"), ("granitemoehybrid", "layer_types"),
    ("laguna", "num_attention_heads_per_layer"), ("lfm2_moe", "layer_types"), ("muse_spark", "layer_types"),
    ("nemo_speechlm", "layers_block_type"), ("nemotron_h", "layers_block_type"), ("nemotron_h_omni", "layers_block_type"),
    ("zamba2", "layers_block_type"),
}  # fmt: skip


def _entries(name: str) -> list[tuple[Path_, Any]]:
    """The values of a config that its text model's rule reads, each with its path."""
    config = CASES[name]["config"]
    _, uses = import_config(config, name=name)
    whole = not TEXT & set(config)
    return [
        (path, value)
        for path, value in _leaves(config)
        if ".".join(path) in uses
        and uses[".".join(path)].use == "used"
        and (whole or len(path) > 1)
        and set(path[:-1]) <= TEXT
    ]


def _leaves(config: dict[str, Any], path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _changed(name: str, path: Path_, *value: object) -> ModelProfile:
    """The model with one key given another value, or left out."""
    config = deepcopy(CASES[name]["config"])
    holder = config
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    if value:
        holder[path[-1]] = value[0]
    return import_config(config, name=name)[0]


def _taken(name: str, value: int) -> set[str]:
    """The whole numbers of a config that may have this value instead."""
    taken = set()
    for path, number in _entries(name):
        if isinstance(number, int) and not isinstance(number, bool):
            try:
                _changed(name, path, value)
            except KvcalcError:
                continue
            taken.add(path[-1])
    return taken


@pytest.mark.parametrize("name", CASES)
def test_no_number_is_below_zero_and_few_are_zero(name: str) -> None:
    assert _taken(name, -1) <= BELOW_ZERO
    assert _taken(name, 0) <= NONE_ALLOWED


def test_a_key_that_may_be_zero_is_so_for_some_type() -> None:
    assert set().union(*(_taken(name, 0) for name in CASES)) == NONE_ALLOWED


@pytest.mark.parametrize("name", CASES)
def test_a_list_that_is_left_out_is_the_one_that_the_class_makes(name: str) -> None:
    """Which layers are local, sparse or recurrent is written out by transformers, and often left out by others."""
    whole, _ = import_config(CASES[name]["config"], name=name)
    for path, value in _entries(name):
        if isinstance(value, list) and (name, path[-1]) not in OWN_LISTS:
            assert _changed(name, path).blocks == whole.blocks, path


@pytest.mark.parametrize("name", CASES)
def test_a_list_of_another_length_or_kind_is_refused(name: str) -> None:
    for path, value in _entries(name):
        if path[-1] in {"layer_types", "mlp_layer_types", "layers_block_type", "indexer_types"}:
            wrongs = [[*value[:-1], "no_such_kind"], [value[0], 7, *value[2:]]]
            # Nemotron-H has as many layers as its list has entries
            wrongs += [] if path[-1] == "layers_block_type" else [value[:-1]]
            for wrong in wrongs:
                with pytest.raises(KvcalcError):
                    _changed(name, path, wrong)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("llama", "decoder"),
        ("mixtral", "moe"),
        ("gemma3_text", "local local local local local global"),
        ("granitemoe_swa", "global local local local global"),
        ("hy_v3", "dense moe moe moe moe"),
        ("afmoe", "local-dense local-moe local-moe global-moe local-moe"),
        ("kimi_linear", "delta-dense delta-moe delta-moe delta-moe attention-moe"),
        ("deepseek_v4", "compressed-128 compressed-128 compressed-128 compressed-4 compressed-128"),
        ("nemotron_h", "mamba moe attention mlp"),
    ],
)
def test_layers_are_named_after_what_sets_them_apart(name: str, blocks: str) -> None:
    """Tables and charts show these names: one where all layers are alike, and no part of it that is the same for all."""
    model, _ = import_config(CASES[name]["config"], name=name)
    names = [block.name for block in model.blocks]
    assert " ".join(names if len(set(names)) > 1 else names[:1]) == blocks


def test_one_layer_in_four_of_muse_spark_is_global_from_the_last_on() -> None:
    model = _changed("muse_spark", ("text_config", "layer_types"))
    assert [block.name for block in model.blocks] == ["global", "local", "local", "local", "global"]


@pytest.mark.parametrize(("layers", "attention"), [(1, [0]), (3, [2]), (4, [3]), (7, [3]), (9, [3, 7])])
def test_one_layer_in_four_of_olmo_hybrid_attends_and_the_last_where_there_are_fewer(
    layers: int, attention: list[int]
) -> None:
    config = {key: value for key, value in CASES["olmo_hybrid"]["config"].items() if key != "layer_types"}
    model, _ = import_config(config | {"num_hidden_layers": layers}, name="m")
    assert [place for place, block in enumerate(model.blocks) if not isinstance(block.mixers[0], State)] == attention


def test_ring_3_has_as_many_delta_heads_of_the_width_that_its_config_says() -> None:
    model, _ = import_config({"model_type": "bailing_hybrid", "linear_num_heads": 20, "linear_head_dim": 96}, name="m")
    states = [mixer for block in model.blocks for mixer in block.mixers if isinstance(mixer, State)]
    assert {(state.heads, state.key_dim, state.value_dim) for state in states} == {(20, 96, 96)}


@pytest.mark.parametrize(("pattern", "full"), [(4, [3]), (3, [2, 5]), (1, [0, 1, 2, 3, 4, 5]), (7, [])])
def test_the_last_layer_of_each_pattern_of_exaone_sees_everything(pattern: int, full: list[int]) -> None:
    config = {
        "model_type": "exaone_moe",
        "num_hidden_layers": 6,
        "sliding_window": 64,
        "sliding_window_pattern": pattern,
    }
    model, _ = import_config(config, name="m")
    assert [place for place, block in enumerate(model.blocks) if isinstance(block.mixers[0], Full)] == full


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ({}, range(9)),
        ({"index_topk_freq": 0}, range(9)),
        ({"index_topk_freq": 3}, [0, 1, 4, 7]),  # the first two, then each third
        ({"index_topk_freq": 3, "index_skip_topk_offset": 0}, [2, 5, 8]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, [0, 1, 2, 6]),
        ({"index_topk_pattern": "FSSFFSSSF"}, [0, 3, 4, 8]),
        ({"index_topk_pattern": ["full", *["shared"] * 8]}, [0]),
        ({"indexer_types": ["shared"] * 8 + ["full"], "index_topk_freq": 3}, [8]),
    ],
)
def test_layers_with_an_indexer_of_their_own_follow_list_pattern_or_frequency(
    given: dict[str, Any], full: Iterable[int]
) -> None:
    kinds = indexer_kinds(Config(given), 9)
    assert [layer for layer, kind in enumerate(kinds) if kind == "full"] == list(full)
