"""llama.cpp's caches and states against what the engine itself allocated.

`llama_cpp_cases.yaml` holds telling cases of catalogue models; they are tested everywhere. Where ``KVCALC_TRUTH`` names
a folder with the full ground truth, every case of its ``llamacpp/kv.yaml`` is tested too: stand-ins with the real
geometry of cache and state, some with fewer heads. Single rules and refusals are tested on models of a few layers.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcalc.api import load_model
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
from kvcalc.engines.llama_cpp import CACHE_TYPES, LlamaCppMemory, LlamaCppOptions, layout, reserve

HERE = Path(__file__).parent
CASES: dict[str, Any] = yaml.safe_load((HERE / "llama_cpp_cases.yaml").read_text())["cases"]
TRUTH = Path(os.environ["KVCALC_TRUTH"]) / "llamacpp" / "kv.yaml" if os.environ.get("KVCALC_TRUTH") else None

# What the geometry in the truth file does not say: leading dense layers, which have no indexer.
LEADING_DENSE = {"minimax-m3": 3}
SELECTIVE = ("mamba", "jamba")

# Catalogue models with the same cache and states as a stand-in of another name (Jamba 1.5 Mini is as large as v0.1).
CATALOGUE = {
    "llama-3.1-8b": "llama3.1-8b",
    "llama-2-7b": "llama2-7b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "phi-2": "phi-2",
    "qwen2.5-7b": "qwen2.5-7b",
    "phi3-mini-4k": "phi-3-mini-4k",
    "deepseek-v3": "deepseek-v3",
    "deepseek-v2-lite-legacy": "deepseek-v2-lite",
    "deepseek-v3.2": "deepseek-v3.2",
    "gemma2-27b": "gemma-2-27b",
    "gemma2-9b": "gemma-2-9b",
    "gemma3-1b": "gemma-3-1b",
    "llama4-scout": "llama4-scout",
    "exaone4-32b": "exaone-4.0-32b",
    "olmo3-7b": "olmo-3-7b",
    "mimo-v2-flash": "mimo-v2-flash",
    "gemma3n-e4b": "gemma-3n-e4b",
    "gemma4-e2b": "gemma-4-e2b",
    "mamba-130m": "mamba-130m",
    "mamba-2.8b": "mamba-2.8b",
    "mamba2-2.7b": "mamba2-2.7b",
    "falcon-h1-7b": "falcon-h1-7b",
    "lfm2-1.2b": "lfm2-1.2b",
    "nemotron-nano-9b-v2": "nemotron-nano-9b-v2",
    "qwen3-next-80b": "qwen3-next-80b-a3b",
    "kimi-linear-48b": "kimi-linear-48b-a3b",
    "jamba-v0.1": "jamba-1.5-mini",
    "nemotron-3-nano-30b": "nemotron-3-nano-30b-a3b",
    "glm-5": "glm-5",
    "minimax-m3": "minimax-m3",
    "deepseek-v4-flash": "deepseek-v4-flash",
    "granite-4.0-h-small": "granite-4.0-h-small",
}


@cache
def truth() -> dict[str, Any]:
    if TRUTH is None:
        return {"models": {}, "cases": []}
    loaded: dict[str, Any] = yaml.load(TRUTH.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return loaded


# Catalogue models.


@pytest.mark.parametrize("name", CASES)
def test_catalogue_model(name: str) -> None:
    case = CASES[name]
    model, options = load_model(case["model"]), LlamaCppOptions(**case["options"])
    if "refused" in case:
        with pytest.raises(InputError, match=case["refused"]):
            layout(model, options)
        return
    memory = layout(model, options)
    assert [
        [cache.role, cache.cells, cache.streams, cache.layers, cache.k_bytes, cache.v_bytes] for cache in memory.caches
    ] == case["caches"]
    assert memory.state_bytes == case["state_bytes"]
    assert memory.total_bytes == case["total_bytes"]


# The full truth.


@pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")
@pytest.mark.parametrize("name", truth()["models"])
def test_full_truth(name: str) -> None:
    check_all(profile(name, truth()["models"][name]), name)


@pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")
@pytest.mark.parametrize("name", CATALOGUE)
def test_full_truth_of_catalogue_models(name: str) -> None:
    trained = truth()["models"][name]["geometry"]["context_length"]
    check_all(replace(load_model(CATALOGUE[name]), context_limit=trained), name)


def check_all(model: ModelProfile, name: str) -> None:
    cases = [case for case in truth()["cases"] if case["model"] == name]
    wrong = [found for case in cases if (found := difference(model, case))]
    assert cases
    assert not wrong, f"{len(wrong)} of {len(cases)} cases: {wrong[:3]}"


@pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")
def test_the_full_truth_was_found() -> None:
    assert len(truth()["models"]) > 30
    assert len(truth()["cases"]) > 2000


def difference(model: ModelProfile, case: dict[str, Any]) -> str:
    """Return how the memory differs from a case; nothing where it does not."""
    try:
        memory = layout(model, options_of(case))
    except InputError as error:
        return "" if case["status"] == "rejected" else f"refused: {error}"
    if case["status"] == "crash":
        return ""  # an engine assertion after the memory was allocated: computed here
    if case["status"] != "ok":
        return f"not refused, as the engine does: {case['message']}"
    expected, found = expected_of(case), found_of(memory)
    return "" if expected == found else f"{case}: {found}"


def options_of(case: dict[str, Any]) -> LlamaCppOptions:
    return LlamaCppOptions(
        context=case["n_ctx"],
        parallel=case["n_seq_max"],
        kv_unified=case["kv_unified"],
        cache_type_k=case["type_k"],
        cache_type_v=case["type_v"],
        swa_full=case["swa_full"],
        batch=case["n_batch"],
        ubatch=case["n_ubatch"],
        flash_attn=case["flash_attn"],
        rollback_tokens=case.get("n_rs_seq", 0),
        legacy_latent=case["model"].endswith("-legacy"),
    )


def expected_of(case: dict[str, Any]) -> list[Any]:
    """Return the exact bytes of a case and what the engine printed."""
    lines, exact = case["lines"], case["exact_bytes"]
    caches = [
        (
            line["role"],
            *(counted["cells"], counted["streams"], line["layers"], counted["k_bytes"], counted["v_bytes"]),
            *(line["cells"], line["n_stream"], line["k_mib"], line["v_mib"], line["size_mib"]),
        )
        for line, counted in zip(lines["caches"], exact["caches"], strict=True)
    ]
    states = [
        (line["cells"], counted["r_bytes"], counted["s_bytes"], line["r_mib"], line["s_mib"], line["size_mib"])
        for line, counted in zip(listed(lines, "recurrent"), listed(exact, "recurrent"), strict=True)
    ]
    compressors = [
        ({"lid": "indexer"}.get(role, role), line["rows"], line["width"], line["layers"], exact["comp_state"][role])
        for role, line in lines.get("comp_state", {}).items()
    ]
    sizes = [case["n_ctx_actual"], case["n_ctx_seq"], case["n_ubatch_actual"]]
    return [sizes, caches, states, sorted(compressors)]


def listed(lines: dict[str, Any], key: str) -> list[Any]:
    return [lines[key]] if lines.get(key) else []


def found_of(memory: LlamaCppMemory) -> list[Any]:
    caches = [
        (
            entry.role,
            *(entry.cells, entry.streams, entry.layers, entry.k_bytes, entry.v_bytes, entry.cells, entry.streams),
            *(mib(entry.k_bytes), mib(entry.v_bytes), mib(entry.k_bytes + entry.v_bytes)),
        )
        for entry in memory.caches
    ]
    states = [
        (
            *(state.cells, state.r_bytes, state.s_bytes),
            *(mib(state.r_bytes), mib(state.s_bytes), mib(state.r_bytes + state.s_bytes)),
        )
        for state in ([memory.recurrent] if memory.recurrent else [])
    ]
    compressors = [
        (state.role, state.rows, state.width, state.layers, state.total_bytes) for state in memory.compressors
    ]
    return [[memory.n_ctx, memory.n_ctx_seq, memory.n_ubatch], caches, states, sorted(compressors)]


def mib(size: int) -> float:
    """Return a number of bytes as the engine prints it."""
    return float(f"{size / 2**20:.2f}")


# From GGUF geometry to a profile.


def profile(name: str, entry: dict[str, Any]) -> ModelProfile:
    """Return a profile of a stand-in: its mixers alone."""
    geometry = Geometry(entry)
    return ModelProfile(
        name=name,
        architecture=entry["arch"],
        hidden_size=entry["geometry"]["embedding_length"],
        context_limit=entry["geometry"]["context_length"],
        blocks=tuple(Block(mixers=geometry.mixers(layer)) for layer in range(geometry.layers)),
        embeddings=(),
        head=None,
    )


class Geometry:
    def __init__(self, entry: dict[str, Any]) -> None:
        self.arch: str = entry["arch"]
        self.keys: dict[str, Any] = entry["geometry"]
        self.pattern: dict[str, Any] = entry["pattern"]
        self.layers: int = self.keys["block_count"] - self.keys.get("nextn_predict_layers", 0)

    def each(self, key: str, layer: int) -> int:
        value = self.keys[key]
        found: int = value[layer] if isinstance(value, list) else value
        return found

    def mixers(self, layer: int) -> tuple[Mixer, ...]:
        attention = "attn" not in self.pattern or layer in self.pattern["attn"]
        state = "ssm.conv_kernel" in self.keys or "shortconv.l_cache" in self.keys
        if "recr" in self.pattern:
            state = layer in self.pattern["recr"]
        attention = attention and self.keys["attention.head_count"] != 0
        return (*((self.state(),) if state else ()), *((self.attention(layer),) if attention else ()))

    def attention(self, layer: int) -> Mixer:
        if "ratios" in self.pattern:
            return self.compressed(self.pattern["ratios"][layer])
        if "attention.kv_lora_rank" in self.keys:
            return self.latent()
        local = self.windowed(layer)
        suffix = "_swa" if local and "attention.key_length_swa" in self.keys else ""
        heads: dict[str, int] = {
            "heads": self.each("attention.head_count", layer),
            "kv_heads": self.each("attention.head_count_kv", layer),
            "head_dim": self.keys[f"attention.key_length{suffix}"],
            "value_head_dim": self.keys[f"attention.value_length{suffix}"],
        }
        window: int | None = self.keys.get("attention.sliding_window", self.pattern.get("swa"))
        if layer >= self.pattern.get("kv_from_start", self.layers):
            return Shared(**heads, window=window if local else None)
        if local and window is not None:
            return Chunked(**heads, chunk=window) if self.arch == "llama4" else Sliding(**heads, window=window)
        indexed = layer >= LEADING_DENSE.get(self.arch, self.layers)
        return Full(**heads, indexer=self.indexer() if indexed else None)

    def windowed(self, layer: int) -> bool:
        if "is_swa" in self.pattern:
            return bool(self.pattern["is_swa"][layer])
        if "pattern" in self.pattern:
            period = self.pattern["pattern"]
            return bool(layer % period != (0 if self.pattern.get("dense_first") else period - 1))
        return "attention.sliding_window" in self.keys

    def indexer(self) -> Indexer | None:
        width = self.keys.get("attention.indexer.key_length")
        return Indexer(heads=4, head_dim=width, top_k=2048) if width else None

    def latent(self) -> Latent:
        rank, values = self.keys["attention.kv_lora_rank"], self.keys["attention.value_length"]
        rope, whole = self.keys["attention.key_length"] - rank, self.keys.get("attention.key_length_mla")
        if whole is None:  # an old file: key_length is that of the uncompressed heads
            rope, whole = 64, self.keys["attention.key_length"]
        return Latent(
            heads=self.keys["attention.head_count"],
            kv_lora_rank=rank,
            rope_dim=rope,
            nope_dim=whole - rope,
            value_head_dim=self.keys.get("attention.value_length_mla", values),
            indexer=self.indexer(),
        )

    def compressed(self, ratio: int) -> Mixer:
        heads, width = self.keys["attention.head_count"], self.keys["attention.key_length"]
        if ratio == 0:
            return Sliding(heads=heads, kv_heads=1, head_dim=width, window=self.pattern["swa"])
        return Compressed(
            heads=heads,
            head_dim=width,
            window=self.pattern["swa"],
            ratio=ratio,
            overlap=ratio == 4,
            q_lora_rank=1024,
            output_groups=8,
            output_rank=1024,
            indexer=self.indexer() if ratio == 4 else None,
        )

    def state(self) -> State:
        if "shortconv.l_cache" in self.keys:
            width = self.keys["shortconv.l_cache"]
            return State(
                variant="short_conv", conv_channels=self.keys["embedding_length"], conv_window=width, conv_kernel=width
            )
        width = self.keys["ssm.conv_kernel"]
        if "kda.head_dim" in self.keys:
            heads, size = self.keys["attention.head_count"], self.keys["kda.head_dim"]
            return State(
                variant="gated_delta",
                heads=heads,
                key_dim=size,
                value_dim=size,
                conv_channels=3 * heads * size,
                conv_window=width,
                conv_kernel=width,
            )
        inner, size = self.keys["ssm.inner_size"], self.keys["ssm.state_size"]
        heads = inner if self.arch in SELECTIVE else self.keys["ssm.time_step_rank"]
        return State(
            variant="mamba" if self.arch in SELECTIVE else "mamba2",
            heads=heads,
            key_dim=size,
            value_dim=inner // heads,
            conv_channels=inner + 2 * self.keys.get("ssm.group_count", 0) * size,
            conv_window=width,
            conv_kernel=width,
            recurrent_format="fp32",
        )


# Single rules, on models of a few layers.

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
        ("t5", [FULL]),
        ("rwkv", [State(variant="rwkv")]),
        ("llama", [(FULL, FULL)]),
        ("llama", [Cross(heads=8, kv_heads=8, head_dim=64, encoder_tokens=10)]),
        ("gemma3", [LOCAL, replace(LOCAL, window=1024)]),
        ("gemma3", [LOCAL, STATE]),
        ("glm_moe_dsa", [replace(LATENT, indexer=replace(INDEXER, stored=False))]),
        ("deepseek_v4", [replace(COMPRESSED, ratio=16)]),
    ],
)
def test_what_is_not_described_is_refused(architecture: str, mixers: list[Mixer | tuple[Mixer, ...]]) -> None:
    with pytest.raises(UnsupportedError):
        laid_out(architecture, *mixers)


def test_reserved_bytes_are_those_of_the_layout() -> None:
    options = LlamaCppOptions(context=4096)
    found, reserved = layout(tiny("jamba", STATE, FULL), options), reserve(tiny("jamba", STATE, FULL), options)
    assert (reserved.kv_bytes, reserved.state_bytes, reserved.total_bytes) == (
        found.kv_bytes,
        found.state_bytes,
        found.total_bytes,
    )
