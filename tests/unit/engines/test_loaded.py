"""Weights as an engine loads them: padded experts, parts left in files of their own, and bounds that read neither."""

from __future__ import annotations

import pytest

import kvcalc
from kvcalc.core.errors import InputError
from kvcalc.core.units import GIB
from kvcalc.core.workload import Formats
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.vllm.positions import position_tables
from kvcalc.plan.loaded import loaded_weights


def _gib(model: str, gpu: str | None, *, gpus: int = 1, engine: str = "vllm", version: str | None = None) -> float:
    options = EngineOptions(version=version)
    return loaded_weights(kvcalc.deployment(model, gpu=gpu, gpus=gpus, engine=engine, options=options)) / GIB


# Printed by vLLM ("Model loading took"): the weights and, above them, tables of positions and the allocator's rounding.
@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "version", "printed", "above"),
    [
        # https://github.com/llm-d/llm-d-benchmark config_explorer/empirical-vllm-memory-results.md
        ("gpt-oss-120b", "h100-sxm", 1, "0.16", 64.38, 0.002),
        ("gpt-oss-20b", "h100-sxm", 1, "0.16", 13.47, 0.006),
        # a GB10, in several start-up logs of vLLM 0.11 to 0.13
        ("gpt-oss-120b", "dgx-spark", 1, "0.11", 65.9651, 0.002),
        # https://github.com/llm-d-incubation/llm-d-planner accuracy/results/v0.19.0/logs
        ("gpt-oss-20b", "h100-sxm", 2, "0.19.0", 7.01, 0.035),
        ("gemma-3-27b", "h100-sxm", 1, "0.19.0", 51.45, 0.007),
        ("llama3.1-8b", "h100-sxm", 1, "0.19.0", 14.99, 0.003),
    ],
)
def test_loaded_weights_lie_just_below_what_the_engine_prints(
    model: str, gpu: str, gpus: int, version: str, printed: float, above: float
) -> None:
    size = _gib(model, gpu, gpus=gpus, version=version)
    assert size <= printed <= size * (1 + above)


def test_padding_follows_the_kernels_of_the_card_and_the_version() -> None:
    # experts of 2,880 x 2,880: 2,944 x 3,072 in Marlin, 3,072 x 3,072 on large Blackwell cards up to 0.32
    plain = _gib("gpt-oss-120b", None, engine="ideal")
    assert [round(_gib("gpt-oss-120b", gpu) - plain, 2) for gpu in ("h100-sxm", "a100-80gb")] == [3.56, 5.13]
    assert round(_gib("gpt-oss-120b", "b200", version="0.32") - plain, 2) == 7.82
    assert _gib("gpt-oss-120b", "b200") == _gib("gpt-oss-120b", "a100-80gb")
    assert _gib("gpt-oss-120b", None) == _gib("gpt-oss-120b", "h100-sxm")
    with pytest.raises(InputError, match="not a version"):
        _gib("gpt-oss-120b", "b200", version="newest")


@pytest.mark.parametrize("engine", ["sglang", "llama.cpp", "transformers", "ideal"])
def test_other_engines_pad_nothing(engine: str) -> None:
    assert _gib("gpt-oss-120b", "a100-80gb", engine=engine) == 65_248_815_744 / GIB


@pytest.mark.parametrize("model", ["llama3.1-8b", "deepseek-v3", "qwen3-30b-a3b-fp8", "kimi-k2-thinking"])
def test_other_formats_are_not_padded(model: str) -> None:
    assert _gib(model, "a100-80gb") == _gib(model, None, engine="ideal")


def test_shared_experts_are_padded_slice_by_slice() -> None:
    # half of 2,880 is 1,440: rounded to 1,536 by Marlin
    half = _gib("gpt-oss-20b", "a100-80gb", gpus=2) - _gib("gpt-oss-20b", None, gpus=2, engine="ideal")
    matrices = (3 * 1536 * 3072 - 3 * 1440 * 2880) * 17 // 32
    biases = 2 * (2 * 1536 + 3072) - (2 * 2880 + 2880)  # of the output, all of them per GPU
    assert half * GIB == pytest.approx(24 * 32 * (matrices + biases), rel=1e-6)


