"""What a config means where keys stand in a wrapper, contradict each other, are missing, or ask for what a rule lacks."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvcalc.core.errors import ProfileError, UnsupportedError
from kvcalc.core.model import Full, Sliding
from kvcalc.cost.parameters import parameters, tower_parameters
from kvcalc.importers import families
from kvcalc.importers.families import find_rule, known_types
from kvcalc.importers.families.refused import REFUSED
from kvcalc.importers.hugging_face import import_config, lint
from kvcalc.importers.unread import looks_relevant

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.importers.config_reader import KeyUse

_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}
_MIXTURE = {"num_local_experts": 4, "num_experts_per_tok": 2}
_QWEN2 = {"model_type": "qwen2"}


def _read(**changes: Any) -> tuple[ModelProfile, dict[str, KeyUse]]:
    return import_config({"dtype": "bfloat16"} | _LLAMA | changes, name="m")


def _model(**changes: Any) -> ModelProfile:
    return _read(**changes)[0]


def _wrapped(wrapper: str, text: dict[str, Any], **outer: Any) -> tuple[ModelProfile, dict[str, KeyUse]]:
    return import_config({"model_type": wrapper, "text_config": _LLAMA | text, **outer}, name="m")


def _tied(wrapper: str, text: dict[str, Any], **outer: Any) -> bool:
    model, _ = _wrapped(wrapper, text, **outer)
    assert model.head is not None
    return model.head.tied


def _count(**changes: Any) -> int:
    return sum(parameters(_model(**changes)).values())


_UNTIED, _TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}


@pytest.mark.parametrize(
    "wrapper", ["mistral3", "internvl", "got_ocr2", "granite_speech", "deepseek_vl", "glmasr", "ovis2"]
)
def test_wrapper_that_decides_the_tie_ignores_the_text_value(wrapper: str) -> None:
    assert _tied(wrapper, _UNTIED, tie_word_embeddings=True)
    assert not _tied(wrapper, _TIED, tie_word_embeddings=False)
    assert _tied(wrapper, _UNTIED)


@pytest.mark.parametrize("wrapper", ["llava_next", "idefics3", "video_llava", "vipllava"])
def test_wrapper_class_that_does_not_tie_holds_against_the_text_value(wrapper: str) -> None:
    assert not _tied(wrapper, _TIED)
    assert _tied(wrapper, _UNTIED, tie_word_embeddings=True)


@pytest.mark.parametrize("wrapper", ["llava", "llava_onevision", "video_llama_3"])
def test_wrapper_or_text_may_tie(wrapper: str) -> None:
    assert _tied(wrapper, _TIED, tie_word_embeddings=False)
    assert _tied(wrapper, _UNTIED, tie_word_embeddings=True)
    assert not _tied(wrapper, _UNTIED)


@pytest.mark.parametrize("wrapper", ["qwen2_audio", "voxtral", "audioflamingo3", "musicflamingo"])
def test_wrapper_that_never_ties(wrapper: str) -> None:
    assert not _tied(wrapper, _TIED, tie_word_embeddings=True)


def test_text_alone_decides_the_tie_of_llama4() -> None:
    text = {"model_type": "llama4_text", "intermediate_size_mlp": 128, **_MIXTURE}
    assert _tied("llama4", text | _TIED, tie_word_embeddings=False)
    assert not _tied("llama4", text | _UNTIED, tie_word_embeddings=True)


def test_tie_of_an_unknown_wrapper_is_its_own_then_the_text_value() -> None:
    assert not _tied("some_wrapper", _TIED, tie_word_embeddings=False)
    assert _tied("some_wrapper", _TIED)
    assert not _tied("some_wrapper", {})


def test_tie_is_recorded_where_it_stands() -> None:
    _, uses = _wrapped("mistral3", _UNTIED, tie_word_embeddings=True)
    assert (uses["tie_word_embeddings"].use, uses["tie_word_embeddings"].value) == ("used", True)
    assert uses["text_config.tie_word_embeddings"].use == "ignored"
    _, uses = _wrapped("mistral3", _UNTIED)
    assert (uses["tie_word_embeddings"].use, uses["tie_word_embeddings"].value) == ("defaulted", True)
    _, uses = _wrapped("some_wrapper", _TIED)
    assert uses["text_config.tie_word_embeddings"].use == "used"


def test_outermost_dtype_governs() -> None:
    assert _wrapped("llava", {"torch_dtype": "float32"}, torch_dtype="float16")[0].dtype == "fp16"
    assert _wrapped("llava", {"dtype": "float32"})[0].dtype == "fp32"
    _, uses = _wrapped("llava", {"dtype": "float32"}, dtype="float16")
    assert uses["text_config.dtype"].use == "ignored"


def test_absent_dtype_is_bf16_and_told() -> None:
    model, uses = import_config(_LLAMA, name="m")
    assert model.dtype == "bf16"
    assert asdict(uses["dtype"]) == {
        "key": "dtype",
        "value": "bf16",
        "use": "defaulted",
        "why": "the config names no dtype; bf16 is assumed",
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_local_experts", 8),
        ("num_experts", 8),
        ("n_routed_experts", 64),
        ("kv_lora_rank", 512),
        ("q_lora_rank", 128),
        ("v_head_dim", 32),
        ("use_mla", True),
        ("block_configs", [{"attention": {}}]),
        ("num_key_value_heads_per_layer", [2, 2, 1, 1]),
        ("num_kv_shared_layers", 2),
        ("cross_attention_layers", [1]),
        ("compress_ratios", [4, 4, 4, 4]),
        ("attention_type", "linear"),
        ("attn_type_list", [0, 1, 0, 1]),
        ("layer_types", ["sliding_attention", "full_attention"] * 2),
        ("layer_types", ["linear_attention"] * 4),
        ("layers_block_type", ["mamba"] * 4),
        ("hybrid_override_pattern", "M*M-"),
        ("multi_query", True),
        ("attention_head_type", "multiquery"),
        ("num_kv_heads", 1),
        ("sliding_window", 1024),
        ("attention_chunk_size", 1024),
        ("index_topk", 64),
        ("linear_attn_config", {"full_attn_layers": [1]}),
        ("linear_num_value_heads", 4),
        ("mamba_d_state", 16),
        ("ssm_state_size", 16),
        ("cla_share_factor", 2),
        ("num_recurrence", 4),
        ("altup_num_inputs", 4),
        ("global_head_dim", 512),
        ("add_cross_attention", True),
    ],
)
def test_key_that_changes_the_layers_of_a_llama_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(UnsupportedError, match=f"model_type 'llama' has '{key}'") as caught:
        _model(**{key: value})
    assert "profile" in caught.value.hint


@pytest.mark.parametrize(
    "keys",
    [
        {"num_local_experts": None, "num_experts": 0, "n_routed_experts": 1},
        {"q_lora_rank": None, "kv_lora_rank": None, "use_mla": False},
        {"use_mla": False, "kv_lora_rank": 512},
        {"num_experts_per_tok": 2, "num_shared_expert": 1},
        {"sliding_window": None},
        {"sliding_window": 4096},
        {"sliding_window": 1024, "use_sliding_window": False},
        {"sliding_window": 1024, "layer_types": ["full_attention"] * 4},
        {"layer_types": ["full_attention"] * 4},
        {"attention_type": "full"},
        {"cross_attention_layers": [], "num_kv_shared_layers": 0},
        {"cla_share_factor": 2, "use_cla": False},
        {"num_recurrence": 1, "attention_chunk_size": None},
        {"multi_query": False, "attention_head_type": "multihead"},
        {"v_head_dim": 16, "num_kv_heads": 2},
    ],
)
def test_key_without_effect_changes_nothing(keys: dict[str, Any]) -> None:
    assert _model(**keys).blocks == _model().blocks


@pytest.mark.parametrize("model_type", ["olmo2", "granite", "gemma", "stablelm", "phi", "glm4", "minimax_m2"])
def test_windows_are_refused_where_the_reference_code_has_none(model_type: str) -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    with pytest.raises(UnsupportedError, match=r"layer_types|sliding_window"):
        _model(model_type=model_type, layer_types=kinds, sliding_window=8, **_MIXTURE)


@pytest.mark.parametrize("model_type", ["mixtral", "phimoe"])
def test_mixtures_follow_the_list_of_layer_kinds(model_type: str) -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    model = _model(model_type=model_type, sliding_window=8, layer_types=kinds, **_MIXTURE)
    assert [type(block.mixers[0]) for block in model.blocks] == [Sliding, Full] * 2
    whole = _model(model_type=model_type, sliding_window=8, **_MIXTURE)
    assert {type(block.mixers[0]) for block in whole.blocks} == {Sliding}


@pytest.mark.parametrize("model_type", ["llama", "cohere2", "mistral", "qwen3", "gemma", "olmo2", "granite", "glm4"])
def test_head_width_is_read(model_type: str) -> None:
    model = _model(model_type=model_type, head_dim=32)
    assert {block.mixers[0].head_dim for block in model.blocks} == {32}  # type: ignore[union-attr]


@pytest.mark.parametrize("model_type", ["helium", "olmoe"])
def test_heads_that_the_reference_code_cannot_multiply_are_refused(model_type: str) -> None:
    with pytest.raises(UnsupportedError, match="not as wide as the hidden state"):
        _model(model_type=model_type, head_dim=32, num_experts=4, num_experts_per_tok=2)


@pytest.mark.parametrize("model_type", ["minicpm", "orion", "stablelm"])
def test_head_width_of_a_rule_that_derives_it_is_refused(model_type: str) -> None:
    with pytest.raises(UnsupportedError, match="has 'head_dim'"):
        _model(model_type=model_type, head_dim=32)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "gptj", "n_layer": 3, "num_hidden_layers": 14},
        {"model_type": "gpt2", "n_embd": 128, "hidden_size": 64},
        {"model_type": "bart", "d_model": 64, "hidden_size": 128},
        {"model_type": "bart", "encoder_layers": 3, "num_hidden_layers": 6},
        {"model_type": "deepseek_v32", "n_routed_experts": 512, "num_local_experts": 128},
        _LLAMA | {"num_layers": 2},
        _LLAMA | {"dtype": "float32", "torch_dtype": "bfloat16"},
    ],
)
def test_spellings_that_contradict_each_other_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ProfileError, match="another name for it"):
        import_config(config, name="m")


def test_other_spelling_of_a_class_is_read() -> None:
    model, _ = import_config({"model_type": "bart", "hidden_size": 256, "num_hidden_layers": 3}, name="m")
    assert model.hidden_size == 256
    assert model.encoder is not None
    assert len(model.encoder.blocks) == 3


@pytest.mark.parametrize(
    "model_type", ["llama", "gpt2", "mistral", "stablelm", "opt", "bloom", "baichuan", "persimmon"]
)
def test_hidden_state_that_does_not_divide_into_heads_is_refused(model_type: str) -> None:
    with pytest.raises(ProfileError, match=r"heads"):
        _model(model_type=model_type, hidden_size=65, num_key_value_heads=4, ffn_dim=128)


def test_kv_heads_must_divide_the_query_heads() -> None:
    with pytest.raises(ProfileError, match="4 query heads do not share 3 KV heads evenly"):
        _model(num_key_value_heads=3)


def test_youtu_has_no_bias_in_its_mlp() -> None:
    keys = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    assert _count(model_type="youtu", mlp_bias=True, **keys) == _count(model_type="youtu", **keys)
    assert _count(model_type="minicpm3", mlp_bias=True, **keys) > _count(model_type="minicpm3", **keys)


@pytest.mark.parametrize(
    "key",
    [
        "qk_rope_head_dim", "no_rope_layers", "mamba_n_groups", "scale_kv_heads", "multi_query", "first_k_dense_replace",
        "compress_ratios", "use_mla", "cla_share_factor", "num_recurrence", "altup_num_inputs", "top_k", "share_embeddings",
        "image_token_layers",
    ],
)  # fmt: skip
def test_telling_key_looks_relevant(key: str) -> None:
    assert looks_relevant(key)
    assert looks_relevant(f"text_config.{key}")


@pytest.mark.parametrize(
    "key",
    [
        "rms_norm_eps", "layer_norm_epsilon", "rope_theta", "attention_dropout", "hidden_act", "bos_token_id", "use_cache",
        "image_token_index", "n_group", "embedding_multiplier", "attn_logit_softcapping", "vision_config.hidden_size",
        "rope_scaling.factor", "initializer_range", "torch_dtype", "router_aux_loss_coef",
    ],
)  # fmt: skip
def test_harmless_key_does_not(key: str) -> None:
    assert not looks_relevant(key)


def test_lint_shows_values_that_are_in_force_though_absent(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 512}')
    found = {use.key: use for use in lint(path)}
    assert (found["sliding_window_pattern"].use, found["sliding_window_pattern"].value) == ("defaulted", 6)
    path.write_text('{"model_type": "qwen3", "num_attention_heads": 32, "head_dim": null, "hidden_size": 2048}')
    found = {use.key: use for use in lint(path)}
    assert (found["head_dim"].use, found["head_dim"].value) == ("defaulted", 64)


def test_text_model_without_a_type_is_named() -> None:
    with pytest.raises(ProfileError, match="language_config names no model_type"):
        import_config({"model_type": "some_wrapper", "language_config": {"hidden_size": 64}}, name="m")


def test_multiquery_form_of_gpt2_keeps_one_kv_head() -> None:
    config = {"model_type": "gpt2", "n_embd": 2048, "n_head": 16, "n_inner": 8192, "n_layer": 24, "n_positions": 2048}
    model, _ = import_config({**config, "vocab_size": 49280, "attention_head_type": "multiquery"}, name="santacoder")
    assert sum(parameters(model).values()) == 1_124_886_528


def test_openelm_grows_from_layer_to_layer() -> None:
    config = {
        "model_type": "openelm", "model_dim": 1280, "head_dim": 64, "num_transformer_layers": 16, "vocab_size": 32000,
        "ffn_dim_divisor": 256, "ffn_with_glu": True, "normalize_qk_projections": True, "share_input_output_layers": True,
        "max_context_length": 2048, "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
        "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4,
        "ffn_multipliers": [0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13, 2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0],
    }  # fmt: skip
    model, _ = import_config(config, name="openelm-270m")
    assert sum(parameters(model).values()) == 271_527_168


def test_decilm_takes_each_layer_its_kv_heads() -> None:
    model = _model(model_type="deci", num_key_value_heads_per_layer=[1, 2, 4, 4], num_key_value_heads=None)
    assert [block.mixers[0].kv_heads for block in model.blocks] == [1, 2, 4, 4]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (
            {"model_type": "glm4v", "text_config": {"model_type": "glm4v_text", "attention_bias": True, "hidden_size": 4096,
             "intermediate_size": 13696, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2,
             "vocab_size": 151552}},
            9_400_279_040,
        ),
        (
            {"model_type": "glm4v", "attention_bias": True, "hidden_size": 4096, "intermediate_size": 13696,
             "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "vocab_size": 151552},
            9_400_279_040,
        ),
        (
            {"model_type": "phi4_multimodal", "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 24,
             "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 262144, "vocab_size": 200064,
             "tie_word_embeddings": True},
            3_836_021_760,
        ),
        (
            {"model_type": "phi3_v", "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
             "num_hidden_layers": 32, "num_key_value_heads": 32, "vocab_size": 32064},
            3_821_079_552,
        ),
        (
            {"model_type": "phi3small", "hidden_size": 4096, "ff_intermediate_size": 14336, "num_attention_heads": 32,
             "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 100352},
            7_392_272_384,
        ),
        ({"model_type": "nllb-moe", "vocab_size": 256206}, 7_011_880_960),
    ],
)  # fmt: skip
def test_architectures_have_the_parameters_of_the_reference_code(config: dict[str, Any], total: int) -> None:
    model, _ = import_config(config, name="m")
    assert sum(size for part, size in parameters(model).items() if part not in tower_parameters(model)) == total


def test_minicpmv_takes_the_text_model_of_its_version() -> None:
    assert _count(model_type="minicpmv", version=2.5) == _count()
    assert _count(model_type="minicpmv", version=2.6) == _count(**_QWEN2)
    with pytest.raises(UnsupportedError, match=r"'2.0' is not known"):
        _model(model_type="minicpmv", version="2.0")


def test_every_architecture_is_named_once() -> None:
    """Tables are merged into one mapping, where a second rule of the same name would replace the first unseen."""
    folder = Path(families.__file__).parent
    tables = [getattr(import_module(f"{families.__name__}.{path.stem}"), "RULES", {}) for path in folder.glob("*.py")]
    assert sum(len(table) for table in tables) == len(known_types())
    assert len(known_types()) > 140


@pytest.mark.parametrize("window", [1024, 1025])
@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [("gemma3_text", "use_bidirectional_attention", True), ("gemma4_text", "use_bidirectional_attention", "all")],
)
def test_a_window_that_looks_both_ways_reaches_half_as_far_back(
    model_type: str, key: str, value: object, window: int
) -> None:
    """Half the window stands before a token, half behind it, and the token itself counts: transformers 5.24 halves it so."""

    def windows(**keys: object) -> set[int]:
        model, _ = import_config({"model_type": model_type, "sliding_window": window, **keys}, name="m")
        return {mixer.window for block in model.blocks for mixer in block.mixers if isinstance(mixer, Sliding)}

    assert windows() == {window}
    assert windows(**{key: value}) == {window // 2 + 1}
    assert windows(**{key: False if value is True else "vision"}) == {window}


def test_lint_says_of_every_key_what_became_of_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = _LLAMA | {
        "dtype": "bfloat16",
        "rope_scaling": None,
        "attention_dropout": 0.0,
        "text_config_extra": {"num_heads_extra": 3},
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    found = {use.key: use for use in lint(path)}
    assert all(found[key].use == "used" for key in _LLAMA)
    assert (found["attention_dropout"].use, found["attention_dropout"].why) == (
        "ignored",
        "decides neither memory nor compute",
    )
    assert found["text_config_extra.num_heads_extra"].use == "ignored"
    assert "looks relevant" in found["text_config_extra.num_heads_extra"].why
    assert "text_config_extra" not in found
    order = [use.use for use in lint(path)]
    assert order == sorted(order, key=("used", "defaulted", "ignored").index)


@pytest.mark.parametrize("kind", ["gemma3", "llava", "qwen3_vl"])
@pytest.mark.parametrize("text", [{}, {"text_config": None}])
def test_a_wrapper_without_its_text_model_says_so(kind: str, text: dict[str, Any]) -> None:
    with pytest.raises(ProfileError, match=f"'{kind}' wraps a text model, and the config has no text_config"):
        import_config({"model_type": kind, **text}, name="m")


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_type_without_a_rule_is_refused_with_its_reason_whatever_text_model_it_holds(model_type: str) -> None:
    for config in ({"model_type": model_type, "text_config": _LLAMA}, {**_LLAMA, "model_type": model_type}):
        with pytest.raises(UnsupportedError, match=f"{model_type!r} {REFUSED[model_type]}"):
            import_config(config, name="m")
        assert find_rule(model_type) is None
