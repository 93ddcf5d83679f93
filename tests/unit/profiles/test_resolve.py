"""Names as people type them lead to the profile that they mean, with the format that they name, and never to another."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import kvcalc
from kvcalc.profiles.catalog import entries, shipped_folder
from kvcalc.profiles.name_index import profile_names
from kvcalc.profiles.origins import noting_origins, origin_notes
from kvcalc.profiles.reader import read_yaml_file
from kvcalc.profiles.resolve import resolve
from kvcalc.profiles.spellings import words


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()))


# The ids of vLLM's recipes (vllm-project/recipes, 8959cf6) and of SGLang's cookbook (sgl-project/sgl-cookbook, 7b5bd9c)
# whose models are in the catalogue, tags of ollama.com/library, and ids of those who quantise others' models.
MODELS = _rows("typed_models.csv")
# As nvidia-smi, PyTorch, llama.cpp, system reports and shops print them.
CARDS = _rows("typed_cards.csv")


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row["typed"])
def test_a_typed_name_means_one_model_and_its_format(row: dict[str, str]) -> None:
    match = resolve(row["typed"], "model")
    assert match is not None
    assert (match.entry.path.stem, match.reading.weights) == (row["profile"], row["weights"])


@pytest.mark.parametrize("row", CARDS, ids=lambda row: row["typed"])
def test_a_printed_name_means_one_card(row: dict[str, str]) -> None:
    match = resolve(row["typed"], "hardware")
    assert match is not None
    assert match.entry.path.stem == row["profile"]


@pytest.mark.parametrize("spelled", ["Qwen3 8B", "qwen3_8b", "QWEN-3-8B", "qwen3:8b", " qwen3 - 8b "])
def test_blanks_case_hyphens_and_underscores_do_not_count(spelled: str) -> None:
    assert kvcalc.load_model(spelled).name == "qwen3-8b"


@pytest.mark.parametrize(
    "other",
    [
        "qwen34b",  # not qwen3-4b
        "gemma27b",  # not gemma-2-7b
        "llama318b",
        "Qwen/Qwen3-8B-Guard",
        "Qwen/Qwen2.5-7B-Instruct-1M",
        "RedHatAI/Qwen3-8B-speculator.eagle3",
        "nvidia/Llama-3.1-Nemotron-Ultra-253B-v1",
        "google/gemma-4-31B-it-assistant",
        "nvidia/gpt-oss-120b-Eagle3",
        "moonshotai/Kimi-K9",
        "gemma",
        "llama3.1",
        "qwen3:latest",
    ],
)
def test_a_name_that_says_more_or_less_is_no_other_model(other: str) -> None:
    assert resolve(other, "model") is None


@pytest.mark.parametrize(
    "other", ["RTX", "RTX 4091", "H2", "M9 Max", "GeForce RTX 4050 Laptop GPU", "A100 64GB", "m4-max-48"]
)
def test_a_card_that_is_not_there_is_no_other_card(other: str) -> None:
    assert resolve(other, "hardware") is None


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("gpt-oss", ["gpt-oss-20b", "gpt-oss-120b"]),
        ("gpt-oss:latest", ["gpt-oss-20b", "gpt-oss-120b"]),
        ("llama3.1", ["llama3.1-8b", "llama3.1-70b", "llama3.1-405b"]),
        ("mixtral", ["mixtral-8x7b", "mixtral-8x22b"]),
        ("Granite 4", ["granite-4.0-h-small", "granite-4.0-h-tiny", "granite-4.0-micro"]),
    ],
)
def test_a_family_lists_its_sizes(family: str, sizes: list[str]) -> None:
    with pytest.raises(kvcalc.UnknownNameError, match="names a family") as caught:
        kvcalc.load_model(family)
    named = caught.value.hint.partition(" (")[0].removeprefix("name one of ").split(", ")
    assert [name for name in named if name in sizes] == sizes


@pytest.mark.parametrize(
    ("name", "kind", "never"),
    [
        ("gemma5", "model", "gemma"),
        ("gemma4-900b", "model", "gemma-3"),
        ("llama3.1-9b", "model", "llama3.2"),
        ("H2000", "hardware", "h200"),
        ("RTX 9090", "hardware", "90"),
        ("codellama:13b", "model", "llama2"),
        ("deepseek-r1:8b", "model", "llama3.1"),
        ("Quadro RTX 8000", "hardware", "rtx"),
    ],
)
def test_a_hint_offers_no_other_version(name: str, kind: str, never: str) -> None:
    with pytest.raises(kvcalc.UnknownNameError) as caught:
        kvcalc.load_model(name) if kind == "model" else kvcalc.load_hardware(name)
    offered = caught.value.hint.partition(" (")[0]
    assert never not in offered


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("deepseek-r1:8b", "did you mean DeepSeek-R1-0528-Qwen3-8B or deepseek-r1-distill-llama-8b?"),
        ("codellama:13b", "did you mean codellama-7b?"),
        ("qwen3.5:35b", "did you mean qwen3.5-35b-a3b?"),
        ("MiMo-V2.6", "did you mean MiMo-V2.6-Flash-RL?"),
    ],
)
def test_a_hint_offers_names_of_the_family(name: str, start: str) -> None:
    with pytest.raises(kvcalc.UnknownNameError, match="unknown model") as caught:
        kvcalc.load_model(name)
    assert caught.value.hint.startswith(start)
    for offered in start.removeprefix("did you mean ").removesuffix("?").split(" or "):
        assert kvcalc.load_model(offered)


@pytest.mark.parametrize("name", ["8xh200", "8 x H200", "8*h200", "h200x8"])
def test_several_of_a_card_are_asked_for_beside_its_name(name: str) -> None:
    with pytest.raises(kvcalc.UnknownNameError, match="unknown GPU") as caught:
        kvcalc.load_hardware(name)
    assert caught.value.hint == "--gpu h200 --gpus 8, and in plan --gpus-at-most 8"


def test_several_of_no_card_are_an_unknown_name() -> None:
    with pytest.raises(kvcalc.UnknownNameError) as caught:
        kvcalc.load_hardware("8xnothing-like-it")
    assert "--gpus" not in caught.value.hint


# Quadro RTX 6000 is of Turing.
@pytest.mark.parametrize("name", ["RTX 6000", "Quadro RTX 6000", "NVIDIA RTX 5000"])
def test_a_number_that_is_given_again_is_no_other_generations_card(name: str) -> None:
    with pytest.raises(kvcalc.UnknownNameError, match="unknown GPU") as caught:
        kvcalc.load_hardware(name)
    number = name[-4:]
    assert caught.value.hint.startswith(
        f"cards of that number are of other generations: rtx-{number}-ada, rtx-a{number}, "
    )


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("LLaDA2", "llada2_moe"),
        ("inclusionAI/LLaDA2.0-mini", "llada2_moe"),
        ("JetNemotron", "jet_nemotron"),
        ("MiniCPM-SALA", "minicpm_sala"),
        ("granite_docling", "granite_docling"),
        ("GigaChat3.5-432B-A28B", "gigachat3_5"),
        ("Inkling 2", "inkling2"),
    ],
)
def test_a_model_of_a_type_that_is_read_is_told_from_what_is_spelled_alike(name: str, model_type: str) -> None:
    with pytest.raises(kvcalc.UnknownNameError, match="unknown model") as caught:
        kvcalc.load_model(name)
    assert f"read as model_type '{model_type}'" in caught.value.hint
    assert "did you mean" not in caught.value.hint


def test_a_generation_of_chips_lists_them() -> None:
    with pytest.raises(kvcalc.UnknownNameError, match="names a family") as caught:
        kvcalc.load_hardware("TPU v8")
    assert caught.value.hint.startswith("name one of tpu-v8i, tpu-v8t ")


def test_a_model_of_a_type_that_is_refused_is_told_why() -> None:
    with pytest.raises(kvcalc.UnknownNameError, match="unknown model 'Step-5'") as caught:
        kvcalc.load_model("Step-5")
    assert "model_type 'step5' is refused: it chooses its keys by summaries" in caught.value.hint


@pytest.mark.parametrize("name", ["Hunyuan", "LongCat", "voxtral", "gemma4", "Qwen3-8B-Chatt", "yi-34c"])
def test_a_family_of_the_catalogue_keeps_the_hint_that_names_its_models(name: str) -> None:
    with pytest.raises(kvcalc.UnknownNameError) as caught:
        kvcalc.load_model(name)
    assert caught.value.hint.startswith(("did you mean ", "name one of "))


def test_a_hint_mends_letters() -> None:
    with pytest.raises(kvcalc.UnknownNameError) as caught:
        kvcalc.load_model("lama2-70b")
    assert caught.value.hint.startswith("did you mean llama2-70b?")


def test_a_quantised_id_is_the_base_with_that_format_and_says_so() -> None:
    base, awq = kvcalc.load_model("qwen3-32b"), kvcalc.load_model("Qwen/Qwen3-32B-AWQ")
    assert awq.blocks == base.blocks
    assert set(awq.weight_formats) == {"attention", "mlp"}
    assert "Qwen/Qwen3-32B-AWQ is taken for qwen3-32b, with weights in int4-g128-zp4" in awq.notes[-1]


def test_a_format_in_a_name_is_that_of_the_word() -> None:
    for name, word in (("RedHatAI/Qwen3-32B-FP8-dynamic", "fp8-dynamic"), ("Qwen3-8B-Q4_K_M.gguf", "q4_k_m")):
        base = "qwen3-32b" if "32B" in name else "qwen3-8b"
        source = name if "/" in name else f"x/{name.removesuffix('.gguf')}"
        by_name, by_word = kvcalc.deployment(source), kvcalc.deployment(base, weights=word)
        assert kvcalc.size(by_name).weights.total_bytes == kvcalc.size(by_word).weights.total_bytes
        assert by_name.formats.activations == by_word.formats.activations


@pytest.mark.parametrize("name", ["amd/gpt-oss-120b-w-mxfp4-a-fp8", "gpt-oss:120b-mxfp4", "openai/gpt-oss-120b"])
def test_a_format_that_the_checkpoint_has_changes_nothing(name: str) -> None:
    base = kvcalc.load_model("gpt-oss-120b")
    assert kvcalc.load_model(name).weight_formats == base.weight_formats


def test_a_16_bit_copy_of_a_quantised_checkpoint_is_plain() -> None:
    assert kvcalc.load_model("lmsys/gpt-oss-20b-bf16").weight_formats == {}


def test_a_16_bit_copy_runs_in_its_own_format() -> None:
    copy = kvcalc.load_model("llama3.1:8b-instruct-fp16")
    assert (copy.dtype, copy.weight_formats) == ("fp16", {})
    assert copy.notes[-1] == "llama3.1:8b-instruct-fp16 is taken for llama3.1-8b, with weights in fp16"


@pytest.mark.parametrize("owner", ["amd/Llama-3.1-8B-Instruct-FP8-KV", "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-KV"])
def test_a_name_with_a_cache_in_fp8_declares_it(owner: str) -> None:
    named = kvcalc.deployment(owner)
    assert (named.formats.key.name, named.formats.value.name, named.model.weight_formats["mlp"]) == (
        "fp8",
        "fp8",
        "fp8",
    )
    assert "its cache is in fp8" in named.model.notes[-1]
    assert kvcalc.deployment(owner, kv_dtype="bf16").formats.key.name == "bf16"
    assert kvcalc.load_model(owner.removesuffix("-KV")).kv_dtype is None


# The files of mlx-community/gpt-oss-20b-MXFP4-Q8 and -Q4: attention, tables and head in groups of 64, experts as they are.
@pytest.mark.parametrize("bits", [8, 4])
def test_mlx_quantises_all_but_the_experts(bits: int) -> None:
    named, base = kvcalc.load_model(f"mlx-community/gpt-oss-20b-MXFP4-Q{bits}"), kvcalc.load_model("gpt-oss-20b")
    assert named.weight_formats == {
        **dict.fromkeys(("attention", "embedding", "head"), f"int{bits}-g64-zp"),
        "experts": base.weight_formats["experts"],
    }


def test_a_mixture_by_experts_is_refused_for_a_model_without_them() -> None:
    with pytest.raises(kvcalc.UnsupportedError, match="qwen3-8b has no experts"):
        kvcalc.load_model("mlx-community/Qwen3-8B-MXFP4-Q8")


@pytest.mark.parametrize(
    ("name", "mixture", "recipe"),
    [
        ("unsloth/DeepSeek-R1-GGUF:UD-IQ1_S", "UD-IQ1_S", "iq1_s"),
        ("unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", "UD-Q4_K_XL", "q4_k_m"),
        ("unsloth/Qwen3-8B-GGUF:Q4_K_XL", "Q4_K_XL", "q4_k_m"),
    ],
)
def test_a_publishers_own_mixture_is_refused_but_for_asked_weights(name: str, mixture: str, recipe: str) -> None:
    with pytest.raises(kvcalc.UnsupportedError, match=f"{mixture} is its publisher's own mixture") as caught:
        kvcalc.load_model(name)
    assert f"--weights {recipe} is" in caught.value.hint
    assert kvcalc.deployment(name, weights=recipe).formats.recipe == recipe


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("gemma3:27b-it-qat", "--weights q4_0"),
        ("gemma3:27b", "--weights q4_k_m"),
        ("gpt-oss:20b", "which Ollama's file has too"),
        ("https://huggingface.co/Qwen/Qwen3-8B", "taken for qwen3-8b"),
        ("allenai/Olmo-3-32B-Think", "taken for olmo-3.1-32b, which has its shape"),
        ("olmo 3 32b", "taken for olmo-3.1-32b, which has its shape"),
    ],
)
def test_a_note_says_of_a_name_no_more_than_it_means(name: str, end: str) -> None:
    assert kvcalc.load_model(name).notes[-1].endswith(end)


def test_asked_weights_count_and_not_those_of_the_name() -> None:
    asked = kvcalc.deployment("llama3.1-8b-awq", weights="bf16")
    assert asked.model.notes[-1] == "llama3.1-8b-awq is taken for llama3.1-8b"
    assert asked.model.weight_formats == {}


def test_an_alias_that_is_spelled_otherwise_keeps_its_own_fields() -> None:
    assert kvcalc.load_model("Qwen/Qwen2.5-7B-Instruct-AWQ").context_limit == 32_768
    assert kvcalc.load_model("Qwen2.5 7B").context_limit == 131_072


def test_a_variant_that_is_picked_is_named_with_the_others() -> None:
    for typed, picked, others in (("m4-max", "m4-max-40", "m4-max-32"), ("h100", "h100-sxm", "h100-nvl, h100-pcie")):
        with noting_origins() as noted:
            assert kvcalc.load_hardware(typed).name == picked
        assert origin_notes(noted) == (f"{typed} is taken for {picked}; others of that name: {others}",)
    with noting_origins() as noted:
        kvcalc.load_hardware("NVIDIA GeForce RTX 4090")
    assert origin_notes(noted) == ()


def test_a_mac_has_the_memory_that_is_typed() -> None:
    assert kvcalc.load_hardware("Apple M4 Max 64GB").memory_label_bytes == 64e9
    assert kvcalc.load_hardware("Apple M4 Max").memory_label_bytes == 128e9


def test_names_read_from_the_text_of_a_profile_are_those_of_its_yaml() -> None:
    for kind in ("model", "hardware"):
        names = {each.name: each for each in profile_names(kind)}
        for path in shipped_folder(kind).glob("*.yaml"):
            data = read_yaml_file(path).data
            assert list(names[path.stem].aliases) == list(map(str, data.get("aliases", ())))
            assert names[path.stem].title == data.get("title", "")


def test_users_profiles_are_resolved_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = (shipped_folder("model") / "llama2-7b.yaml").read_text()
    (tmp_path / "model_profiles").mkdir()
    text = own.replace("name: llama2-7b", "name: house-model-7b").replace(
        "aliases: [", "aliases: [Us/House-Model-7B-Chat, x"
    )
    (tmp_path / "model_profiles" / "house-model-7b.yaml").write_text(text)
    monkeypatch.setenv("KVCALC_PROFILES", str(tmp_path))
    assert kvcalc.load_model("House Model 7B").name == "house-model-7b"
    assert kvcalc.load_model("someone/House-Model-7B-Chat-AWQ").weight_formats["mlp"] == "int4-g128-zp4"


def test_kvcalcs_own_profiles_are_listed_once_and_users_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCALC_PROFILES", str(tmp_path))
    folder = tmp_path / "calibration_profiles"
    folder.mkdir()
    before, listed, listing = entries("calibration"), [], Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: listed.append(path) or listing(path))
    assert entries("calibration") == before
    assert listed == [folder]
    for name in ("house", "vllm-hopper"):
        (folder / f"{name}.yaml").write_text("name: x")
    found = entries("calibration")
    assert found.keys() - before.keys() == {"house"}
    assert [(found[name].shipped, found[name].shadows) for name in ("house", "vllm-hopper", "vllm-blackwell")] == [
        (False, False),
        (False, True),
        (True, False),
    ]
    assert before["vllm-hopper"].shipped


def test_words_of_a_long_name_are_bounded() -> None:
    assert len(words("a1" * 10_000)) < 1000
