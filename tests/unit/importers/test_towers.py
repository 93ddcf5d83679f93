"""Towers beside the text model: their parameters from a config, as the classes of transformers 5.24.0 build them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import kvcalc
from kvcalc import api
from kvcalc.core.errors import KvcalcError, ProfileError
from kvcalc.core.workload import Formats, Parallel
from kvcalc.cost.parameters import active_parameters, parameters, tower_parameters
from kvcalc.cost.sharding import rank_parameters
from kvcalc.importers.config_reader import Config
from kvcalc.importers.hugging_face import import_config
from kvcalc.importers.safetensors import import_safetensors

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.core.model import ModelProfile

_TEXT: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 160, "num_hidden_layers": 1, "num_attention_heads": 8, "vocab_size": 32,
    "num_key_value_heads": 2, "intermediate_size": 24, "tie_word_embeddings": False, "torch_dtype": "float16",
}  # fmt: skip
_SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 768, "image_size": 224, "intermediate_size": 3072,
    "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 16, "vision_use_head": True,
}  # fmt: skip
_CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096,
    "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 14,
}  # fmt: skip
_PIXTRAL = {
    "model_type": "pixtral", "head_dim": 64, "hidden_size": 1024, "image_size": 1540, "intermediate_size": 4096,
    "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 14,
}  # fmt: skip
_QWEN3 = {
    "deepstack_visual_indexes": [0], "depth": 2, "hidden_size": 1152, "in_channels": 3, "intermediate_size": 4304,
    "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 3584, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
_INTERN = {
    "hidden_size": 1024, "image_size": [448, 448], "intermediate_size": 4096, "num_attention_heads": 16,
    "num_channels": 3, "num_hidden_layers": 2, "patch_size": [14, 14], "use_absolute_position_embeddings": True,
    "use_mean_pooling": True,
}  # fmt: skip
_WHISPER = {
    "d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 2,
    "max_source_positions": 1500, "num_mel_bins": 128,
}  # fmt: skip


def _model(kind: str, *, hidden: int = 160, **top: Any) -> ModelProfile:
    text = _TEXT | {"hidden_size": hidden, "intermediate_size": 14336}
    return import_config({"model_type": kind, "text_config": text, **top}, name="m")[0]


# The counts of `transformers_types`: tower and projector of each class, built without storage from such a config.
@pytest.mark.parametrize(
    ("kind", "hidden", "vision", "top", "total"),
    [
        ("gemma3", 160, _SIGLIP, {}, 22_005_504 + 123_648),
        ("gemma3", 160, _SIGLIP | {"vision_use_head": False}, {}, 22_005_504 + 123_648 - 7_087_104),
        ("deepseek_vl", 160, _SIGLIP, {}, 22_005_504 + 148_800),
        ("llava", 160, _CLIP, {}, 26_390_528 + 189_760),
        ("llava_next", 160, _CLIP, {}, 26_390_528 + 189_760 + 160),
        ("vipllava", 160, _CLIP, {}, 26_390_528 + 855_360),
        ("video_llava", 160, _CLIP | {"image_size": 224}, {}, 2 * 26_062_848 + 189_760),
        ("mistral3", 160, _PIXTRAL, {}, 34_161_664 + 4_384_768),
        ("internvl", 256, _INTERN | {"attention_bias": False}, {}, 26_844_160 + 1_122_816),
        ("qianfan_ocr", 160, _INTERN | {"attention_bias": True}, {}, 26_850_304 + 689_472),
        ("qwen3_vl_moe", 160, _QWEN3, {}, 110_429_216),
        ("qwen3_5", 160, _QWEN3 | {"deepstack_visual_indexes": []}, {}, 72_663_072),
        (
            "got_ocr2",
            256,
            {"global_attn_indexes": [0], "hidden_size": 768, "image_size": 1024, "mlp_dim": 3072, "patch_size": 16,
             "num_attention_heads": 12, "num_hidden_layers": 2, "output_channels": 256, "window_size": 14},
            {},
            18_719_232 + 2_425_088,
        ),
        (
            "blip-2",
            768,
            {"hidden_size": 1408, "image_size": 224, "intermediate_size": 6144, "num_hidden_layers": 2,
             "patch_size": 14},
            {"num_query_tokens": 32, "qformer_config": {
                "cross_attention_frequency": 2, "encoder_hidden_size": 1408, "hidden_size": 768,
                "intermediate_size": 3072, "num_hidden_layers": 2}},
            24_576 + 51_695_744 + 17_524_224 + 590_592,
        ),
        (
            "nemotron_h_omni",
            160,
            {"hidden_size": 1280, "max_img_size": 2048, "mlp_ratio": 4.0, "num_cls_tokens": 3, "num_hidden_layers": 2,
             "num_registers": 7, "patch_dim": 768, "patch_size": 16, "video_temporal_patch_size": 2},
            {"projector_hidden_size": 4096, "downsample_ratio": 0.5},
            63_293_440 + 21_632_000,
        ),
        (
            "kimi_k25",
            7168,
            {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 2, "pos_emb_height": 64,
             "pos_emb_width": 64, "patch_size": 14, "merge_kernel_size": [2, 2]},
            {},
            35_878_432 + 54_277_888,
        ),
        (
            "glm4v",
            512,
            {"attention_bias": False, "depth": 2, "hidden_size": 1536, "image_size": 336, "intermediate_size": 13696,
             "num_heads": 12, "out_hidden_size": 4096, "patch_size": 14, "spatial_merge_size": 2},
            {},
            269_576_704,
        ),
        (
            "qwen2_vl",
            8192,
            {"depth": 2, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14},
            {},
            85_435_904,
        ),
        (
            "exaone4_5",
            4096,
            {"depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16, "num_key_value_heads": 8,
             "out_hidden_size": 3584, "patch_size": 14},
            {},
            2_671_868_672,
        ),
    ],
)  # fmt: skip
def test_vision_towers_have_the_parameters_of_their_classes(
    kind: str, hidden: int, vision: dict[str, Any], top: dict[str, Any], total: int
) -> None:
    assert tower_parameters(_model(kind, hidden=hidden, vision_config=vision, **top)) == {"vision": total}


@pytest.mark.parametrize(
    ("kind", "hidden", "total"),
    [
        ("qwen2_audio", 256, 46_684_160 + 327_936),
        ("audioflamingo3", 256, 46_684_160 + 393_728),
        ("voxtral", 160, 46_684_160 + 844_800),
    ],
)
def test_audio_towers_have_the_parameters_of_their_classes(kind: str, hidden: int, total: int) -> None:
    # Voxtral and Audio Flamingo say hidden_size where Qwen2-Audio says d_model
    names = {"d_model": "hidden_size", "encoder_layers": "num_hidden_layers", "encoder_ffn_dim": "intermediate_size"}
    audio = _WHISPER if kind == "qwen2_audio" else {names.get(key, key): value for key, value in _WHISPER.items()}
    assert tower_parameters(_model(kind, hidden=hidden, audio_config=audio)) == {"audio": total}


# Built without storage from the defaults of the classes themselves.
@pytest.mark.parametrize(
    ("kind", "text", "totals"),
    [
        ("lfm3_vl", 2048, {"vision": 164_206_336 + 25_174_016}),
        ("idefics2", 4096, {"vision": 87_453_696 + 732_209_152}),
        ("hyperclovax_vision_v2", 4096, {"vision": 3_083_025_152 + 14_684_160}),
        ("minicpmv4_7", 4096, {"vision": 135_366_144 + 22_033_408}),
        ("qwen4_exp", 2560, {"vision": 453_650_672}),
        ("step3p7", 4096, {"vision": 1_981_014_784}),
    ],
)
def test_a_tower_of_defaults_is_that_of_the_class(kind: str, text: int, totals: dict[str, int]) -> None:
    top: dict[str, Any] = {}
    if kind == "lfm3_vl":
        own = ["conv", "conv", *["full_attention", "conv"] * 6]
        top = {"projector_hidden_size": 4096, "vision_config": {"layer_types": own}}
    if kind == "idefics2":
        top = {"perceiver_config": {"hidden_size": 4096}}
    assert tower_parameters(_model(kind, hidden=text, **top)) == totals


# dots3's classes, built without storage: pyramids of experts and Whisper's names, as checkpoints have them.
@pytest.mark.parametrize(
    ("part", "config", "total"),
    [
        ("vision", {}, 6_871_277_312),
        (
            "vision",
            {
                "embed_dim": 96, "adapter_in_dim": 96, "num_heads": 4, "use_bias": True, "intermediate_size": 130,
                "num_hidden_layers": 4, "pyramid_num_routed": [-1, 3, 8, 64],
            },
            47_989_760,
        ),
        (
            "vision",
            {
                "hidden_size": 96, "adapter_in_dim": 96, "num_attention_heads": 4, "num_hidden_layers": 3,
                "mlp_layer_types": ["dense", "sparse", "sparse"], "num_local_experts": 6,
                "per_layer_config": {"0": {"intermediate_size": 100}, "2": {"moe_intermediate_size": 44}},
            },
            6_042_800,
        ),
        ("audio", {}, 886_199_680),
        (
            "audio",
            {
                "hidden_size": 96, "num_attention_heads": 4, "intermediate_size": 130, "num_hidden_layers": 3,
                "adapter_input_size": 96, "adapter_out_dim": 80, "feature_size": 77, "downsample_hidden_size": 12,
                "attention_bias": False,
            },
            253_340,
        ),
        (
            "audio",
            {
                "whisper_config": {"d_model": 96, "encoder_attention_heads": 4, "encoder_layers": 3,
                                   "encoder_ffn_dim": 140, "num_mel_bins": 80},
                "whisper_adapter_in_dim": 96, "adapter_output_size": 70,
            },
            4_859_928,
        ),
    ],
)  # fmt: skip
def test_dots3_sees_with_ever_more_experts_and_hears(part: str, config: dict[str, Any], total: int) -> None:
    top = {"vision_config": None, "audio_config": None, f"{part}_config": config}
    text = {"model_type": "dots3_note_text"}
    model = import_config({"model_type": "dots3_note", "text_config": text, **top}, name="m")[0]
    assert tower_parameters(model) == {part: total}
    flat = import_config({"model_type": "dots3_note", **top}, name="m")[0]
    assert parameters(flat) == parameters(model)


@pytest.mark.parametrize("pyramid", [[-1, 4], [-1, 4, 8.5], [-1, 4, True], "much"])
def test_a_pyramid_of_experts_that_makes_no_sense_is_not_counted(pyramid: Any) -> None:
    vision = {"num_hidden_layers": 3, "pyramid_num_routed": pyramid}
    top = {"model_type": "dots3_note", "vision_config": vision, "audio_config": None}
    model = import_config(top, name="m")[0]
    assert not model.towers
    assert any("pyramid_num_routed" in note for note in model.notes)


def test_dots3_at_the_top_level_is_that_of_its_class() -> None:
    model = import_config({"model_type": "dots3_note"}, name="m")[0]
    assert sum(parameters(model).values()) == 287_309_195_008
    with pytest.raises(ProfileError, match="nearly 'n_routed_experts'"):
        import_config({"model_type": "dots3_note", "n_routed_expert": 3}, name="m")


def test_a_model_that_sees_and_hears_has_two_towers() -> None:
    text = _TEXT | {"model_type": "phi4_multimodal", "hidden_size": 3072, "num_attention_heads": 24}
    assert tower_parameters(import_config(text, name="m")[0]) == {"vision": 441_550_016, "audio": 466_432_256}


def test_a_conformer_is_read_through_queries() -> None:
    encoder = {
        "context_size": 200, "conv_kernel_size": 15, "dim_head": 128, "feedforward_mult": 4, "hidden_dim": 1024,
        "input_dim": 160, "max_pos_emb": 512, "num_heads": 8, "num_layers": 2, "output_dim": 42,
    }  # fmt: skip
    former = {
        "cross_attention_frequency": 2, "encoder_hidden_size": 1408, "hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 2,
    }  # fmt: skip
    top = {"encoder_config": encoder, "projector_config": former, "downsample_rate": 5, "window_size": 37}
    assert tower_parameters(_model("granite_speech", hidden=256, **top)) == {"audio": 55_163_178 + 17_726_464}


def test_intern_vit_has_the_parameters_of_its_own_code() -> None:
    # OpenGVLab/InternViT-300M-448px: 24 layers of 12,594,176, 1,025 positions, a class token and patches of 14 x 14
    tower = {
        "model_type": "intern_vit_6b", "hidden_size": 1024, "image_size": 448, "intermediate_size": 4096,
        "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "qkv_bias": True,
        "qk_normalization": False, "norm_type": "layer_norm",
    }  # fmt: skip
    layer = 4 * 1024 * 1024 + 4 * 1024 + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024 + 2 * 1024
    whole = 24 * layer + 1026 * 1024 + (3 * 14 * 14 + 1) * 1024
    projector = 2 * 4096 + 4097 * 160 + 161 * 160
    assert tower_parameters(_model("internvl_chat", vision_config=tower)) == {"vision": whole + projector}
    assert whole == 304_012_288


def test_a_tower_is_loaded_and_no_token_passes_it() -> None:
    with_tower = _model("llava", vision_config=_CLIP)
    without = with_tower.text_only()
    assert sum(parameters(with_tower).values()) - sum(parameters(without).values()) == 26_390_528 + 189_760
    assert active_parameters(with_tower) == active_parameters(without)
    one, other = (
        kvcalc.decode(kvcalc.deployment(model, gpu="h100-sxm"), contexts=[128]).rows[0]
        for model in (with_tower, without)
    )
    assert (one.flop, one.weight_bytes, one.ideal_s) == (other.flop, other.weight_bytes, other.ideal_s)


def test_ranks_that_divide_the_heads_share_a_tower() -> None:
    model = _model("llava", vision_config=_CLIP)
    size = tower_parameters(model)["vision"]
    held = {ranks: rank_parameters(model, Formats(), Parallel(tensor=ranks))["vision"] for ranks in (1, 2, 3, 4)}
    assert held == {1: size, 2: size // 2, 3: size, 4: size // 4}


def test_a_tower_without_a_rule_is_named() -> None:
    assert any(
        "vision tower is not counted" in note for note in _model("llava", vision_config={"model_type": "x"}).notes
    )
    model = _model("fast_vlm", vision_config=_CLIP, talker_config={"a": 1})
    assert not model.towers
    assert [note for note in model.notes if "talker_config" in note]


def test_a_tower_that_the_config_leaves_out_is_that_of_its_class() -> None:
    model = _model("gemma3")
    assert tower_parameters(model)["vision"] > 0
    assert any("the defaults of its class stand in" in note for note in model.notes)
    assert not _model("gemma3", vision_config=None).towers


_NAMES = {
    "vision_tower.vision_model.embeddings.class_embedding": (32,),
    "vision_tower.vision_model.embeddings.patch_embedding.weight": (32, 3, 14, 14),
    "vision_tower.vision_model.embeddings.position_embedding.weight": (5, 32),
    "vision_tower.vision_model.pre_layrnorm.weight": (32,), "vision_tower.vision_model.pre_layrnorm.bias": (32,),
    "vision_tower.vision_model.post_layernorm.weight": (32,), "vision_tower.vision_model.post_layernorm.bias": (32,),
    "multi_modal_projector.linear_1.weight": (160, 32), "multi_modal_projector.linear_1.bias": (160,),
    "multi_modal_projector.linear_2.weight": (160, 160), "multi_modal_projector.linear_2.bias": (160,),
    "language_model.model.embed_tokens.weight": (32, 160), "language_model.lm_head.weight": (32, 160),
    "language_model.model.norm.weight": (160,),
}  # fmt: skip
_LAYER = {
    **{f"self_attn.{name}_proj.weight": (32, 32) for name in ("q", "k", "v", "out")},
    **{f"self_attn.{name}_proj.bias": (32,) for name in ("q", "k", "v", "out")},
    "layer_norm1.weight": (32,), "layer_norm1.bias": (32,), "layer_norm2.weight": (32,), "layer_norm2.bias": (32,),
    "mlp.fc1.weight": (64, 32), "mlp.fc1.bias": (64,), "mlp.fc2.weight": (32, 64), "mlp.fc2.bias": (32,),
}  # fmt: skip
_DECODER = {
    "self_attn.q_proj.weight": (160, 160), "self_attn.k_proj.weight": (40, 160), "self_attn.v_proj.weight": (40, 160),
    "self_attn.o_proj.weight": (160, 160), "mlp.gate_proj.weight": (24, 160), "mlp.up_proj.weight": (24, 160),
    "mlp.down_proj.weight": (160, 24), "input_layernorm.weight": (160,), "post_attention_layernorm.weight": (160,),
}  # fmt: skip


def test_catalogue_config_and_header_weigh_the_same(tmp_path: Path) -> None:
    small = _CLIP | {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "image_size": 28}
    config = {"model_type": "llava", "torch_dtype": "float16", "vision_config": small, "text_config": _TEXT}
    shapes = _NAMES | {f"language_model.model.layers.0.{name}": shape for name, shape in _DECODER.items()}
    for layer in range(2):
        shapes |= {f"vision_tower.vision_model.encoder.layers.{layer}.{name}": shape for name, shape in _LAYER.items()}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    described = kvcalc.load_model(tmp_path / "config.json")
    (tmp_path / "m.yaml").write_text(api.profile_text(described))
    stored = import_safetensors(tmp_path / "model.safetensors", "m")
    sizes = [kvcalc.size(kvcalc.deployment(model)).weights for model in (described, stored, tmp_path / "m.yaml")]
    assert len({weights.total_bytes for weights in sizes}) == 1
    assert [weights.parts for weights in sizes] == [sizes[0].parts] * 3
    assert sizes[0].total_bytes == sum(2 * int(np.prod(shape)) for shape in shapes.values())


@pytest.mark.parametrize(
    "vision", ["text", 5, [1], {"model_type": "clip_vision_model", "hidden_size": "x"}, {"model_type": ["x"]}]
)
def test_a_tower_that_makes_no_sense_is_told_or_refused(vision: Any) -> None:
    try:
        notes = _model("llava", vision_config=vision).notes
    except KvcalcError:
        return
    assert any("vision" in note for note in notes)


@pytest.mark.parametrize("vision", [0, "", [], False, "x"])
def test_what_is_no_mapping_in_place_of_a_tower_is_refused(vision: Any) -> None:
    with pytest.raises(ProfileError, match=r"vision_config is .*not a mapping"):
        _model("gemma3", vision_config=vision)


def test_a_tower_that_a_null_takes_away_is_noted_and_an_empty_one_is_that_of_the_class() -> None:
    model = _model("gemma3", vision_config=None)
    assert "vision_config is null: no vision tower is counted" in model.notes
    assert not model.towers
    assert _model("gemma3", vision_config={}).towers == _model("gemma3").towers != ()
    assert not any("null" in note for note in _model("llama", vision_config=None).notes)


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "intermediate_size", "image_size", "patch_size"])
def test_a_size_that_a_tower_leaves_to_its_class_is_noted(key: str) -> None:
    vision: dict[str, Any] = {
        "model_type": "clip_vision_model", "hidden_size": 64, "intermediate_size": 96, "image_size": 56, "patch_size": 28,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_channels": 3,
    }  # fmt: skip
    said = "left out of the vision tower, so that the default of its class holds"
    assert not any(said in note for note in _model("llava", vision_config=vision).notes)
    del vision[key]
    (note,) = (note for note in _model("llava", vision_config=vision).notes if said in note)
    assert note.startswith(f"{said}: vision_config.{key} = ")


@pytest.mark.parametrize("kind", ["gemma3", "idefics3"])
@pytest.mark.parametrize("key", ["vision_confg", "Vision_Config", "visionqconfig"])
def test_a_misspelt_tower_is_refused_where_the_class_has_one_too(kind: str, key: str) -> None:
    with pytest.raises(ProfileError, match=f"{key} is no key that is known, but nearly 'vision_config'"):
        _model(kind, **{key: {**_CLIP, "model_type": "siglip_vision_model"}})


@pytest.mark.parametrize("key", ["image_isze", "image_sze", "hidden_sizee", "pathc_size"])
def test_a_misspelt_key_of_a_tower_is_refused(key: str) -> None:
    meant = {"image_isze": "image_size", "image_sze": "image_size", "pathc_size": "patch_size"}.get(key, "hidden_size")
    vision = {**_CLIP, "hidden_size": 64, "image_size": 56, "patch_size": 28}
    vision[key] = vision.pop(meant)
    with pytest.raises(ProfileError, match=f"vision_config.{key} is no key that is known, but nearly '{meant}'"):
        _model("llava", vision_config=vision)


@pytest.mark.parametrize("size", [["1e3", 2], [0, 2], [2.5], "x", [None]])
def test_sizes_in_a_list_are_whole_numbers(size: Any) -> None:
    with pytest.raises(ProfileError, match="merge_kernel_size"):
        Config({"merge_kernel_size": size}).integers("merge_kernel_size")


def test_qwen2_vl_2b_has_the_parameters_of_its_checkpoint() -> None:
    # the sum of the tensors of Qwen/Qwen2-VL-2B-Instruct; its keys for the text model stand at the top level
    config = {
        "model_type": "qwen2_vl", "hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12,
        "num_hidden_layers": 28, "num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": True,
        "vision_config": {
            "depth": 32, "embed_dim": 1280, "hidden_size": 1536, "in_chans": 3, "mlp_ratio": 4, "num_heads": 16,
            "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2},
    }  # fmt: skip
    parts = parameters(import_config(config, name="m")[0])
    assert sum(parts.values()) == 2_208_985_600
    assert round(parts["vision"] / sum(parts.values()), 2) == 0.3
