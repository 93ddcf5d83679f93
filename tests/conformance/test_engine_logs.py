"""Numbers that real engines printed, against those computed from the model: within the rounding of their digits.

`engine_logs.yaml` among the shipped facts holds 19 records with their sources; it is tested everywhere. Where ``KVCALC_TRUTH`` names a
folder with the full ground truth, every record of its ``engine_logs.yaml`` that names its model is tested too. A record
is written out as the log it was taken from and read back by the command's own way.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvcalc
from kvcalc import api
from kvcalc.core.model import Block, Full, ModelProfile, State
from kvcalc.core.units import GIB
from kvcalc.core.workload import Formats
from kvcalc.engines.vllm import Layout, VllmOptions, layout
from kvcalc.evidence.log_text import log_of

Record = dict[str, Any]

FACTS = Path(kvcalc.__file__).parent / "evidence" / "facts"
OWN: dict[str, Record] = {record["id"]: record for record in yaml.safe_load((FACTS / "engine_logs.yaml").read_text())}
TRUTH = Path(os.environ["KVCALC_TRUTH"]) if os.environ.get("KVCALC_TRUTH") else None


def truth_records() -> dict[str, Record]:
    if TRUTH is None:
        return {}
    return {record["id"]: record for record in yaml.safe_load((TRUTH / "engine_logs.yaml").read_text())}


RECORDS = truth_records()


def mamba2(*, heads: int, head_dim: int, state_size: int) -> State:
    return State(
        variant="mamba2",
        heads=heads,
        key_dim=state_size,
        value_dim=head_dim,
        conv_channels=heads * head_dim + 2 * state_size,
        conv_window=4,
        conv_kernel=4,
        recurrent_format="fp32",
    )


def delta_net(*, value_heads: int, key_heads: int, requested: str | None) -> State:
    return State(
        variant="gated_delta",
        heads=value_heads,
        key_dim=128,
        value_dim=128,
        conv_channels=128 * (2 * key_heads + value_heads),
        conv_window=4,
        conv_kernel=4,
        recurrent_format="fp32",
        requested_format=requested,
    )


def profile(name: str, architecture: str, blocks: tuple[Block, ...]) -> ModelProfile:
    return ModelProfile(
        name=name, architecture=architecture, hidden_size=1, context_limit=None, blocks=blocks, embeddings=(), head=None
    )


def alternating(state: State, attention: Full, *, periods: int) -> tuple[Block, ...]:
    """Three state layers, one attention layer, and so on."""
    return (*[Block(mixers=(state,))] * 3, Block(mixers=(attention,))) * periods


# Models that have no catalogue profile, by the shape the record gives. What the record leaves open is pinned by other
# numbers of the same log: the padding of the state's page, or the block that had to hold the state.
ZAMBA = mamba2(heads=80, head_dim=64, state_size=64)
ZAMBA_ATTENTION = Full(heads=32, kv_heads=32, head_dim=160)
FALCON_H1 = Block(mixers=(mamba2(heads=32, head_dim=128, state_size=256), Full(heads=10, kv_heads=2, head_dim=128)))
BUILT = {
    "zamba2-27b-5060ti": profile(
        "zamba2-2.7b",
        "zamba2",
        tuple(
            Block(mixers=(ZAMBA_ATTENTION, ZAMBA) if layer in (6, 12, 18, 24, 30, 36, 42, 47, 51) else (ZAMBA,))
            for layer in range(54)
        ),
    ),
    "falcon-h1-3b-5060ti": profile("falcon-h1-3b", "falcon_h1", (FALCON_H1,) * 32),
    "qwen35-2b-262k": profile(
        "qwen3.5-2b",
        "qwen3_5_text",
        alternating(
            delta_net(value_heads=16, key_heads=16, requested="fp32"),
            Full(heads=8, kv_heads=2, head_dim=256),
            periods=6,
        ),
    ),
    "hybrid-92l-512e-gb300-dp": profile(
        "92-layer-hybrid",
        "qwen3_5_moe_text",
        alternating(
            delta_net(value_heads=128, key_heads=16, requested=None),
            Full(heads=32, kv_heads=4, head_dim=256),
            periods=23,
        ),
    ),
}

# Models that the catalogue has under another name: of the same shape, or what a record's hint pins.
KNOWN_AS = {
    "deepseek-fixture-tp8": "deepseek-v3",
    "deepseek-r1-mla-ik-32k": "deepseek-r1",
    "dsa-256e-h200-tp8": "glm-5",
    "dsv4-flash-0731-h100-tp8": "deepseek-v4-flash",
    "dsv4-flash-tp8-256k": "deepseek-v4-flash",
    "glm4-32b-0414-ik": "glm-4-32b",
    "granite31-8b-h100": "granite-3.3-8b",
    "llama32-3b-shape-4k": "llama3.2-3b",
    "mistral-7b-ollama-4k": "mistral-7b",
    "qwen2-32b-class-sglang-tp4": "qwen2.5-32b",
    "qwen3-36l-131k": "qwen3-8b",
    "qwen3-8b-shape-4090": "qwen3-8b",
    "qwen36-27b-dflash-tp2-4090": "qwen3.6-27b",
    "qwen36-27b-int4-tp2-3090": "qwen3.6-27b",
    "qwen36-ollama-32k": "qwen3.6-35b-a3b",
    "qwen38-27b-fp8-tp2-3090": "qwen3.6-27b",
    "qwen38-27b-int4-mtp-b70-096-err": "qwen3.6-27b",
    "qwen38-27b-llamacpp-32k": "qwen3.6-27b",
    "qwen38-27b-tp2-rx7900xt": "qwen3.6-27b",
}

# What a record says in words (``note``, ``spec_decode``) and its log printed as a number.
ALSO_PRINTED: dict[str, Record] = {
    "falcon-h1-3b-5060ti": {"state_padding_percent": 0.24},
    "gemma3-27b-h100": {"padding_waste_percent": 15.38, "prefix_caching": False},
    "gemma4-26b-a4b-awq-3090-256k-err": {"speculation": "method='mtp', num_spec_tokens=4"},
    "gpt-oss-20b-h100-tp2": {"prefix_caching": False},
    "hybrid-92l-512e-gb300-dp": {"state_padding_percent": 0.19},
    "llama4-scout-h100-tp4": {"prefix_caching": False},
    "qwen36-27b-dflash-tp2-4090": {"speculation": "method='dflash'"},
    "qwen38-27b-int4-mtp-b70-096-err": {"speculation": "method='mtp', num_spec_tokens=4"},
    "zamba2-27b-5060ti": {"state_padding_percent": 43.12},
}

# Records that name a model of which there is neither a catalogue profile nor a published config.
WITHOUT_CONFIG = {"glm53-flash-tp2-spark-C", "glm53-tp-095", "ornith-9b-f16-256k"}

# Records that differ, and the term that makes them equal: each is shown by its own test below.
EXCEPTIONS = {
    "deepseek-v32-sglang-dp8-noindex": "KV format not printed: fp8, 656 B a token and layer",
    "minimax-m27-awq-tp2": "memory of one rank printed, another decides",
    "qwen3-235b-fp8-tp4-vllm": "memory of one rank printed, another decides",
    "qwen3-vl-8b-ascend-tp2": "blocks of 128 tokens (Ascend)",
    "qwen36-27b-dflash-tp2-4090": "a draft model of five layers and five draft tokens, not printed",
    "qwen36-27b-int4-tp2-3090": "fp8 KV and one draft layer with three draft tokens, not printed",
    "qwen38-27b-int4-mtp-b70-096-err": "blocks of 832 tokens, in steps of 32 or 64 instead of 16 (XPU)",
    "qwen38-27b-llamacpp-32k": "cache type not printed: q8_0",
}
# The words of a reason: a term with which the number agrees, a count that cannot occur, or a draft that is not modelled.
EXPLAINED = r"agrees with|nearest: |need no more blocks|the cache of the draft model .* is not modelled"
# DeepSeek-V4 in builds before 0.33, whose layout is the one described; the first does not print its longest sequence.
OLDER = {"dsv4-flash-0731-h100-tp8", "dsv4-flash-tp8-256k"}


def tells_enough(record: Record) -> bool:
    """Whether it prints both memory and tokens, or the memory needed for a length."""
    memory = record.keys() & {"available_kv_gib", "total_kv_mib", "k_gb_printed", "total_kv_gb_printed"}
    return bool(memory and record.keys() & {"kv_tokens", "gpu_blocks", "cells", "needed_gib", "max_concurrency"})


def names_model(record: Record) -> bool:
    return "model" in record or record["id"] in KNOWN_AS or record["id"] in BUILT


IN_SCOPE = [name for name, record in RECORDS.items() if tells_enough(record) and names_model(record)]
EQUAL = [name for name in IN_SCOPE if name not in {*EXCEPTIONS, *OLDER, *WITHOUT_CONFIG}]


def reconciled(record: Record, **printed: Any) -> Any:
    record = {**record, **ALSO_PRINTED.get(record["id"], {}), **printed}
    return api.reconcile(log_of(record), model=BUILT.get(record["id"]) or KNOWN_AS.get(record["id"]))


def check_equal(report: Any) -> None:
    assert report.rows
    assert report.agrees, [row for row in report.rows if not row.agrees]


@pytest.mark.parametrize("name", OWN)
def test_a_printed_number_is_computed_again(name: str) -> None:
    check_equal(api.reconcile(log_of(OWN[name]), model=OWN[name].get("profile")))


full = pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")


@full
@pytest.mark.parametrize("name", EQUAL)
def test_full_truth(name: str) -> None:
    check_equal(reconciled(RECORDS[name]))


@full
def test_the_full_truth_was_found() -> None:
    assert len(RECORDS) >= 68
    assert len(EQUAL) == 41
    assert {*EXCEPTIONS, *OLDER} <= set(IN_SCOPE)


@full
@pytest.mark.parametrize("name", sorted(EXCEPTIONS))
def test_an_exception_differs_as_it_stands(name: str) -> None:
    assert not reconciled(RECORDS[name]).agrees


@full
@pytest.mark.parametrize("name", [name for name in IN_SCOPE if name not in OLDER and name not in WITHOUT_CONFIG])
def test_every_record_agrees_or_is_explained(name: str) -> None:
    report = reconciled(RECORDS[name])
    unexplained = [row for row in report.rows if not row.agrees and not re.search(EXPLAINED, row.reason)]
    assert not unexplained


@full
@pytest.mark.parametrize("name", sorted(OLDER))
def test_a_layout_of_another_build_is_not_said_to_agree(name: str) -> None:
    report = reconciled(RECORDS[name])
    tokens = next(row for row in report.rows if row.quantity == "kv_cache_tokens")
    assert not report.agrees
    assert tokens.reason


@full
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        pytest.param("qwen36-27b-int4-tp2-3090", {
            "kv_cache_dtype": "fp8", "speculation": "method='mtp', num_spec_tokens=3"}, id="fp8 and three draft tokens"),
        pytest.param("qwen38-27b-llamacpp-32k", {"kv_cache_dtype": "q8_0"}, id="a cache of q8_0"),
        pytest.param("deepseek-v32-sglang-dp8-noindex", {"kv_cache_dtype": "fp8_e4m3"}, id="656 bytes a token"),
    ],
)  # fmt: skip
def test_an_exception_agrees_once_the_missing_term_is_printed(name: str, printed: Record) -> None:
    check_equal(reconciled(RECORDS[name], **printed))


@full
@pytest.mark.parametrize("name", ["qwen36-27b-int4-tp2-3090", "qwen38-27b-int4-mtp-b70-096-err"])
def test_the_missing_term_is_found_by_trying(name: str) -> None:
    reasons = " ".join(row.reason for row in reconciled(RECORDS[name]).rows)
    term = {"qwen36": "KV kept in fp8, not fp16", "qwen38": "blocks in multiples of"}[name[:6]]
    assert term in reasons


def bytes_within(printed_gib: float, size: float) -> bool:
    return abs(size / GIB - printed_gib) <= 0.005


def gpu_layout(model: ModelProfile, *, length: int, tensor: int = 1, **options: Any) -> Layout:
    return layout(model, Formats(), VllmOptions(max_model_len=length, **options), tensor=tensor)


@full
def test_minimax_another_rank_decides() -> None:
    # The same thread's refused attempt fixes the bytes of a token: 62 layers x 4 kv heads x 256 x 2 B = 126,976 B, and
    # 196,608 of them are the 23.25 GiB it needed. The 15,051 blocks printed then take 28.478 GiB, less than the 28.74
    # printed by one of two ranks, and give 1.2249 requests, as printed.
    placed = gpu_layout(api.load_model("minimax-m2.7"), length=196608, tensor=2)
    assert placed.bytes_per_block == 16 * 126976
    assert bytes_within(23.25, placed.needed_bytes)
    blocks = 240816 // 16
    assert blocks * 16 == 240816
    assert bytes_within(28.478, blocks * placed.bytes_per_block)
    assert round(blocks / placed.needed_blocks, 2) == 1.22
    assert "28.48 GiB on another rank" in reconciled(RECORDS["minimax-m27-awq-tp2"]).rows[0].reason


@full
def test_qwen3_235b_another_rank_decides() -> None:
    # 94 layers x 1 kv head x 256 x 2 B = 48,128 B a token; SGLang's line in the same thread has the same bytes. 11,180
    # blocks take 8.018 GiB, less than the 8.11 printed by one of four ranks. No other term does it: the printed numbers
    # would need 48,651 to 48,711 B a token, and neither 95 layers (48,640 B) nor any other whole number gives that.
    placed = gpu_layout(api.load_model("qwen3-235b-a22b-fp8"), length=40960, tensor=4)
    assert placed.bytes_per_block == 16 * 48128
    blocks = 178880 // 16
    assert bytes_within(8.018, blocks * placed.bytes_per_block)
    least, most = 8.105 * GIB / (178880 + 16), 8.115 * GIB / 178880
    assert not [layers for layers in range(1, 200) if least <= 512 * layers <= most]
    check_equal(reconciled(RECORDS["qwen3-235b-fp8-tp4-sglang"]))


@full
def test_ascend_has_blocks_of_128_tokens() -> None:
    # 559,232 tokens are 4,369 whole blocks of 128; with blocks of 16 the memory printed would give 559,312 or more.
    model = api.load_model("qwen3-vl-8b")
    placed = gpu_layout(model, length=65536, tensor=2, block_size=128)
    counts = {int((38.41 + edge) * GIB) // placed.bytes_per_block * 128 for edge in (-0.005, 0.005)}
    assert min(counts) <= 559232 <= max(counts)
    smaller = gpu_layout(model, length=65536, tensor=2)
    assert int((38.41 - 0.005) * GIB) // smaller.bytes_per_block * 16 > 559232


@full
def test_xpu_has_blocks_of_832_tokens() -> None:
    # One draft layer beside 16 of attention makes groups of 17; with steps of 32 or 64 the block is 832 tokens
    # (816 with 16), and
    # 158 + 3 x (2 + 4) blocks of 17 x 832 x 4,096 B are the 9.5 GiB needed; 150 blocks fit, 109,824 tokens exactly.
    model = api.load_model("qwen3.6-27b")
    drafted = replace(model, blocks=(*model.blocks, model.blocks[3]))
    placed = gpu_layout(drafted, length=131072, speculative_tokens=4, block_size=64)
    assert placed.bytes_per_block == 17 * 832 * 4096
    assert placed.needed_blocks == 158 + 3 * (2 + 4)
    assert bytes_within(9.5, placed.needed_bytes)
    fits = gpu_layout(drafted, length=109824, speculative_tokens=4, block_size=64)
    more = gpu_layout(drafted, length=109825, speculative_tokens=4, block_size=64)
    assert fits.needed_bytes <= 8.125 * GIB < more.needed_bytes


@full
def test_dflash_drafts_with_five_layers_and_five_tokens() -> None:
    # 67,728 tokens are 83 x 816: five columns more of the convolution need blocks of 816 (five or six draft tokens do).
    # Five draft layers with pages of the same size make groups of five: 10 + 4 + 1 of them, 1,251 blocks in 9.74 GiB,
    # 1,251 // 15 = 83. A request takes 5 x 221 + 10 x (2 + 5) blocks, and 1,251 / 1,175 is the 1.06 printed.
    model = api.load_model("qwen3.6-27b")
    draft = Block(mixers=(Full(heads=32, kv_heads=8, head_dim=128),))
    placed = gpu_layout(
        replace(model, blocks=(*model.blocks, *[draft] * 5)), length=180000, tensor=2, speculative_tokens=5
    )
    blocks = int(9.74 * GIB) // placed.bytes_per_block
    assert (len(placed.groups), placed.configured_block_size, blocks) == (15, 816, 1251)
    assert blocks // 15 * 816 == 67728
    assert placed.needed_blocks == 5 * 221 + 10 * 7
    assert round(blocks / placed.needed_blocks, 2) == 1.06


@full
def test_sglang_leaves_the_index_keys_out() -> None:
    # 61 layers x 656 B x 1,462,784 tokens are the 54.52 printed, with 61 x 132 B more the 65.49 the thread gives.
    assert bytes_within(54.52, 61 * 656 * (1462784 + 64))
    assert bytes_within(65.49, 61 * (656 + 132) * (1462784 + 64))


@full
@pytest.mark.parametrize("name", ["gemma4-26b-a4b-awq-3090-40k", "gemma4-26b-a4b-awq-3090-42k"])
def test_one_pool_of_gemma_4_gives_two_token_counts_for_two_lengths(name: str) -> None:
    # The memory was printed at the larger attempt of the same thread.
    memory = RECORDS["gemma4-26b-a4b-awq-3090-256k-err"]["available_kv_gib"]
    report = reconciled(RECORDS[name], available_kv_gib=memory, speculation="method='mtp', num_spec_tokens=4")
    check_equal(report)
    assert "4,096 tokens in flight" in report.rows[0].reason


@full
def test_qwen_3_8_prints_as_many_state_blocks_as_it_has_blocks() -> None:
    # 161 state blocks are the note's; the estimate of 123,872 tokens takes all of them, so no block was kept back.
    placed = gpu_layout(api.load_model("qwen3.6-27b"), length=123872, tensor=2, prefix_caching=False)
    assert placed.needed_blocks == int(3.86 * GIB) // placed.bytes_per_block == 161
