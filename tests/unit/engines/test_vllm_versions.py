"""What releases of vLLM do otherwise: the values that their own logs printed, asked of the memory model."""

import pytest

from kvcalc import api
from kvcalc.core.units import GIB
from kvcalc.core.workload import Formats, Parallel
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.pools import pool
from kvcalc.engines.vllm import VllmOptions, layout, memory_to_start


def started(model, version, *, gib, length, tensor=1, pipeline=1, **options):
    """The pool of a version, and what it holds of a memory."""
    asked = EngineOptions(version=version, max_model_len=length, **options)
    made = pool("vllm", api.load_model(model), Formats(), Parallel(tensor=tensor, pipeline=pipeline), asked)
    return made, made.held(int(gib * GIB), max_model_len=length)


def test_kimi_linear_on_0_11_keeps_one_state_and_blocks_of_960_tokens():
    # two RTX 3090, 2.30 GiB each, "75,840 tokens", "2.48x" (https://github.com/vllm-project/vllm/issues/28228):
    # 79 blocks of 960 tokens in each of four groups, 125 + 3 blocks a request, and 318 or 319 blocks in the memory
    _, held = started("kimi-linear-48b-a3b", "0.11.1", gib=2.30, length=120000, tensor=2)
    assert (held.tokens, held.block_size) == (75840, 960)
    _, least = started("kimi-linear-48b-a3b", "0.11.1", gib=2.295, length=120000, tensor=2)
    assert (least.tokens, round(least.concurrency, 2)) == (75840, 2.48)


def test_a_later_release_keeps_more_states_and_larger_blocks():
    _, held = started("kimi-linear-48b-a3b", "0.32", gib=2.30, length=120000, tensor=2)
    assert held.block_size == 1024
    assert round(held.concurrency, 2) == 2.41


@pytest.mark.parametrize(
    ("version", "starts", "needed_gib", "longest"),
    [("0.14.1", False, 71.16, 81392), ("0.15.2rc1.dev93", False, 71.16, 81392), ("0.16.0", True, None, 202752)],
)
def test_0_14_and_0_15_check_all_layers_against_one_pipeline_rank(version, starts, needed_gib, longest):
    # GLM-4.7 on eight ranks of 28.57 GiB: "71.16 GiB KV cache is needed", "estimated maximum model length is 81392"
    # (https://github.com/vllm-project/vllm/issues/32105)
    made, held = started("glm-4.7", version, gib=28.57, length=202752, pipeline=8)
    assert held.starts is starts
    if needed_gib is not None:
        assert round(held.needed_bytes / GIB, 2) == needed_gib
    at_once = {length: made.bytes_for(context=length, batch=1) <= 28.57 * GIB for length in (longest, longest + 1)}
    assert at_once[longest]
    assert starts or not at_once[longest + 1]


def test_the_null_block_is_asked_for_from_0_30_on():
    model = api.load_model("llama3.1-8b")
    sizes = {
        version: memory_to_start(model, Formats(), VllmOptions(max_model_len=4096, version=version))
        for version in ("0.29.0", "0.30.0", None)
    }
    assert sizes == {"0.29.0": 256 * 2097152, "0.30.0": 257 * 2097152, None: 257 * 2097152}


def test_windows_are_used_from_0_10_on():
    model = api.load_model("gemma-3-27b")
    needed = {
        version: layout(model, Formats(), VllmOptions(max_model_len=32768, version=version)).needed_bytes
        for version in ("0.9.2", "0.10.0")
    }
    # all 62 layers in full: 2 x 16 heads x 128 x 2 B a token
    assert needed["0.9.2"] == 62 * 32768 * 2 * 16 * 128 * 2
    assert needed["0.10.0"] < 0.7 * needed["0.9.2"]


@pytest.mark.parametrize(("passes", "needed_gib", "tokens"), [(1, 45.79, 626949), (2, 70.79, 509255)])
def test_windows_keep_room_for_the_passes_in_flight(passes, needed_gib, tokens):
    # gemma-4-31b with 32,768 tokens a pass: 0.25.1 needs 45.79 GiB for 262,144 tokens, 0.26 70.79; with 8,192 tokens a
    # pass 0.24 prints 626,949 tokens for 64.68 GiB
    model = api.load_model("gemma-4-31b")
    options = {"max_model_len": 262144, "max_in_flight_batches": passes}
    wide = layout(model, Formats(), VllmOptions(**options, max_num_batched_tokens=32768))
    assert round(wide.needed_bytes / GIB, 2) == needed_gib
    _, held = started(
        "gemma-4-31b", "0.24", gib=64.68, length=262144, max_in_flight_batches=passes, max_num_batched_tokens=8192
    )
    assert held.tokens == tokens


@pytest.mark.parametrize(
    ("version", "tokens"), [("0.24", 626949), ("0.25.1", 626949), ("0.26", 509255), ("0.32", 509255)]
)
def test_a_start_takes_the_passes_of_its_version(version, tokens):
    options = EngineOptions(version=version, max_model_len=262144, max_num_batched_tokens=8192)
    deployment = api.deployment("gemma-4-31b", engine="vllm", options=options)
    held = deployment.start().pool.held(int(64.68 * GIB), max_model_len=262144)
    assert held.tokens == tokens
