"""llama.cpp's caches and states against what the engine itself allocated.

`llama_cpp.yaml` among the shipped facts holds telling cases of catalogue models; they are tested everywhere. Where ``KVCALC_TRUTH`` names
a folder with the full ground truth, every case of its ``llamacpp/kv.yaml`` is tested too: stand-ins with the real
geometry of cache and state, some with fewer heads.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvcalc
from kvcalc.api import load_model
from kvcalc.core.errors import InputError
from kvcalc.core.model import (
    Block,
    Chunked,
    Compressed,
    Full,
    Indexer,
    Latent,
    Mixer,
    ModelProfile,
    Shared,
    Sliding,
    State,
)
from kvcalc.engines.llama_cpp import LlamaCppMemory, LlamaCppOptions, layout

FACTS = Path(kvcalc.__file__).parent / "evidence" / "facts"
CASES: dict[str, Any] = yaml.safe_load((FACTS / "llama_cpp.yaml").read_text())["cases"]
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
