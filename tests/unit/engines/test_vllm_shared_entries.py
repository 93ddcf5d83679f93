"""DeepSeek-V4.1 in vLLM: groups and blocks as the engine's own planner makes them.

The cases were computed by vLLM 0.33.0's ``kv_cache_planning`` over the specs that its classes of ``models/deepseek_v41`` return: on Hopper
584 bytes an entry and blocks of 64, on B200 528, or 288 in NVFP4, and blocks of 128, on RTX Blackwell 584 and 128.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvcalc
from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.formats import FORMATS
from kvcalc.core.workload import Formats
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.vllm import VllmOptions, layout
from kvcalc.engines.vllm.compressed import shared_specs

# generation, cache format, layers, longest request, tokens in flight, bytes of a block, blocks of that request, and groups:
# how many, layers, tokens of a block, bytes of their pages, blocks of the request
CASES: list[tuple[str, str, tuple[int, int], int, int, int, int, list[tuple[int, int, int, int, int]]]] = [
    ("hopper", "fp8_ds_mla", (0, 40), 131072, 8192, 116928, 3876,
     [(5, 6, 32, 114048, 261), (2, 5, 32, 95040, 261), (1, 8, 64, 116928, 2048), (1, 3, 8, 98304, 1)]),
    ("hopper", "fp8_ds_mla", (0, 40), 1048576, 16384, 116928, 20004,
     [(5, 6, 32, 114048, 517), (2, 5, 32, 95040, 517), (1, 8, 64, 116928, 16384), (1, 3, 8, 98304, 1)]),
    ("hopper", "fp8_ds_mla", (0, 40), 4096, 2048, 116928, 548,
     [(5, 6, 32, 114048, 69), (2, 5, 32, 95040, 69), (1, 8, 64, 116928, 64), (1, 3, 8, 98304, 1)]),
    ("blackwell", "nvfp4_ds_mla", (0, 40), 131072, 8192, 136224, 2330,
     [(5, 8, 32, 135168, 261), (1, 8, 128, 135168, 1024), (1, 3, 8, 98304, 1)]),
    ("blackwell", "nvfp4_ds_mla", (0, 40), 1048576, 16384, 136224, 10778,
     [(5, 8, 32, 135168, 517), (1, 8, 128, 135168, 8192), (1, 3, 8, 98304, 1)]),
    ("blackwell", "nvfp4_ds_mla", (0, 40), 4096, 2048, 136224, 378,
     [(5, 8, 32, 135168, 69), (1, 8, 128, 135168, 32), (1, 3, 8, 98304, 1)]),
    ("blackwell", "fp8_ds_mla", (0, 40), 131072, 8192, 212256, 2069,
     [(4, 10, 32, 168960, 261), (1, 8, 128, 211968, 1024), (1, 3, 8, 98304, 1)]),
    ("blackwell", "fp8_ds_mla", (0, 40), 1048576, 16384, 212256, 10261,
     [(4, 10, 32, 168960, 517), (1, 8, 128, 211968, 8192), (1, 3, 8, 98304, 1)]),
    ("blackwell", "fp8_ds_mla", (0, 40), 4096, 2048, 212256, 309,
     [(4, 10, 32, 168960, 69), (1, 8, 128, 211968, 32), (1, 3, 8, 98304, 1)]),
    ("blackwell-rtx", "fp8_ds_mla", (0, 40), 131072, 8192, 230400, 2069,
     [(4, 10, 32, 190080, 261), (1, 8, 128, 230400, 1024), (1, 3, 8, 98304, 1)]),
    ("blackwell-rtx", "fp8_ds_mla", (0, 40), 1048576, 16384, 230400, 10261,
     [(4, 10, 32, 190080, 517), (1, 8, 128, 230400, 8192), (1, 3, 8, 98304, 1)]),
    ("blackwell-rtx", "fp8_ds_mla", (0, 40), 4096, 2048, 230400, 309,
     [(4, 10, 32, 190080, 69), (1, 8, 128, 230400, 32), (1, 3, 8, 98304, 1)]),
    ("hopper", "fp8_ds_mla", (20, 40), 131072, 8192, 46080, 7268,
     [(1, 2, 64, 46080, 2048), (20, 1, 32, 19008, 261)]),
    ("hopper", "fp8_ds_mla", (0, 20), 131072, 8192, 70848, 3877,
     [(6, 3, 32, 57024, 261), (1, 2, 32, 38016, 261), (1, 6, 64, 70848, 2048), (1, 2, 8, 65536, 1), (1, 1, 8, 32768, 1)]),
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> kvcalc.ModelProfile:
    return kvcalc.load_model("deepseek-v4.1-flash")


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{case[1]}-{case[2]}-{case[3]}" for case in CASES])
def test_groups_and_blocks_are_those_of_the_engine(model: kvcalc.ModelProfile, case: tuple[object, ...]) -> None:
    generation, cache, (first, end), longest, in_flight, block_bytes, blocks, groups = case  # type: ignore[misc]
    options = VllmOptions(
        max_model_len=longest, max_num_batched_tokens=in_flight, max_in_flight_batches=1, generation=generation
    )
    formats = Formats(key=FORMATS[cache], value=FORMATS[cache])
    found = layout(model, formats, options, blocks=model.blocks[first:end])
    assert (found.bytes_per_block, found.needed_blocks) == (block_bytes, blocks)
    expected = [tuple(group) for count, *group in groups for _ in range(count)]
    laid_out = [(group.layers, group.block_size, group.bytes_per_block, group.needed_blocks) for group in found.groups]
    assert sorted(laid_out) == sorted(expected)
    assert (found.block_size, found.scheduler_block_size % 64) == (32, 0)


@pytest.mark.parametrize(("drafts", "rows"), [(0, 8), (5, 8), (6, 8), (7, 16), (14, 16), (15, 32)])
def test_a_ring_holds_the_drafts_too(model: kvcalc.ModelProfile, drafts: int, rows: int) -> None:
    """Drafts, the token after them and the row before, as a power of two, eight at least."""
    source = next(block.mixers[0] for block in model.blocks if block.name == "compressed-2")
    specs = shared_specs(source, cache_format="fp8_ds_mla", generation="hopper", speculative_tokens=drafts)
    ring = next(spec for spec in specs if spec.kind == "ring")
    assert (ring.block_size, ring.page_bytes, ring.held_blocks) == (rows, rows * 1024 * 4, 1)


def test_the_cache_has_the_format_that_the_card_reads(model: kvcalc.ModelProfile) -> None:
    for gpu, name in (("h200", "fp8_ds_mla"), ("b200", "nvfp4_ds_mla"), ("rtx-pro-6000", "fp8_ds_mla")):
        assert kvcalc.deployment(model, gpu=gpu, gpus=8, engine="vllm").formats.key.name == name


@pytest.mark.parametrize(
    ("gpu", "keys", "said"),
    [
        ("h200", {"kv_dtype": "bf16"}, "in fp8_ds_mla, not in bf16"),
        ("b200", {"kv_dtype": "bf16"}, "in nvfp4_ds_mla or fp8_ds_mla, not in bf16"),
        ("h200", {"kv_dtype": "nvfp4_ds_mla"}, "for B200"),
        ("mi300x", {}, "on a cdna3 card"),
        ("a100-80gb", {}, "on a ampere card"),
    ],
)
def test_what_the_engine_does_not_keep_is_refused(
    model: kvcalc.ModelProfile, gpu: str, keys: dict[str, str], said: str
) -> None:
    with pytest.raises((InputError, UnsupportedError), match=said):
        kvcalc.fit(kvcalc.deployment(model, gpu=gpu, gpus=8, **keys))  # type: ignore[arg-type]


def test_versions_before_are_not_described(model: kvcalc.ModelProfile) -> None:
    old = kvcalc.deployment(model, gpu="h200", gpus=8, options=EngineOptions(version="0.32"))
    with pytest.raises(UnsupportedError, match=r"0\.32"):
        kvcalc.fit(old)


def test_a_stage_that_begins_behind_its_source_is_refused(model: kvcalc.ModelProfile) -> None:
    two = kvcalc.deployment(model, gpu="h200", gpus=8, tensor_parallel=4, pipeline_parallel=2)
    assert kvcalc.fit(two).fits
    with pytest.raises(UnsupportedError, match="parts no layers"):
        kvcalc.fit(replace(two, parallel=replace(two.parallel, tensor=2, pipeline=4)))
