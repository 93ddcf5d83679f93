"""One description of an engine's start: layouts, defaults by card and version, the engine that is meant."""

from __future__ import annotations

import json

import pytest

import kvcalc
from kvcalc.api import compare, side
from kvcalc.cli.main import main
from kvcalc.core.formats import parse_format
from kvcalc.core.units import GIB
from kvcalc.engines.checkpoint import ENGINES
from kvcalc.engines.options import EngineOptions

L40S = "l40s"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_a_card_below_70_gib_takes_2048_tokens_a_pass() -> None:
    # 228,911 tokens; with the 8,192 of larger cards it would be 156,667
    report = kvcalc.fit(kvcalc.deployment("gemma-3-12b", gpu=L40S), kv_memory_bytes=int(16.71 * GIB))
    assert report.kv_capacity_tokens == pytest.approx(228_900, rel=1e-3)
    assert report.assumed == (
        "assumed: 2 passes in flight (vLLM 0.26 and later), 2,048 tokens per pass (on cards below 70 GiB, and A100)"
    )


@pytest.mark.parametrize(
    ("version", "tokens"), [("0.24", 626_949), ("0.25.1", 626_949), ("0.26", 509_255), ("0.32", 509_255)]
)
def test_passes_in_flight_count_from_0_26_on(version: str, tokens: int) -> None:
    options = EngineOptions(version=version, max_model_len=262_144, max_num_batched_tokens=8192)
    report = kvcalc.fit(
        kvcalc.deployment("gemma-4-31b"), engine="vllm", options=options, kv_memory_bytes=int(64.68 * GIB)
    )
    assert report.kv_capacity_tokens == tokens


@pytest.mark.parametrize(("version", "gib"), [("0.25.1", 45.79), ("0.26", 70.79)])
def test_a_request_of_the_longest_length_needs_what_the_release_prints(version: str, gib: float) -> None:
    # https://github.com/vllm-project/vllm/pull/47728, started with 32,768 tokens a pass
    options = EngineOptions(version=version, max_num_batched_tokens=32_768)
    report = kvcalc.size(kvcalc.deployment("gemma-4-31b"), engine="vllm", options=options, context=262_144)
    assert report.reserved is not None
    assert round(report.reserved.total_bytes / GIB, 2) == gib


@pytest.mark.parametrize(
    ("model", "gpus", "sizes", "said"),
    [
        ("llama3.1-70b", 3, (1, 3), "3 GPUs are taken as --pp 3"),
        ("llama3.1-70b", 6, (2, 3), "6 GPUs are taken as --tp 2 --pp 3"),
        ("llama3.1-70b", 8, (8, 1), ""),
        ("qwen2.5-7b", 8, (4, 2), "8 GPUs are taken as --tp 4 --pp 2"),  # 28 heads
    ],
)
def test_a_number_of_gpus_alone_takes_a_layout_that_exists(
    model: str, gpus: int, sizes: tuple[int, int], said: str
) -> None:
    deployment = kvcalc.deployment(model, gpu="h100-sxm", gpus=gpus)
    assert (deployment.parallel.tensor, deployment.parallel.pipeline) == sizes
    assert said in "".join(deployment.notes)
    assert bool(deployment.notes) == bool(said)


def test_the_fewest_gpus_stand_beside_what_people_rent() -> None:
    report = kvcalc.fit(kvcalc.deployment("llama3.1-70b", gpu="a100-80gb"), context=8192, batch=8)
    assert report.smallest is not None
    assert report.practical is not None
    assert (report.min_gpus, report.smallest.flags) == (3, "--pp 3")
    assert (report.practical.gpus, report.practical.flags) == (4, "--tp 4")


def test_what_is_not_modelled_on_several_gpus_is_not_called_more_than_64() -> None:
    report = kvcalc.fit(kvcalc.deployment("llama3.1-70b", gpu="rtx-4090"), engine="llama.cpp", context=8192)
    assert report.min_gpus is None
    assert "not modelled" in report.min_gpus_reason


