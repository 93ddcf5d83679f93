"""SGLang's pools: bytes of a token, whole pages, a pool for windows, slots of states, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcalc.api import load_model
from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.formats import parse_format
from kvcalc.core.model import Block, Full, Mixer, ModelProfile, Shared, Sliding, State
from kvcalc.core.workload import Formats, Parallel
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.sglang import PoolSizes, RankPools, rank_pools
from kvcalc.engines.sglang.layers import RankLayers

# A head of 64 for keys and values in 16 bits: 256 bytes a token and layer.
FULL = Full(heads=8, kv_heads=1, head_dim=64)
WINDOW = Sliding(heads=8, kv_heads=1, head_dim=64, window=128)
DELTA = State(
    variant="gated_delta", heads=8, key_dim=16, value_dim=16, conv_channels=64, conv_kernel=4, recurrent_format="fp32"
)
SLOT = 64 * 3 * 2 + 8 * 16 * 16 * 4
MIB = 1 << 20


def _model(*mixers: Mixer, architecture: str = "llama", limit: int | None = 4096) -> ModelProfile:
    return ModelProfile(
        name="x",
        architecture=architecture,
        hidden_size=64,
        context_limit=limit,
        blocks=tuple(Block(mixers=(mixer,)) for mixer in mixers),
        embeddings=(),
        head=None,
    )


def _pools(model: ModelProfile, *, tensor: int = 1, **options: object) -> RankPools:
    asked = EngineOptions(max_num_batched_tokens=1024, **options)  # type: ignore[arg-type]
    return rank_pools(model, Formats(), Parallel(tensor=tensor), asked)


def _bytes(pools: RankPools) -> dict[str, int]:
    (stage,) = pools.stages
    return {buffer.name: buffer.token_bytes for buffer in (*stage.full, *stage.windows)}  # type: ignore[union-attr]


def test_values_have_a_width_of_their_own() -> None:
    # MiMo-V2's full layers: keys of 192, values of 128
    mixer = Full(heads=64, kv_heads=4, head_dim=192, value_head_dim=128)
    assert _bytes(_pools(_model(mixer, mixer))) == {"k_buffer": 2 * 4 * 192 * 2, "v_buffer": 2 * 4 * 128 * 2}


def test_keys_and_values_may_have_formats_of_their_own() -> None:
    formats = Formats(key=parse_format("bf16"), value=parse_format("fp8"))
    mixer = Full(heads=8, kv_heads=8, head_dim=64)
    pools = rank_pools(_model(mixer), formats, Parallel(tensor=2), EngineOptions())
    assert _bytes(pools) == {"k_buffer": 4 * 64 * 2, "v_buffer": 4 * 64}


@pytest.mark.parametrize(
    ("name", "data", "scales"), [("nvfp4", 32, {"native_k_scale_buffer": 4}), ("mxfp8", 64, {"k_scale_buffer": 2})]
)
def test_scales_of_blocks_stand_in_buffers_of_their_own(name: str, data: int, scales: dict[str, int]) -> None:
    form = parse_format(name)
    found = _bytes(rank_pools(_model(FULL), Formats(key=form, value=form), Parallel(), EngineOptions()))
    assert found["k_buffer"] == data
    assert {key: size for key, size in found.items() if "k_scale" in key} == scales


def test_a_layer_that_reads_anothers_cache_has_buffers_of_its_own() -> None:
    shared = Shared(heads=8, kv_heads=1, head_dim=64)
    assert _pools(_model(FULL, shared)).sizes(MIB).tokens == _pools(_model(FULL)).sizes(MIB).tokens // 2


def test_windows_do_not_count_where_sglang_has_one_pool() -> None:
    mixed, whole = _model(FULL, WINDOW, architecture="gemma3_text"), _model(FULL, FULL, architecture="gemma3_text")
    assert _pools(mixed).sizes(MIB) == _pools(whole).sizes(MIB)


@pytest.mark.parametrize(("memory", "tokens"), [(64 * 256 - 1, 0), (64 * 256, 64), (128 * 256 - 1, 64)])
def test_a_pool_has_whole_pages_of_whole_tokens(memory: int, tokens: int) -> None:
    sizes = _pools(_model(FULL), block_size=64).sizes(memory)
    assert sizes.tokens == tokens
    assert bool(sizes.refusal) == (tokens == 0)


def test_the_buffers_have_one_page_more_for_padding() -> None:
    pools = _pools(_model(FULL), block_size=64)
    found = pools.buffers(pools.sizes(128 * 256))
    assert [(buffer.name, buffer.bytes) for buffer in found] == [("k_buffer", 192 * 128), ("v_buffer", 192 * 128)]


def test_windowed_layers_have_a_pool_by_a_ratio() -> None:
    model = _model(FULL, WINDOW, architecture="gpt_oss")
    assert _pools(model).sizes(MIB) == PoolSizes(tokens=2275, window_tokens=1820, requests=1137)
    assert _pools(model, swa_full_tokens_ratio=0.5).sizes(MIB).window_tokens == 2730 // 2
    assert _pools(model, hybrid_swa_memory=False).sizes(MIB).tokens == MIB // 512


def test_where_all_layers_have_windows_their_pool_is_the_only_one() -> None:
    model = _model(WINDOW, WINDOW, architecture="gpt_oss")
    sizes = _pools(model).sizes(MIB)
    assert sizes.window_tokens == sizes.tokens == MIB // 512
    assert _pools(_model(FULL, FULL)).sizes(MIB).window_tokens is None


def test_a_cap_on_tokens_cuts_both_pools_where_it_is_below_what_fits() -> None:
    model = _model(FULL, WINDOW, architecture="gpt_oss")

    def sizes(**more: int) -> tuple[int, int | None]:
        made = _pools(model, prefix_caching=False, max_num_seqs=4, **more).sizes(MIB)
        return made.tokens, made.window_tokens

    held, inside = sizes()
    assert inside is not None
    assert inside > held  # so that a cap at what fits would be seen
    assert sizes(max_total_tokens=held + 1) == sizes(max_total_tokens=held) == (held, inside)
    assert sizes(max_total_tokens=held - 1) == (held - 1, held - 1)


def test_a_pool_for_windows_must_hold_one_and_a_page() -> None:
    model = _model(FULL, WINDOW, architecture="gpt_oss")
    # a window of 127 beside the new token, and a page of 1: 161 x 0.8 = 128 tokens are too few, 162 are not
    assert "do not hold one request" in _pools(model, max_total_tokens=161).sizes(MIB).refusal
    assert _pools(model, max_total_tokens=162).sizes(MIB).window_tokens == 129


def test_without_prefixes_the_pool_for_windows_is_that_of_the_requests_asked_for() -> None:
    model = _model(FULL, WINDOW, architecture="gpt_oss")
    sizes = _pools(model, prefix_caching=False, max_num_seqs=4).sizes(MIB)
    inside = 4 * (127 + 128 + 1 + 1) + 2 * 1024 + 1
    assert (sizes.window_tokens, sizes.tokens, sizes.requests) == (inside, MIB // 256 - inside, 4)
    refused = _pools(model, prefix_caching=False, max_num_seqs=64).sizes(MIB)
    assert "leaves no memory for tokens" in refused.refusal


def test_states_take_their_share_of_the_memory_first() -> None:
    model = _model(FULL, DELTA, DELTA, architecture="qwen3_next")
    pools = _pools(model)
    assert pools.slot_bytes == 2 * SLOT
    slots = int((MIB * 0.9 / 1.9 - 2 * SLOT) // (2 * SLOT))
    assert pools.sizes(MIB) == PoolSizes(
        tokens=(MIB - (slots + 1) * 2 * SLOT) // 256, state_slots=slots, requests=slots // 5
    )


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ({}, 5),
        ({"overlap_schedule": False}, 3),
        ({"overlap_schedule": False, "mamba_radix_cache_strategy": "extra_buffer"}, 4),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, 4),
        ({"prefix_caching": False}, 1),
    ],
)
def test_slots_of_a_request_follow_from_the_radix_cache(options: dict, slots: int) -> None:
    assert _pools(_model(FULL, DELTA, architecture="qwen3_next"), **options).options.slots_per_request == slots


@pytest.mark.parametrize(
    ("architecture", "options", "words"),
    [
        ("qwen3_next", {"mamba_radix_cache_strategy": "no_buffer"}, "overlap scheduling"),
        ("qwen3_next", {"mamba_radix_cache_strategy": "always"}, "is one of"),
        ("zaya", {"block_size": 16}, "pages of 1 token"),
        ("zaya", {"mamba_radix_cache_strategy": "extra_buffer"}, "has no extra_buffer"),
        ("mamba", {"mamba_radix_cache_strategy": "extra_buffer"}, "keeps no states"),
        ("qwen3_next", {"mamba_radix_cache_strategy": "extra_buffer_lazy", "overlap_schedule": False}, "alone"),
    ],
)
def test_what_sglang_refuses_of_states(architecture: str, options: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        _pools(_model(FULL, DELTA, architecture=architecture), **options)


def test_states_are_shared_evenly_or_refused() -> None:
    model = _model(FULL, DELTA, architecture="qwen3_next")
    assert _pools(model, tensor=2).slot_bytes == SLOT // 2
    with pytest.raises(UnsupportedError, match="not shared evenly by 3"):
        _pools(model, tensor=3)


def test_groups_that_ranks_do_not_share_are_repeated() -> None:
    # 8 heads of 16 and one group of 4: 136 channels, of which a rank of 2 has 64 and the group's 8
    mixer = State(variant="mamba2", heads=8, key_dim=4, value_dim=16, conv_channels=136, conv_kernel=4)
    model = _model(FULL, mixer, architecture="nemotron_h")
    assert _pools(model, tensor=2).slot_bytes == (64 + 8) * 3 * 2 + 4 * 4 * 16 * 4


def test_a_model_of_states_alone_has_the_tokens_of_a_context() -> None:
    model = _model(DELTA, architecture="mamba", limit=None)
    sizes = _pools(model).sizes(64 * MIB)
    assert (sizes.tokens, sizes.requests) == (2048, 1024)
    assert "--max-total-tokens" in _pools(model).notes[0]
    more = _pools(model, max_total_tokens=50_000)
    assert (more.sizes(64 * MIB).tokens, more.notes) == (50_000, ())


@pytest.mark.parametrize(
    ("generation", "asked", "page"), [("hopper", None, 1), ("blackwell", None, 64), ("blackwell", 16, 16)]
)
def test_blackwells_kernels_want_pages(generation: str, asked: int | None, page: int) -> None:
    pools = _pools(_model(FULL), generation=generation, block_size=asked)
    assert pools.options.page_size == page


def test_the_least_memory_for_a_batch_holds_it_and_less_does_not() -> None:
    for model in (_model(FULL), _model(FULL, WINDOW, architecture="gpt_oss"), _model(FULL, DELTA, architecture="lfm2")):
        pools = _pools(model)
        need = pools.need(context=300, sequences=3)
        least = pools.least_memory(need)
        assert pools.sizes(least).hold(need)
        assert not pools.sizes(least - 1).hold(need)


def test_a_batch_takes_whole_pages_and_of_windows_what_is_kept() -> None:
    pools = _pools(_model(FULL, WINDOW, architecture="gpt_oss"), block_size=16)
    # a window of 127, 128 tokens to the next eviction, and a page before and behind: 287 tokens, 18 pages
    assert pools.need(context=1000, sequences=2).window_tokens == 2 * 18 * 16
    assert pools.batch_bytes(pools.need(context=1000, sequences=2)) == (2 * (1008 + 288) * 256, 0)
    states = _pools(_model(FULL, DELTA, architecture="qwen3_next"))
    assert states.batch_bytes(states.need(context=100, sequences=3)) == (300 * 256, 3 * 5 * SLOT)


# Read in SGLang's code, not run: bytes of a token by pool, of a slot of states, and the page.
READ = {
    "dots3-note": ((13 * (576 * 2 + 132), 33 * 1088 * 2), 0, 64),
    "glm-5.3-flash": ((11 * (512 * 2 + 9), 0), 34 * (24_576 * 3 * 2 + 64 * 128 * 128 * 4), 1024),
    "qwen3.8-flash-next": ((12 * (2 * 512 * 2 + 64), 0), 36 * (10_240 * 3 * 2 + 48 * 128 * 128 * 4), 64),
    "ling-3.0-flash": ((7 * 576 * 2, 0), 35 * (12_288 * 3 * 2 + 32 * 128 * 128 * 4), 1),
}


@pytest.mark.parametrize("name", READ)
def test_models_of_2026_have_the_pools_that_the_code_says(name: str) -> None:
    tokens, slot, page = READ[name]
    pools = rank_pools(load_model(name), Formats(), Parallel(), EngineOptions())
    (stage,) = pools.stages
    assert isinstance(stage, RankLayers)
    assert (stage.full_bytes, stage.window_bytes) == tokens
    assert (pools.slot_bytes, pools.options.page_size) == (slot, page)


@pytest.mark.parametrize(("name", "words"), [("falcon", "does not serve"), ("unheard_of", "are not guessed")])
def test_models_without_a_class_and_unknown_ones_are_refused(name: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        _pools(replace(_model(FULL), architecture=name))
