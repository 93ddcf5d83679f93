"""Decode context parallelism: what a rank holds, what the engine prints, and what it refuses."""

import json

import pytest

from kvcalc.api import load_model
from kvcalc.cli.main import main
from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.formats import FORMATS
from kvcalc.core.units import ceil_div
from kvcalc.core.workload import Formats
from kvcalc.engines.vllm import VllmOptions, capacity, layout
from kvcalc.engines.vllm.context import check_decode_context

FP8 = Formats(key=FORMATS["fp8"], value=FORMATS["fp8"])


def test_ranks_share_the_tokens_of_latent_attention() -> None:
    # vLLM 0.33, FullAttentionSpec.max_memory_usage_bytes: ceil(ceil(L / dcp) / b); resolve_dcp_kv_block_size: b * dcp
    model = load_model("deepseek-v3")
    plain, shared = (
        layout(model, FP8, VllmOptions(max_model_len=100_000, decode_context_parallel=ranks), tensor=8)
        for ranks in (1, 8)
    )
    assert plain.needed_blocks == ceil_div(100_000, 64)
    assert shared.needed_blocks == ceil_div(ceil_div(100_000, 8), 64)
    assert shared.bytes_per_block == plain.bytes_per_block
    assert (shared.block_size, shared.scheduler_block_size, shared.hash_block_size) == (64, 512, 512)
    memory = 40 * 2**30
    blocks = memory // shared.bytes_per_block
    assert capacity(shared, kv_memory_bytes=memory).kv_tokens == int(blocks / 196 * 100_000)
    older = capacity(shared, kv_memory_bytes=memory, version="0.19").kv_tokens
    assert older == blocks * 64 * 8


def test_states_are_on_every_rank() -> None:
    model = load_model("kimi-linear-48b-a3b")
    plain, shared = (
        layout(model, Formats(), VllmOptions(max_model_len=65536, decode_context_parallel=ranks), tensor=2)
        for ranks in (1, 2)
    )
    held = [{group.needed_blocks for group in each.groups if group.kind == "state"} for each in (plain, shared)]
    assert held[0] == held[1]
    assert shared.needed_blocks < plain.needed_blocks


def test_windows_are_not_shared() -> None:
    with pytest.raises(UnsupportedError, match="decode context parallelism"):
        layout(
            load_model("gpt-oss-20b"), Formats(), VllmOptions(max_model_len=4096, decode_context_parallel=2), tensor=16
        )


@pytest.mark.parametrize(
    ("model", "tensor", "ranks", "words"),
    [
        ("deepseek-v3", 8, 3, "does not divide the 8 tensor-parallel ranks"),
        ("llama3.1-8b", 8, 2, "more than the 1 ranks"),
        ("qwen3-235b-a22b-fp8", 8, 4, "more than the 2 ranks"),
    ],
)
def test_sizes_that_the_engine_refuses(model: str, tensor: int, ranks: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_decode_context(load_model(model), tensor=tensor, ranks=ranks)
    check_decode_context(load_model(model), tensor=tensor, ranks=1)


def test_the_command_takes_the_engines_option(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "fit",
        "--model",
        "deepseek-v3",
        "--engine",
        "vllm",
        "--gpu",
        "h200",
        "--tp",
        "8",
        "--kv-memory",
        "20GiB",
        "--json",
    ]
    tokens = []
    for more in ([], ["--dcp", "8"]):
        with pytest.raises(SystemExit):
            main([*asked, *more])
        tokens.append(json.loads(capsys.readouterr().out)["kv_capacity_tokens"])
    assert tokens[1] > 7 * tokens[0]