@pytest.mark.parametrize(
    "command",
    [
        ["size"],
        ["fit", "--gpu", "h100-sxm"],
        ["decode", "--gpu", "h100-sxm"],
        ["prefill", "--gpu", "h100-sxm"],
        ["roofline", "--gpu", "h100-sxm"],
        ["speculate", "--gpu", "h100-sxm", "--method", "ngram", "--acceptance", "0.5"],
        ["levers", "--gpu", "h100-sxm"],
        ["traffic", "--output-tokens", "10"],
        ["solve", "--gpu", "h100-sxm", "--batch", "?"],
        ["compare", "--gpu", "h100-sxm,h200"],
        ["simulate", "--gpu", "h100-sxm", "--rate", "1", "--requests", "2", "--prompt", "8", "--output-tokens", "2"],
    ],
)
def test_a_layout_that_one_command_refuses_all_refuse_in_the_same_words(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, "--model", "llama3.1-8b", "--tensor-parallel", "5") == 2
    told = capsys.readouterr().err
    assert told.startswith("error: the heads of llama3.1-8b are not shared evenly by 5 tensor-parallel ranks\n")


@pytest.mark.parametrize(
    ("model", "asked", "engine"),
    [
        ("llama3.1-8b", {"gpu": "h100-sxm"}, "vllm"),
        ("llama3.1-8b", {"gpu": "m3-max-40"}, "llama.cpp"),
        ("llama3.1-8b", {"gpu": "rtx-4090", "weights": "q4_0"}, "llama.cpp"),
        ("llama3.1-8b", {"gpu": "rtx-4090", "weights": "bf16,mlp=q4_k"}, "llama.cpp"),
        ("llama3.1-8b", {"gpu": "rtx-4090", "kv_dtype": "q8_0"}, "llama.cpp"),
        ("llama3.1-8b", {"gpu": "rtx-4090", "weights": "int4-g128"}, "vllm"),
        ("llama3.1-8b", {"gpu": "m3-max-40", "engine": "vllm"}, "vllm"),
        ("llama3.1-8b", {"gpu": "rtx-4090", "weights": "gptq-int8"}, "vllm"),
        ("llama3.1-8b", {"gpu": "rtx-4090", "weights": "mixed-1025/1000:int8"}, "vllm"),
        ("llama3.1-8b", {"gpu": "rtx-4090", "weights": "exl3-4bpw"}, "ideal"),
        ("turboderp/Llama-3.1-8B-Instruct-exl2-4.25bpw", {"gpu": "rtx-4090"}, "ideal"),
    ],
)
def test_formats_and_cards_say_which_engine_is_meant(model: str, asked: dict, engine: str) -> None:
    assert kvcalc.deployment(model, **asked).served_by == engine


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "ideal"])
def test_exllamas_weights_are_refused_by_engines_that_do_not_run_them(engine: str) -> None:
    with pytest.raises(kvcalc.UnsupportedError, match=f"{engine} does not run weights in exl3"):
        kvcalc.deployment("llama3.1-8b", weights="exl3-4bpw", engine=engine)


def test_a_bound_of_exllamas_weights_says_so() -> None:
    fit = kvcalc.fit(kvcalc.deployment("llama3.1-8b", gpu="rtx-4090", weights="exl3-4bpw"), context=4096)
    assert fit.engine == "ideal"
    assert any("no engine described here runs ExLlama weights" in note for note in fit.notes)


def test_estimates_follow_the_engine_that_is_meant() -> None:
    found = kvcalc.decode(kvcalc.deployment("llama3.1-8b", gpu="rtx-4090", weights="bf16,mlp=q4_k"), estimate=True)
    assert found.calibration is not None
    assert found.calibration.engine == "llama.cpp"


def test_sglangs_copies_are_counted_inside_its_tensor_ranks() -> None:
    deployment = kvcalc.deployment(
        "deepseek-v3", gpu="h200", gpus=8, tensor_parallel=8, data_parallel=8, engine="sglang"
    )
    parallel = deployment.parallel
    assert (parallel.tensor, parallel.data, parallel.expert, parallel.gpus) == (1, 8, 8, 8)
    with pytest.raises(kvcalc.InputError, match="8 GPUs are not"):
        kvcalc.deployment("deepseek-v3", gpu="h200", gpus=8, tensor_parallel=8, data_parallel=8)


def test_llama_cpp_caches_in_16_bits_whatever_built_the_deployment() -> None:
    started = kvcalc.fit(kvcalc.deployment("llama3.1-8b", gpu="rtx-4090", weights="q4_0"), context=4096)
    assert started.formats.kv == "fp16"
    quantised = kvcalc.deployment("llama3.1-8b", kv_dtype="q8_0", engine="llama.cpp")
    assert quantised.formats.key == quantised.formats.value == parse_format("q8_0")


