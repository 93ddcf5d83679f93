"""DeepSeek-V4.1-Flash: parameters and bytes of its published checkpoint, and what a step reads of entries that layers share.

The counts are those of the headers of its 48 shards (revision dba1be0a; bojieli/OpenTallas, ``data/inventory/deepseek-v4.1-flash.json``).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

import kvcalc
from kvcalc.core.errors import KvcalcError
from kvcalc.core.formats import FORMATS
from kvcalc.core.workload import Formats, decode_step
from kvcalc.cost.attention import mixer_work
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import parameters
from kvcalc.engines.options import EngineOptions
from kvcalc.importers.hugging_face import import_config

ENGRAM_ROWS = [384_006_168, 384_016_682]
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32], "scale_fmt": "ue8m0", "expert_dtype": "fp4",
    },
    "text_config": {
        "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120, "moe_intermediate_size": 2304,
        "num_hidden_layers": 40, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
        "q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8, "max_position_embeddings": 1048576, "n_routed_experts": 384,
        "n_shared_experts": 1, "num_experts_per_tok": 6, "sliding_window": 128, "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
        "kv_source_layer_ids": [2, 8, 14, 20], "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "index_n_heads": 32,
        "index_head_dim": 128, "index_topk": 512, "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048,
        "candidate_block_size": 8, "hc_mult": 4, "engram_layer_ids": [1, 14], "engram_num_embeddings": ENGRAM_ROWS,
        "engram_max_ngram_size": 4, "engram_vocab_size": 16000000, "engram_n_heads": 8, "engram_head_dim": 256,
        "num_nextn_predict_layers": 3,
    },
    "vision_config": {
        "model_type": "deepseek_v41_vision", "num_hidden_layers": 32, "hidden_size": 1024, "num_attention_heads": 16,
        "intermediate_size": 2816, "patch_size": 14, "downsample_ratio": 3,
    },
}  # fmt: skip
# Parameters: of the layers and the head, of routed experts, and of tables and tower.
DENSE, ROUTED, RESIDENT = 7_637_123_184, 543_581_798_400, 197_761_031_680
# Bytes of the files, of the three prediction layers in them, and by which biases for images, in 32 bits, are counted short.
FILES, DRAFT, SHORT = 510_286_023_000, 713_428_872 + 7_219_445_760, 2 * 40 * 384
LAYERS = {"local": 2, "compressed-2": 3, "reading-2": 15, "compressed-1": 1, "reading-1": 15, "choosing-1": 4}


@pytest.fixture(scope="module")
def model() -> kvcalc.ModelProfile:
    return import_config(CONFIG, name="v41")[0]


def _changed(**keys: Any) -> dict[str, Any]:
    config = deepcopy(CONFIG)
    config["text_config"] |= keys
    return config


def _layer(model: kvcalc.ModelProfile, name: str) -> Any:
    return next(block for block in model.blocks if block.name.removesuffix("-ngram") == name).mixers[0]


def test_it_has_the_parameters_of_its_checkpoint(model: kvcalc.ModelProfile) -> None:
    parts = parameters(model)
    assert parts["experts"] == ROUTED
    assert parts["lookup"] == sum(ENGRAM_ROWS) * 256
    assert sum(parts.values()) == DENSE + ROUTED + RESIDENT


def test_it_has_the_bytes_of_its_checkpoint(model: kvcalc.ModelProfile) -> None:
    weights = kvcalc.size(kvcalc.deployment(model)).weights
    assert weights.total_bytes == FILES - DRAFT - SHORT


def test_the_catalogue_has_it(model: kvcalc.ModelProfile) -> None:
    shipped = kvcalc.load_model("deepseek-ai/DeepSeek-V4.1-Flash")
    assert (shipped.blocks, shipped.embeddings, shipped.towers) == (model.blocks, model.embeddings, model.towers)
    assert shipped.weight_formats == model.weight_formats


def test_each_layer_is_what_the_lists_of_sources_make_it(model: kvcalc.ModelProfile) -> None:
    names = [block.name.removesuffix("-ngram") for block in model.blocks]
    assert {name: names.count(name) for name in names} == LAYERS
    assert [index for index, block in enumerate(model.blocks) if block.lookup] == [1, 14]
    assert names[20] == "compressed-1"
    assert [index for index, name in enumerate(names) if name == "choosing-1"] == [24, 28, 32, 36]


@pytest.mark.parametrize("tokens", [1, 2, 127, 128, 129, 1000, 1001])
def test_only_sources_keep_entries_and_keys(model: kvcalc.ModelProfile, tokens: int) -> None:
    """Forty windows; a key and an entry for two tokens in three layers, for one in another; an odd token waits in 16 bits here."""
    windows = 40 * min(tokens, 128) * 512
    entries = (512 + 128) * (3 * (tokens // 2) + tokens)
    waiting = 3 * (tokens % 2) * 2 * 512
    assert cache_bytes(model, tokens, Formats()).growing == 2 * (windows + entries + waiting)


def test_layers_that_read_those_of_others_read_them_again(model: kvcalc.ModelProfile) -> None:
    """The entries move once in the bound; without overlap each layer fetches what it attends to."""
    group = decode_step(batch=1, context=100_000)
    source, reader, chooser = (
        mixer_work(_layer(model, f"{kind}-1"), group, Formats()) for kind in ("compressed", "reading", "choosing")
    )
    window, chosen = 128 * 512 * 2, 512 * 512 * 2
    assert (source.read_bytes, source.reread_bytes) == (window + chosen + 100_000 * 128 * 2, 0)
    assert (reader.read_bytes, reader.reread_bytes) == (window, chosen)
    # keys of the candidates alone: 2,048 blocks of 8 entries
    assert (chooser.read_bytes, chooser.reread_bytes) == (window, chosen + 16_384 * 128 * 2)
    assert chooser.flop - reader.flop == 2 * 16_384 * 32 * 128
    assert source.flop - reader.flop == 2 * 100_000 * 32 * 128


def test_entries_in_nvfp4_stand_beside_a_window_and_keys_in_fp8(model: kvcalc.ModelProfile) -> None:
    """Records of vLLM 0.33: 528 bytes of the window, 288 of an entry, 132 of a key."""
    formats = Formats(key=FORMATS["nvfp4_ds_mla"], value=FORMATS["nvfp4_ds_mla"])
    assert cache_bytes(model, 1000, formats).growing == 40 * 128 * 528 + (3 * 500 + 1000) * (288 + 132)


def test_a_token_looks_up_24_rows_of_each_table(model: kvcalc.ModelProfile) -> None:
    steps = kvcalc.explain("decode", kvcalc.deployment(model, gpu="h200", gpus=8), batch=1, context=100)
    read = next(step for step in steps if step.quantity == "embedding.weight_bytes")
    assert read.value == 2 * 5120 + 2 * 24 * 264


def test_vllm_keeps_the_tables_in_host_memory(model: kvcalc.ModelProfile) -> None:
    tables = sum(ENGRAM_ROWS) * 264
    whole = kvcalc.size(kvcalc.deployment(model)).weights.total_bytes
    served = kvcalc.deployment(model, gpu="b200", gpus=4, engine="vllm")
    assert kvcalc.size(served).weights.total_bytes == whole - tables
    assert any("host memory" in note and "188.83 GiB" in note for note in kvcalc.fit(served).notes)
    options = EngineOptions(engram_cpu_offload=False)
    kept = kvcalc.deployment(model, gpu="b200", gpus=4, engine="vllm", options=options)
    assert kvcalc.size(kept).weights.total_bytes == whole
    assert kvcalc.fit(kept).budget.weight_bytes - kvcalc.fit(served).budget.weight_bytes == tables // 4


def test_words_for_quantised_weights_leave_the_tables_as_they_are(model: kvcalc.ModelProfile) -> None:
    assert kvcalc.deployment(model, weights="int4").formats.of("lookup").name == "mxfp8"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"compress_ratios": [0, 0, 4] + [1] * 37}, "compress_ratios"),
        ({"compress_ratios": [0] * 10}, "at least 40"),
        ({"kv_source_layer_ids": [8, 14, 20]}, "a source of ratio 2 up to layer 2"),
        ({"kv_source_layer_ids": [2, 8, 14]}, "layer 14 with a ratio of 2"),
        ({"kv_source_layer_ids": [2, 8, 14, 20, 99]}, "layers below 40"),
        ({"engram_num_embeddings": [100]}, "2 entries"),
        ({"engram_layer_ids": [1, 99]}, "a layer below 40"),
        ({"engram_num_embeddings": [100, 1]}, "at least 24"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(KvcalcError) as refused:
        import_config(_changed(**keys), name="v41")
    assert said in str(refused.value)


def test_transformers_has_no_class_of_it(model: kvcalc.ModelProfile) -> None:
    with pytest.raises(kvcalc.UnsupportedError, match="no class"):
        kvcalc.size(kvcalc.deployment(model), engine="transformers")
