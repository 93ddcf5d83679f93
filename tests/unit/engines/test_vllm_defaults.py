"""The options that vLLM's server takes by itself: by card, by version, by model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcalc.api import load_hardware, load_model
from kvcalc.core.units import GIB
from kvcalc.engines.vllm.defaults import batch_defaults, passes_in_flight

CARD = load_hardware("h100-sxm")


def sized(memory_bytes: int, *, version: str = "0.32") -> tuple[int, int]:
    found = batch_defaults(replace(CARD, memory_bytes=memory_bytes), version=version)
    return found.max_num_batched_tokens, found.max_num_seqs


# vLLM 0.32, EngineArgs.get_batch_defaults: >= 160 GiB, >= 70 GiB, below
@pytest.mark.parametrize(
    ("memory_bytes", "expected"),
    [
        (70 * GIB - 1, (2048, 256)),
        (70 * GIB, (8192, 1024)),
        (160 * GIB - 1, (8192, 1024)),
        (160 * GIB, (16384, 1024)),
    ],
)
def test_the_edges_of_memory_decide_a_servers_pass(memory_bytes: int, expected: tuple[int, int]) -> None:
    assert sized(memory_bytes) == expected


def test_the_largest_cards_had_no_defaults_of_their_own_before_0_28() -> None:
    assert sized(180 * GIB, version="0.27.1") == (8192, 1024)
    assert sized(180 * GIB, version="0.28.0") == (16384, 1024)


@pytest.mark.parametrize(
    ("gpu", "tokens", "sequences"),
    [
        ("h100-sxm", 8192, 1024),
        ("h200", 8192, 1024),
        ("b200", 16384, 1024),
        ("mi300x", 16384, 1024),
        ("a100-80gb", 2048, 256),  # left out by name: https://github.com/vllm-project/vllm/pull/17885
        ("l40s", 2048, 256),
        ("rtx-4090", 2048, 256),
        ("dgx-spark", 2048, 256),  # NVML tells no memory of a GB10, which counts as none
    ],
)
def test_cards_take_what_the_engine_gives_them(gpu: str, tokens: int, sequences: int) -> None:
    found = batch_defaults(load_hardware(gpu))
    assert (found.max_num_batched_tokens, found.max_num_seqs) == (tokens, sequences)


def test_a_pass_holds_no_more_than_all_sequences_at_their_longest() -> None:
    assert batch_defaults(None, max_model_len=4).max_num_batched_tokens == 1024 * 4
    assert batch_defaults(None, platform="cpu", ranks=2).max_num_batched_tokens == 2048 * 2


@pytest.mark.parametrize(
    ("model", "asked", "passes"),
    [
        ("gemma-3-12b", {"version": "0.25.1"}, 1),
        ("gemma-3-12b", {"version": "0.26"}, 2),
        ("gemma-3-12b", {}, 2),
        ("gemma-3-12b", {"platform": "cpu"}, 1),
        ("gemma-3-12b", {"method": "ngram"}, 1),
        ("gemma-3-12b", {"method": "eagle"}, 2),
        ("gemma-3-12b", {"pipeline": 4}, 5),
        ("gemma-3-12b", {"pipeline": 4, "version": "0.28.1"}, 5),
        ("gpt-oss-20b", {"pipeline": 4, "version": "0.28.1"}, 4),  # mixtures ran on the first model runner
        ("gpt-oss-20b", {"pipeline": 1, "version": "0.28.1"}, 2),
        ("gpt-oss-20b", {"pipeline": 4, "version": "0.29"}, 5),
    ],
)
def test_passes_in_flight_follow_version_stages_and_drafts(model: str, asked: dict, passes: int) -> None:
    assert passes_in_flight(load_model(model), **asked) == passes