def test_only_what_fits_is_best() -> None:
    sides = [side(gpu, kvcalc.deployment("llama3.1-70b", gpu=gpu), context=4096) for gpu in ("h200", "b200")]
    rows = {row.quantity: row for row in compare(sides).rows}
    assert rows["decode.fits"].values == (False, True)
    for name in ("fit.max_batch", "fit.max_context", "decode.tokens_per_s", "prefill.ideal_s"):
        assert rows[name].best == (1,), name


def test_a_memory_without_a_unit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fit", "--model", "llama3.1-8b", "--kv-memory", "20") == 2
    told = capsys.readouterr().err
    assert told == "error: kv-memory: '20' has no unit: bytes or GiB?\nhint: write 20GiB, 20GB or 20B\n"


@pytest.mark.parametrize(
    ("context", "said"), [("32k", "32Ki is 32,768"), ("32Ki", ""), ("32000", "32Ki is 32,768"), ("10k", ""), ("2k", "")]
)
def test_thousands_are_told_from_1024s(context: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    for model in ("llama3.1-8b", "qwen3-8b"):  # whatever the limit: 131,072 and 40,960
        notes = printed(capsys, "size", "--model", model, "--context", context)["notes"]
        assert any(said in note for note in notes) if said else not any("Ki is" in note for note in notes)


def test_thousands_that_may_mean_the_models_limit_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    notes = printed(capsys, "size", "--model", "qwen3-8b", "--context", "40k")["notes"]
    assert "context 40,000 is 40k; 40Ki is 40,960, and the limit 40,960" in notes


def test_speeds_say_under_which_engine_they_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("decode", "--model", "llama3.1-8b", "--gpu", "h100-sxm", "--batch", "64", "--context", "8192") == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("DOES NOT FIT: under vllm, the cache does not hold 64 sequences of 8,192 tokens")
    answer = printed(
        capsys, "decode", "--model", "llama3.1-8b", "--gpu", "h100-sxm", "--batch", "64", "--context", "8192",
        "--engine", "ideal",
    )  # fmt: skip
    assert answer["rows"][0]["fits"] is True


# 8 x 50 GB/s of ConnectX-7 against 900 GB/s of NVLink 5; 8 x 63 GB/s of PCIe is more than NVLink 4 has
@pytest.mark.parametrize(
    ("gpu", "gpus", "bytes_per_s", "said"),
    [
        ("b200", 8, 900e9, ""),
        ("b200", 16, 400e9, "16 GPUs are more than the 8 that NVLink 5 joins: they exchange over 8 x ConnectX-7 400G"),
        ("gb200", 16, 900e9, ""),
        ("h100-sxm", 16, 450e9, "16 GPUs are more than the 8 that NVLink 4 joins"),
        ("rtx-a6000", 2, 56.25e9, ""),
        (
            "a100-80gb-pcie",
            4,
            63e9,
            "4 GPUs are more than the 2 that NVLink 3 bridge joins: they exchange over 2 x PCIe",
        ),
    ],
)
def test_more_gpus_than_a_link_joins_exchange_over_the_next(gpu: str, gpus: int, bytes_per_s: float, said: str) -> None:
    deployment = kvcalc.deployment("llama3.1-70b", gpu=gpu, tensor_parallel=gpus)
    assert deployment.hardware is not None
    link = deployment.hardware.link(deployment.parallel.exchange_gpus)
    assert link is not None
    assert link.bytes_per_s == bytes_per_s
    notes = [note for note in kvcalc.decode(deployment).notes if "joins" in note]
    assert [said in note for note in notes] == [True] * bool(said)


def test_stages_in_two_domains_leave_the_exchange_of_a_layer_inside_one() -> None:
    inside = kvcalc.deployment("llama3.1-70b", gpu="b200", tensor_parallel=8)
    stages = kvcalc.deployment("llama3.1-70b", gpu="b200", tensor_parallel=8, pipeline_parallel=2)
    assert inside.parallel.exchange_gpus == stages.parallel.exchange_gpus == 8
    assert any("stages pass on between them" in note for note in kvcalc.decode(stages).notes)


@pytest.mark.parametrize(
    ("model", "dtype"),
    [("gemma-3-4b", "fp32"), ("gemma-2-9b", "fp32"), ("glm-4-9b-0414", "fp32"), ("llama3.1-8b", "fp16")],
)
def test_vllm_runs_what_is_unstable_in_float16_in_32_bits_on_cards_without_bfloat16(model: str, dtype: str) -> None:
    formats = kvcalc.deployment(model, gpu="t4", engine="vllm").formats
    assert formats.weights.name == formats.key.name == formats.activations.name == dtype


@pytest.mark.parametrize(
    ("engine", "variable"),
    [("vllm", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"), ("sglang", "SGLANG_ALLOW_OVERWRITE"), ("ideal", "")],
)
def test_engines_refuse_lengths_beyond_the_models(engine: str, variable: str) -> None:
    report = kvcalc.fit(kvcalc.deployment("llama2-7b", gpu="b200", engine=engine), context=8192)
    assert report.fits == (not variable)
    assert variable in report.reason


def test_the_default_limit_of_sequences_counts_as_the_same_limit_of_ones_own() -> None:
    small = kvcalc.deployment("qwen2.5-0.5b", gpu="h100-sxm")
    default = kvcalc.fit(small, context=256, batch=1025)
    own = kvcalc.fit(small, engine="vllm", options=EngineOptions(max_num_seqs=1024), context=256, batch=1025)
    assert default.reason == own.reason == "the engine takes at most 1,024 sequences at once"
    assert default.max_batch == own.max_batch == 1024
    assert kvcalc.fit(kvcalc.deployment("qwen2.5-0.5b", gpu="rtx-4090"), context=256).max_batch == 256


def test_newer_versions_than_described_are_told() -> None:
    for version, told in (("0.33", False), ("0.34", True)):
        report = kvcalc.fit(
            kvcalc.deployment("qwen3-next-80b-a3b"),
            engine="vllm",
            options=EngineOptions(version=version),
            context=4096,
            kv_memory_bytes=40 * GIB,
        )
        assert any("is newer than 0.33" in note for note in report.notes) == told


def test_a_simulated_engine_starts_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--prompt", "64", "--output-tokens", "4", "--rate", "2", "--requests", "3")
    asked = ("simulate", "--model", "llama3.1-8b", "--gpu", "rtx-4090", *load)
    assert run(*asked, "--max-model-len", "131072") == 2
    assert "vllm does not start: the cache does not hold one sequence" in capsys.readouterr().err
    notes = printed(capsys, *asked)["notes"]
    assert any("the longest that starts: vllm refuses 131,072 here" in note for note in notes)
    notes = printed(capsys, "simulate", "--model", "qwen3-8b", "--gpu", "m4-max-40", *load)["notes"]
    assert any("the scheduler of llama.cpp" in note for note in notes)


def test_fits_without_a_model_of_the_engines_memory_says_so() -> None:
    two = kvcalc.deployment("llama3.1-70b", gpu="rtx-4090", tensor_parallel=2, weights="q4_k")
    notes = kvcalc.decode(two, contexts=[4096]).notes
    assert any(note.startswith("fit counts weights and KV cache only: llama.cpp on several GPUs") for note in notes)
    one = kvcalc.deployment("llama3.1-8b", gpu="rtx-4090", weights="q4_k")
    assert not any("KV cache only" in note for note in kvcalc.decode(one, contexts=[4096]).notes)


def test_size_asks_an_engines_defaults_of_a_card_as_fit_does(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--model", "gemma-3-12b", "--context", "32768", "--engine", "vllm", "--gpu", "l40s")
    size, fit = printed(capsys, "size", *asked), printed(capsys, "fit", *asked)
    assert size["reserved"]["total_bytes"] == fit["reserved_kv_bytes"]
    assert "2,048 tokens per pass" in size["assumed"]


def test_a_number_of_gpus_means_tensor_ranks_and_another_layout_that_fits_is_told() -> None:
    # two cards hold a 70B model by tensor parallelism where the engine takes less than the worst case
    two = kvcalc.deployment("llama3.1-70b", gpu="h100-sxm", gpus=2)
    assert (two.parallel.tensor, two.parallel.pipeline) == (2, 1)
    report = kvcalc.fit(two, context=8192)
    assert not report.fits
    assert any("taken as --tp 2, which does not hold it; --pp 2 does" in note for note in report.notes)
    assert kvcalc.decode(two, contexts=[1024]).rows[0].tokens_per_s_per_sequence > 45
