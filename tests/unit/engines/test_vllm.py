"""Edge cases of vLLM's memory: too little of it, odd blocks, long windows, many ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcalc.api import load_model
from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.formats import FORMATS
from kvcalc.core.model import (
    Block,
    Chunked,
    Compressed,
    Cross,
    Full,
    Indexer,
    Latent,
    Mixer,
    ModelProfile,
    Shared,
    Sliding,
    State,
)
from kvcalc.core.workload import Formats
from kvcalc.engines.vllm import VllmOptions, capacity, layout, longest_context, stage_layouts

GIB = 2**30
FULL = Full(heads=32, kv_heads=8, head_dim=128)
SLIDING = Sliding(heads=32, kv_heads=8, head_dim=128, window=1024)
LATENT = Latent(heads=16, kv_lora_rank=512, rope_dim=64, nope_dim=128, value_head_dim=128)
INDEXER = Indexer(heads=64, head_dim=128, top_k=2048)
DELTA = State(
    variant="gated_delta",
    heads=32,
    key_dim=128,
    value_dim=128,
    conv_channels=8192,
    conv_window=4,
    conv_kernel=4,
    recurrent_format="fp32",
)
MAMBA2 = State(
    variant="mamba2",
    heads=128,
    key_dim=128,
    value_dim=64,
    conv_channels=8448,
    conv_window=4,
    conv_kernel=4,
    groups=1,
    recurrent_format="fp32",
)
BF16 = Formats()
FP8 = Formats(key=FORMATS["fp8"], value=FORMATS["fp8"])


def model_of(*mixers: Mixer, architecture: str = "llama") -> ModelProfile:
    return ModelProfile(
        name="made up",
        architecture=architecture,
        hidden_size=4096,
        context_limit=None,
        blocks=tuple(Block(mixers=(mixer,)) for mixer in mixers),
        embeddings=(),
        head=None,
    )


def options_of(length: int = 8192, **others: Any) -> VllmOptions:
    return replace(VllmOptions(max_model_len=length), **others)


LLAMA = model_of(*[FULL] * 32)


# Memory.


def test_no_memory_holds_no_blocks_and_is_refused() -> None:
    held = capacity(layout(LLAMA, BF16, options_of()), kv_memory_bytes=0)
    assert (held.num_blocks, held.kv_tokens, held.max_concurrency) == (0, 0, 0.0)
    assert not held.starts


def test_negative_memory_is_bad_input() -> None:
    with pytest.raises(InputError, match="-1 bytes"):
        capacity(layout(LLAMA, BF16, options_of()), kv_memory_bytes=-1)


def test_one_request_needs_the_null_block_too() -> None:
    # layout.md: 4 GiB refuse 32768 tokens of Llama-3.1-8B, 32752 fit
    memory = 4 * GIB
    found = layout(LLAMA, BF16, options_of(32768))
    assert (found.needed_bytes, found.start_bytes) == (memory, memory + 2**21)
    assert not capacity(found, kv_memory_bytes=memory).starts
    assert longest_context(LLAMA, BF16, options_of(131072), kv_memory_bytes=memory) == 32752
    assert longest_context(LLAMA, BF16, options_of(131072), kv_memory_bytes=memory, null_block=False) == 32768


def test_memory_that_is_no_multiple_of_a_block_is_rounded_down() -> None:
    found = layout(LLAMA, BF16, options_of())
    assert capacity(found, kv_memory_bytes=10 * found.bytes_per_block - 1).num_blocks == 9


def test_longest_context_is_bounded_by_the_options_and_by_nothing() -> None:
    assert longest_context(LLAMA, BF16, options_of(4096), kv_memory_bytes=100 * GIB) == 4096
    assert longest_context(LLAMA, BF16, options_of(4096), kv_memory_bytes=0) == 0


@pytest.mark.parametrize("kind", [SLIDING, DELTA, MAMBA2, Chunked(heads=8, kv_heads=8, head_dim=64, chunk=512)])
def test_longest_context_is_the_last_that_starts(kind: Mixer) -> None:
    model, memory = model_of(FULL, kind, kind, kind), 64 * 2**20
    longest = longest_context(model, BF16, options_of(10**6), kv_memory_bytes=memory)
    assert 0 < longest < 10**6
    for length, starts in ((longest, True), (longest + 1, False)):
        assert capacity(layout(model, BF16, options_of(length)), kv_memory_bytes=memory).starts is starts


def test_layers_of_one_stage() -> None:
    whole, half = layout(LLAMA, BF16, options_of()), layout(LLAMA, BF16, options_of(), blocks=LLAMA.blocks[:16])
    assert whole.bytes_per_block == 2 * half.bytes_per_block


def test_stages_take_the_remainder_as_vllm_deals_it() -> None:
    # 7 layers over 3 stages: 2, 3, 2; over 4: 2, 2, 2, 1
    model = model_of(*[FULL] * 7)
    for pipeline, layers in ((1, [7]), (3, [2, 3, 2]), (4, [2, 2, 2, 1])):
        placed = stage_layouts(model, BF16, options_of(), pipeline=pipeline)
        assert [stage.bytes_per_block // 65536 for stage in placed] == layers


def test_more_stages_than_layers_are_bad_input() -> None:
    with pytest.raises(InputError, match="33 pipeline stages"):
        stage_layouts(LLAMA, BF16, options_of(), pipeline=33)


# Blocks.


@pytest.mark.parametrize(
    ("options", "block"),
    [({}, 16), ({"platform": "cpu"}, 128), ({"block_size": 64}, 64), ({"block_size": 64, "platform": "cpu"}, 64)],
)
def test_default_blocks(options: dict[str, Any], block: int) -> None:
    assert layout(LLAMA, BF16, options_of(**options)).block_size == block


@pytest.mark.parametrize(
    ("mixer", "options", "block"),
    [
        (LATENT, {}, 64),
        (LATENT, {"block_size": 16}, 16),
        (LATENT, {"platform": "cpu", "block_size": 64}, 16),
        (replace(LATENT, indexer=INDEXER), {"platform": "cpu"}, 128),
    ],
)
def test_blocks_of_latent_attention(mixer: Mixer, options: dict[str, Any], block: int) -> None:
    assert layout(model_of(mixer), BF16, options_of(**options)).block_size == block


def test_a_length_that_blocks_do_not_divide_takes_one_more() -> None:
    blocks = [layout(LLAMA, BF16, options_of(length)).needed_blocks for length in (1, 16, 17, 8192)]
    assert blocks == [1, 1, 2, 512]


def test_a_windowed_layer_takes_a_block_its_kernel_supports() -> None:
    model = model_of(SLIDING, FULL)
    found = layout(model, BF16, options_of(platform="cpu", block_size=16))
    assert [(group.kind, group.block_size) for group in found.groups] == [("sliding", 32), ("full", 32)]
    assert found.configured_block_size == 16


def test_pages_that_do_not_divide_are_padded() -> None:
    wide = replace(FULL, head_dim=192)
    found = layout(model_of(SLIDING, wide), BF16, options_of())
    assert {group.page_bytes for group in found.groups} == {16 * 8 * 2 * 192 * 2}
    assert {group.block_size for group in found.groups} == {16}


def test_latent_pages_are_never_padded() -> None:
    with pytest.raises(UnsupportedError, match="vLLM refuses this model"):
        layout(model_of(LATENT, SLIDING), BF16, options_of(block_size=16))


def test_blocks_of_two_sizes() -> None:
    found = layout(model_of(SLIDING, replace(FULL, kv_heads=4)), BF16, options_of())
    assert [group.block_size for group in found.groups] == [16, 32]
    assert (found.block_size, found.scheduler_block_size, found.hash_block_size) == (16, 32, 16)


@pytest.mark.parametrize(
    ("sliding", "full", "sizes"),
    [(5, 1, [1] * 6), (52, 10, [9, 9, 9, 9, 8, 8, 10]), (10, 7, [10, 7]), (15, 10, [8, 7, 10]), (14, 10, [14, 10])],
)
def test_group_sizes(sliding: int, full: int, sizes: list[int]) -> None:
    found = layout(model_of(*[SLIDING] * sliding, *[FULL] * full), BF16, options_of())
    assert [group.layers for group in found.groups] == sizes
    assert found.bytes_per_block == max(sizes) * 65536


# Windows.


@pytest.mark.parametrize(("length", "needed"), [(512, 33), (1024, 65), (8192, 513), (65536, 1089)])
def test_a_window_holds_the_tokens_under_way_and_a_block_more(length: int, needed: int) -> None:
    # ceil(min(1023 + 16384, length) / 16) + 1
    assert layout(model_of(SLIDING), BF16, options_of(length)).needed_blocks == needed


def test_a_chunk_holds_the_tokens_under_way() -> None:
    chunked = Chunked(heads=8, kv_heads=8, head_dim=64, chunk=512)
    assert layout(model_of(chunked), BF16, options_of(65536, max_in_flight_batches=1)).needed_blocks == 544


def test_a_cpu_has_one_batch_under_way() -> None:
    assert options_of(platform="cpu").in_flight_tokens == 8192
    assert options_of().in_flight_tokens == 16384


def test_cohere2_windows_are_one_longer() -> None:
    lengths = {
        name: layout(
            model_of(SLIDING, architecture=name), BF16, options_of(10**6, max_num_batched_tokens=8)
        ).needed_blocks
        for name in ("cohere2", "gemma2")
    }
    # 1024 + 16 and 1023 + 16 tokens in blocks of 16
    assert lengths == {"cohere2": 66, "gemma2": 66}
    one = options_of(10**6, max_num_batched_tokens=1, max_in_flight_batches=1)
    assert layout(model_of(SLIDING, architecture="cohere2"), BF16, one).needed_blocks == 66
    assert layout(model_of(SLIDING), BF16, one).needed_blocks == 65


# Ranks.


@pytest.mark.parametrize(("tensor", "page"), [(1, 65536), (2, 32768), (8, 8192), (16, 8192)])
def test_kv_heads_are_replicated_beyond_their_number(tensor: int, page: int) -> None:
    assert layout(LLAMA, BF16, options_of(), tensor=tensor).groups[0].page_bytes == page


def test_latent_vectors_are_replicated() -> None:
    one, eight = (layout(model_of(LATENT), BF16, options_of(), tensor=tensor) for tensor in (1, 8))
    assert one == eight


def test_states_are_split_and_their_groups_repeated() -> None:
    # convolution: (8192 inner + 2 groups x 1 x 128, on 4 ranks 2 x 4 x 128) / ranks x 3 columns; state: heads x 128 x 64
    model = model_of(MAMBA2)
    pages = [layout(model, BF16, options_of(), tensor=tensor).groups[0].page_bytes for tensor in (1, 4)]
    assert pages == [2 * (8448 * 3 + 128 * 128 * 64), 2 * ((8192 + 1024) // 4 * 3 + 32 * 128 * 64)]


# States.


@pytest.mark.parametrize(
    ("state", "options", "blocks"),
    [
        (DELTA, {}, 2),
        (MAMBA2, {}, 3),
        (DELTA, {"prefix_caching": False}, 1),
        (MAMBA2, {"prefix_caching": False}, 1),
        (DELTA, {"speculative_tokens": 3}, 5),
    ],
)
def test_blocks_of_states(state: State, options: dict[str, Any], blocks: int) -> None:
    found = layout(model_of(state, FULL), BF16, options_of(**options))
    assert next(group.needed_blocks for group in found.groups if group.kind == "state") == blocks


def test_state_formats() -> None:
    requested = replace(DELTA, requested_format="fp32")
    kimi = layout(model_of(DELTA, architecture="kimi_linear"), BF16, options_of())
    narrow, wide = (layout(model_of(state), BF16, options_of()) for state in (DELTA, requested))
    cpu = layout(model_of(DELTA), BF16, options_of(platform="cpu"))
    elements = 32 * 128 * 128
    convolution = 2 * 3 * 8192
    assert narrow.bytes_per_block == 2 * elements + convolution
    assert wide.bytes_per_block == kimi.bytes_per_block == cpu.bytes_per_block == 4 * elements + convolution


def test_drafts_widen_the_convolution_of_some_states() -> None:
    mamba = replace(DELTA, variant="mamba")
    for state, columns in ((DELTA, 3 + 2), (mamba, 3)):
        found = layout(model_of(state), BF16, options_of(speculative_tokens=2))
        assert found.bytes_per_block == 2 * (32 * 128 * 128 + 8192 * columns)


def test_the_block_grows_until_a_page_holds_a_state() -> None:
    # Qwen3-Next: 1,097,728 bytes of state, 2,048 bytes a token, kernel blocks of 16
    model = model_of(DELTA, DELTA, DELTA, Full(heads=16, kv_heads=2, head_dim=256))
    found = layout(model, BF16, options_of())
    assert found.block_size == found.configured_block_size == 544
    assert {group.page_bytes for group in found.groups} == {544 * 2048}


def test_without_prefix_caching_a_state_block_is_the_whole_length() -> None:
    model = model_of(DELTA, Full(heads=16, kv_heads=2, head_dim=256))
    found = layout(model, BF16, options_of(10000, prefix_caching=False))
    assert {group.block_size for group in found.groups} == {10000, 544}
    assert found.scheduler_block_size == found.hash_block_size == 340000


def test_models_of_states_alone() -> None:
    mamba = layout(model_of(MAMBA2), BF16, options_of(prefix_caching=False))
    cached = layout(model_of(MAMBA2), BF16, options_of())
    assert (mamba.block_size, mamba.needed_blocks) == (8192, 1)
    assert (cached.block_size, cached.needed_blocks) == (16, 3)
    # whatever the length, one request needs the same: the memory sets no limit
    enough = 2 * mamba.bytes_per_block
    assert (
        longest_context(model_of(MAMBA2), BF16, options_of(10**9, prefix_caching=False), kv_memory_bytes=enough)
        == 10**9
    )


# Attention of some architectures and formats.


def test_falcon_ignores_fp8() -> None:
    falcon = model_of(FULL, architecture="falcon")
    assert layout(falcon, FP8, options_of()) == layout(falcon, BF16, options_of())
    assert layout(LLAMA, BF16, options_of()).bytes_per_block == 2 * layout(LLAMA, FP8, options_of()).bytes_per_block


def test_minicpm3_runs_as_plain_heads() -> None:
    # layout.md: 952,320 bytes a token over 62 layers of 40 heads
    latent = Latent(heads=40, kv_lora_rank=256, rope_dim=32, nope_dim=64, value_head_dim=64, q_lora_rank=768)
    found = layout(model_of(*[latent] * 62, architecture="minicpm3"), BF16, options_of())
    assert found.bytes_per_block == 16 * 952320


@pytest.mark.parametrize(("formats", "token"), [(BF16, 1152), (FP8, 656)])
def test_sparse_latent_attention_and_its_indexer(formats: Formats, token: int) -> None:
    found = layout(model_of(replace(LATENT, indexer=INDEXER)), formats, options_of())
    assert found.bytes_per_block == 64 * (token + 132)
    assert (len(found.groups), found.groups[0].layers, found.groups[0].kind) == (1, 2, "latent")


def test_an_indexer_that_follows_an_earlier_one_stores_nothing() -> None:
    following = replace(LATENT, indexer=replace(INDEXER, stored=False))
    assert layout(model_of(following), FP8, options_of()).bytes_per_block == 64 * 656


def test_shared_layers_have_no_pages() -> None:
    shared = Shared(heads=32, kv_heads=8, head_dim=128)
    assert layout(model_of(FULL, shared), BF16, options_of()).groups[0].layers == 1
    with pytest.raises(UnsupportedError, match="keeps no cache"):
        layout(model_of(shared), BF16, options_of())


def test_cross_attention_holds_the_encoders_output() -> None:
    cross = Cross(heads=32, kv_heads=8, head_dim=128, encoder_tokens=1500)
    found = layout(model_of(FULL, cross), BF16, options_of(448, max_num_batched_tokens=4096))
    assert [group.needed_blocks for group in found.groups] == [28, 94]


@pytest.mark.parametrize(
    "mixer",
    [
        replace(DELTA, variant="rwkv"),
        Compressed(
            heads=64, head_dim=256, window=128, ratio=4, overlap=True, q_lora_rank=1, output_groups=1, output_rank=1
        ),
    ],
    ids=["rwkv", "entries of another width"],
)
def test_what_is_not_modelled_is_refused(mixer: Mixer) -> None:
    with pytest.raises(UnsupportedError, match="not modelled"):
        layout(model_of(mixer), BF16, options_of())


@pytest.mark.parametrize("name", ["qwen3.8-flash-next", "glm-5.3-flash", "dots3-note"])
def test_layouts_of_their_own_are_refused(name: str) -> None:
    # qwen4_exp/common/qsa_cache.py and glm5next/common/attention.py: rings and pooled keys; dots3_note/nvidia/model.py: padded rows
    with pytest.raises(UnsupportedError, match="not modelled"):
        layout(load_model(name), BF16, options_of())


# Options.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_model_len", 0),
        ("block_size", 0),
        ("max_num_batched_tokens", 0),
        ("max_in_flight_batches", 0),
        ("speculative_tokens", -1),
        ("platform", "tpu"),
    ],
)
def test_bad_options(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=str(value)):
        options_of(**{field: value})
