"""llama.cpp's memory: single rules and refusals, on models of a few layers."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from kvcalc.core.errors import InputError, UnknownNameError, UnsupportedError
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
from kvcalc.engines.llama_cpp import CACHE_TYPES, LlamaCppMemory, LlamaCppOptions, layout

FULL = Full(heads=8, kv_heads=2, head_dim=64)
LOCAL = Sliding(heads=8, kv_heads=2, head_dim=64, window=512)
LATENT = Latent(heads=16, kv_lora_rank=512, rope_dim=64, nope_dim=128, value_head_dim=128)
STATE = State(variant="mamba2", heads=4, key_dim=16, value_dim=8, conv_channels=64, conv_window=4, conv_kernel=4)
INDEXER = Indexer(heads=4, head_dim=128, top_k=64)
COMPRESSED = Compressed(
    heads=8,
    head_dim=512,
    window=128,
    ratio=4,
    overlap=True,
    q_lora_rank=64,
    output_groups=1,
    output_rank=64,
    indexer=INDEXER,
)


def tiny(architecture: str, *mixers: Mixer | tuple[Mixer, ...], limit: int | None = 4096) -> ModelProfile:
    blocks = tuple(Block(mixers=mixer if isinstance(mixer, tuple) else (mixer,)) for mixer in mixers)
    return ModelProfile(
        name="test",
        architecture=architecture,
        hidden_size=512,
        context_limit=limit,
        blocks=blocks,
        embeddings=(),
        head=None,
    )


def laid_out(architecture: str, *mixers: Mixer | tuple[Mixer, ...], **options: Any) -> LlamaCppMemory:
    return layout(tiny(architecture, *mixers), LlamaCppOptions(**{"context": 4096, **options}))


def cells(found: LlamaCppMemory) -> dict[str, tuple[int, int, int]]:
    return {cache.role: (cache.cells, cache.streams, cache.layers) for cache in found.caches}


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"context": 512, "parallel": 4}, (1024, 256, 512)),
        ({"context": 1000, "parallel": 3}, (1536, 512, 512)),
        ({"context": 1000, "parallel": 3, "kv_unified": True}, (1024, 1024, 512)),
        ({"context": 1}, (256, 256, 1)),
        ({"context": 300}, (512, 512, 300)),
        ({"context": 0}, (4096, 4096, 512)),
        ({"context": 4096, "ubatch": 4096}, (4096, 4096, 2048)),
        ({"context": 4096, "ubatch": 0, "batch": 1024}, (4096, 4096, 1024)),
    ],
)
def test_sizes_of_a_context(options: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    found = laid_out("llama", FULL, **options)
    assert (found.n_ctx, found.n_ctx_seq, found.n_ubatch) == sizes


def test_a_model_without_a_limit_needs_a_context() -> None:
    with pytest.raises(InputError, match="no limit"):
        layout(tiny("mamba", STATE, limit=None), LlamaCppOptions())


@pytest.mark.parametrize(
    "options",
    [
        {"context": -1},
        {"parallel": 0},
        {"parallel": 257},
        {"batch": 0},
        {"ubatch": -1},
        {"rollback_tokens": -1},
        {"flash_attn": "maybe"},
        {"cache_type_k": "q4_k"},
        {"cache_type_v": "fp8"},
    ],
)
def test_options_that_are_not_taken(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        LlamaCppOptions(**options)


def test_an_unknown_type() -> None:
    with pytest.raises(UnknownNameError):
        LlamaCppOptions(cache_type_k="q8_7")


@pytest.mark.parametrize("kind", CACHE_TYPES)
def test_every_type_of_cache(kind: str) -> None:
    elements, size = {
        "f32": (1, 4),
        "f16": (1, 2),
        "bf16": (1, 2),
        "q8_0": (32, 34),
        "q4_0": (32, 18),
        "q4_1": (32, 20),
        "iq4_nl": (32, 18),
        "q5_0": (32, 22),
        "q5_1": (32, 24),
    }[kind]
    found = laid_out("llama", FULL, cache_type_k=kind, cache_type_v=kind)
    assert found.kv_bytes == 2 * 4096 * 128 // elements * size


@pytest.mark.parametrize("architecture", ["llama", "mistral", "phi3", "starcoder2", "qwen2"])
def test_windows_that_are_ignored(architecture: str) -> None:
    assert cells(laid_out(architecture, LOCAL, LOCAL)) == {"main": (4096, 1, 2)}


@pytest.mark.parametrize("architecture", ["gemma3_text", "gemma3", "gpt_oss", "gpt-oss", "olmo3", "cohere2"])
def test_windows_that_are_applied(architecture: str) -> None:
    assert cells(laid_out(architecture, LOCAL, FULL, LOCAL)) == {"full": (4096, 1, 1), "swa": (1024, 1, 2)}


def test_a_unified_context_holds_the_windows_of_all_sequences() -> None:
    found = laid_out("gemma3", LOCAL, FULL, context=32768, parallel=4, kv_unified=True)
    assert cells(found)["swa"] == (2560, 1, 1)


def test_exaone_has_windows_at_one_depth_only() -> None:
    layers = [*[LOCAL] * 3, FULL]
    assert set(cells(laid_out("exaone4", *layers * 16))) == {"full", "swa"}
    assert cells(laid_out("exaone4", *layers * 7)) == {"main": (4096, 1, 28)}


def test_llama_4_has_one_window_whatever_its_chunks() -> None:
    chunked = Chunked(heads=8, kv_heads=2, head_dim=64, chunk=1024)
    assert cells(laid_out("llama4_text", chunked, FULL, context=32768))["swa"] == (8704, 1, 1)


def test_a_window_that_counts_the_new_token() -> None:
    published = replace(LOCAL, window=513)
    assert cells(laid_out("mimo_v2_flash", published, FULL, ubatch=256))["swa"] == (768, 1, 1)
    assert cells(laid_out("mimo2", LOCAL, FULL, ubatch=256))["swa"] == (768, 1, 1)


def test_layers_that_share_a_cache_have_none() -> None:
    shared = Shared(heads=8, kv_heads=2, head_dim=64)
    assert cells(laid_out("gemma4", LOCAL, FULL, shared)) == {"full": (4096, 1, 1), "swa": (1024, 1, 1)}


def test_gemma_3n_caches_its_first_twenty_layers() -> None:
    found = cells(laid_out("gemma3n_text", *[*[LOCAL] * 4, FULL] * 6))
    assert found == {"full": (4096, 1, 4), "swa": (1024, 1, 16)}


def test_values_are_padded_to_the_widest_without_flash_attention() -> None:
    wide = Shared(heads=8, kv_heads=4, head_dim=128)
    found = laid_out("gemma4", LOCAL, FULL, wide, flash_attn="off")
    assert [cache.v_bytes for cache in found.caches] == [4096 * 512 * 2, 1024 * 512 * 2]
    assert [cache.k_bytes for cache in found.caches] == [4096 * 128 * 2, 1024 * 128 * 2]


def test_a_latent_cache_has_no_values() -> None:
    (cache,) = laid_out("deepseek_v3", LATENT).caches
    assert (cache.k_bytes, cache.v_bytes) == (4096 * 576 * 2, 0)


def test_an_old_latent_file_keeps_plain_heads() -> None:
    plain = Full(heads=16, kv_heads=16, head_dim=192, value_head_dim=128)
    types = {"cache_type_k": "q8_0"}
    old = laid_out("deepseek_v2", LATENT, legacy_latent=True, **types)
    assert old == laid_out("deepseek2", plain, **types)


def test_an_indexer_has_a_cache_of_its_own() -> None:
    latent = laid_out("deepseek_v32", replace(LATENT, indexer=INDEXER))
    sparse = laid_out("minimax_m3", FULL, replace(FULL, indexer=INDEXER))
    assert [(cache.role, cache.k_bytes, cache.v_bytes) for cache in latent.caches][1:] == [
        ("indexer", 4096 * 128 * 2, 0)
    ]
    assert [(cache.role, cache.layers, cache.v_bytes) for cache in sparse.caches] == [
        ("main", 2, 2 * 4096 * 128 * 2),
        ("indexer", 1, 4096 * 64 * 2),
    ]


def test_layers_that_follow_another_index_keep_none_of_their_own() -> None:
    # GLM-5.2: llama_kv_cache_dsa's filter of layers with a full indexer
    own, following = (replace(LATENT, indexer=replace(INDEXER, stored=stored)) for stored in (True, False))
    found = laid_out("glm_moe_dsa", own, following, following)
    assert [(cache.role, cache.layers) for cache in found.caches] == [("main", 3), ("indexer", 1)]


def test_a_pooled_index_keeps_key_gate_and_pooled_value() -> None:
    # llama_memory_hybrid_idx: one head of indexer_head_size * 3 without values, beside latent vectors and states
    indexed = replace(LATENT, rope_dim=0, indexer=replace(INDEXER, pool=16, stored_dim=257))
    found = laid_out("glm5_next_text", STATE, indexed)
    assert {cache.role: (cache.k_bytes, cache.v_bytes) for cache in found.caches} == {
        "main": (4096 * 512 * 2, 0),
        "indexer": (4096 * 3 * 128 * 2, 0),
    }
    assert found.recurrent is not None


def test_windowed_latent_layers_keep_one_vector() -> None:
    # llama_kv_cache_dsa_iswa: keys alone in both parts; dots3-note's windowed layers hold 1,024 elements and a key of 64
    local = Sliding(heads=64, kv_heads=1, head_dim=1024, value_head_dim=64, window=512)
    indexed = replace(LATENT, indexer=INDEXER)
    for flash in ("on", "off"):
        found = laid_out("dots3_note_text", indexed, local, local, flash_attn=flash)
        assert {cache.role: (cache.k_bytes, cache.v_bytes) for cache in found.caches} == {
            "full": (4096 * 576 * 2, 0),
            "swa": (2 * 1024 * 1088 * 2, 0),
            "indexer": (4096 * 128 * 2, 0),
        }


def test_an_encoders_output_is_looked_at_anew() -> None:
    # t5.cpp: the decoder's cross attention projects the encoder's output in each pass, only its own tokens are cached
    cross = Cross(heads=8, kv_heads=8, head_dim=64, encoder_tokens=512)
    found = laid_out("t5", (FULL, cross), (FULL, cross))
    assert found == laid_out("llama", FULL, FULL)


def test_latent_attention_that_is_run_as_heads_of_its_own() -> None:
    # minicpm3.cpp: n_head_kv heads of key_length = nope + rope, values of the usual width
    found = laid_out("minicpm3", LATENT)
    assert found.kv_bytes == 4096 * 16 * (192 + 128) * 2


def test_lightning_attention_keeps_a_matrix_a_head() -> None:
    # minimax-01.cpp: n_embd_s = head_dim^2 * heads in 32 bits, no convolution
    lightning = State(variant="linear", heads=64, key_dim=128, value_dim=128)
    found = laid_out("minimax_m1", lightning, FULL)
    assert found.recurrent is not None
    assert (found.recurrent.r_bytes, found.recurrent.s_bytes) == (0, 64 * 128 * 128 * 4)


def test_what_llama_cpp_does_not_run_is_said_to_be_so() -> None:
    for name in ("opt", "gptj", "whisper", "zamba2"):
        with pytest.raises(UnsupportedError, match="does not run"):
            laid_out(name, FULL)


def test_compressed_attention() -> None:
    raw = Sliding(heads=8, kv_heads=1, head_dim=512, window=128)
    coarse = replace(COMPRESSED, ratio=128, overlap=False, indexer=None)
    found = laid_out("deepseek_v4", raw, COMPRESSED, coarse, parallel=2, kv_unified=True)
    assert cells(found) == {
        "full": (4096, 2, 0),
        "swa": (768, 2, 3),
        "csa": (1024, 2, 1),
        "hca": (256, 2, 1),
        "indexer": (1024, 2, 1),
    }
    assert all(cache.v_bytes == 0 for cache in found.caches)
    assert {state.role: (state.rows, state.width) for state in found.compressors} == {
        "csa": (8, 1024),
        "indexer": (8, 256),
        "hca": (128, 512),
    }
    assert found.state_bytes == 2 * 2 * 4 * (8 * 1024 + 8 * 256 + 128 * 512)


def test_states_are_in_32_bits_and_one_cell_a_sequence() -> None:
    found = laid_out("falcon_h1", (STATE, FULL), parallel=4, kv_unified=True, cache_type_k="q8_0", cache_type_v="q8_0")
    assert found.recurrent is not None
    assert (found.recurrent.cells, found.recurrent.layers) == (4, 1)
    assert (found.recurrent.r_bytes, found.recurrent.s_bytes) == (4 * 3 * 64 * 4, 4 * 4 * 16 * 8 * 4)
    assert found.total_bytes == found.kv_bytes + found.recurrent.r_bytes + found.recurrent.s_bytes


def test_a_model_of_states_alone_has_no_cache() -> None:
    assert laid_out("mamba2", STATE).caches == ()


def test_rollback_multiplies_states_only_where_it_is_supported() -> None:
    for architecture, times in (("nemotron_h", 3), ("qwen3_5_text", 3), ("qwen3_next", 1), ("jamba", 1)):
        one, kept = (laid_out(architecture, STATE, FULL, rollback_tokens=tokens) for tokens in (0, 2))
        assert kept.state_bytes == times * one.state_bytes
        assert kept.kv_bytes == one.kv_bytes


@pytest.mark.parametrize(
    ("architecture", "mixer", "options", "reason"),
    [
        ("mamba2", STATE, {"cache_type_v": "q8_0", "flash_attn": "off"}, "needs flash attention"),
        ("llama", replace(FULL, head_dim=80), {"cache_type_k": "q8_0"}, "keys 80 wide"),
        ("llama", replace(FULL, value_head_dim=80), {"cache_type_v": "q4_0"}, "values 80 wide"),
        ("llama", replace(FULL, head_dim=24), {"cache_type_k": "q8_0", "flash_attn": "off"}, "keys 48 wide"),
        ("kimi_linear", LATENT, {"cache_type_k": "q8_0"}, "one vector"),
        ("deepseek_v4", COMPRESSED, {"cache_type_v": "f32"}, "one vector"),
    ],
)
def test_types_that_are_refused(architecture: str, mixer: Mixer, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        laid_out(architecture, mixer, **options)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("architecture", "mixers"),
    [
        ("no_such", [FULL]),
        ("opt", [FULL]),
        ("rwkv", [State(variant="rwkv")]),
        ("llama", [(FULL, FULL)]),
        ("llama", [Cross(heads=8, kv_heads=8, head_dim=64, encoder_tokens=10)]),
        ("gemma3", [LOCAL, replace(LOCAL, window=1024)]),
        ("gemma3", [LOCAL, STATE]),
        ("glm_moe_dsa", [replace(LATENT, indexer=replace(INDEXER, pool=4))]),
        ("bailing_hybrid", [State(variant="linear", heads=4, key_dim=16, value_dim=16)]),
        ("deepseek_v4", [replace(COMPRESSED, ratio=16)]),
    ],
)
def test_what_is_not_described_is_refused(architecture: str, mixers: list[Mixer | tuple[Mixer, ...]]) -> None:
    with pytest.raises(UnsupportedError):
        laid_out(architecture, *mixers)


def test_layers_that_are_alike_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("kvcalc.engines.llama_cpp.layout")
    computed: list[Any] = []
    plain = module.value_bytes
    monkeypatch.setattr(module, "value_bytes", lambda *given: computed.append(given) or plain(*given))
    wide = replace(FULL, kv_heads=4)
    one, many = laid_out("llama", FULL, wide), laid_out("llama", *(FULL, wide) * 1000)
    assert many.kv_bytes == 1000 * one.kv_bytes
    assert len(computed) < 20