def test_fit_and_size_give_the_weights_that_the_engine_loads() -> None:
    deployment = kvcalc.deployment("gpt-oss-120b", gpu="h100-sxm")
    budget = kvcalc.fit(deployment, engine="vllm").budget
    size = kvcalc.size(deployment, engine="vllm")
    assert budget is not None
    assert budget.weight_bytes == size.per_gpu.loaded_weight_bytes == loaded_weights(deployment)
    assert size.weights.total_bytes == size.per_gpu.weight_bytes == 65_248_815_744
    assert kvcalc.size(deployment).per_gpu.loaded_weight_bytes is None


def test_a_bound_reads_no_padding_and_no_tower() -> None:
    row = kvcalc.decode(kvcalc.deployment("gpt-oss-120b", gpu="h100-sxm")).rows[0]
    assert row.weight_bytes < 5.2e9
    with_tower, without = (
        kvcalc.prefill(kvcalc.deployment("gemma-3-27b", gpu="h200", towers=towers)).rows[0] for towers in (None, False)
    )
    assert (with_tower.flop, with_tower.ideal_s) == (without.flop, without.ideal_s)


def test_llama_cpp_keeps_towers_in_a_file_of_their_own() -> None:
    deployment = kvcalc.deployment("gemma-3-27b")
    alone, beside = (
        kvcalc.size(deployment, engine="llama.cpp", options=EngineOptions(mmproj=mmproj)) for mmproj in (False, True)
    )
    assert beside.weights.total_bytes - alone.weights.total_bytes == 2 * 423_060_336
    assert "vision" not in alone.weights.parts
    assert any("--mmproj" in note for note in alone.notes)


def test_towers_are_left_out_where_asked_and_the_answer_says_so() -> None:
    text = kvcalc.size(kvcalc.deployment("gemma-3-27b", towers=False))
    assert text.weights.parameters == text.weights.active_parameters == 27_009_346_304
    assert any("--no-towers" in note for note in text.notes)
    assert not any("tower" in note for note in kvcalc.size(kvcalc.deployment("llama3.1-8b", towers=False)).notes)


def test_tables_of_positions_are_part_of_what_may_be_gone() -> None:
    # Llama-4-Scout on four H100, vLLM 0.19: 53.12 GiB loaded and 16.75 GiB left for the cache; its limit is 10,485,760
    options = EngineOptions(version="0.19.0", utilization=0.95, max_num_batched_tokens=8192, max_num_seqs=1024)
    budget = kvcalc.fit(
        kvcalc.deployment("llama4-scout", gpu="h100-sxm", gpus=4), engine="vllm", options=options
    ).budget
    assert budget is not None
    least, most = budget.intervals["kv_bytes_available"]
    assert least <= 16.75 * GIB <= most
    assert budget.weight_bytes + 2.5 * GIB == pytest.approx(53.12 * GIB, rel=1e-3)


def test_a_stretched_model_has_tables_for_all_positions_it_is_stretched_to() -> None:
    # vLLM prints 8.58 GiB for gemma-3-4b-it and 51.45 for gemma-3-27b-it, of which tables for 8 x 131,072 positions
    for name, printed in (("gemma-3-4b", 8.58), ("gemma-3-27b", 51.45)):
        deployment = kvcalc.deployment(name, engine="vllm")
        tables = position_tables(deployment.model, deployment.formats).most
        assert (loaded_weights(deployment) + tables) / GIB == pytest.approx(printed, rel=2e-3)
    assert position_tables(kvcalc.load_model("gemma-3-4b"), Formats()).most == 9 * 131_072 * 256 * 2
