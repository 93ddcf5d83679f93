"""Ollama and LM Studio: llama.cpp with the defaults that these programs start it with."""

from __future__ import annotations

import pytest

import kvcalc
from kvcalc.core.errors import InputError
from kvcalc.core.units import GIB, MIB
from kvcalc.engines.llama_cpp.fronts import ollama_context
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.start import EngineStart
from kvcalc.questions import ask


def _start(model: str, gpu: str | None, tokens: int | None = None, **options: object) -> EngineStart:
    given = EngineOptions(**options) if options else None  # type: ignore[arg-type]
    deployment = kvcalc.deployment(model, gpu=gpu, weights="q4_k_m", engine="ollama", options=given)
    return deployment.start(max_model_len=tokens)


# Ollama 0.32.15, server/routes.go: 47 and 23 GiB, so that two cards of 24 and one of 24 count.
@pytest.mark.parametrize(
    ("gpu", "context"),
    [
        (None, 4096),
        ("rtx-3060", 4096),
        ("rtx-4090", 32_768),
        ("rtx-5090", 32_768),
        ("rtx-a6000", 131_072),  # 47.4 GiB: 262,144, of which the model was trained with 131,072
        ("h100-sxm", 131_072),
    ],
)
def test_ollamas_context_follows_from_the_memory_of_the_gpu(gpu: str | None, context: int) -> None:
    asked = {"model": "llama3.1-8b", "weights": "q4_k_m", "engine": "ollama"} | ({"gpu": gpu} if gpu else {})
    report = ask("size", asked)
    assert report.context == context
    assert report.reserved.kv_bytes == context * 131_072
    assert f"a context of {context:,} tokens" in report.notes[0]


@pytest.mark.parametrize(
    ("size", "version", "context"),
    [
        (22.99, None, 4096), (23, None, 32_768), (46.99, None, 32_768), (47, None, 262_144), (80, "0.15.4", 4096),
        (80, "0.15.5", 262_144), (80, "v0.33.0-rc2", 262_144),
    ],
)  # fmt: skip
def test_the_tiers_of_the_context_and_their_first_version(size: float, version: str | None, context: int) -> None:
    assert ollama_context(int(size * GIB), version=version) == context


def test_a_context_that_is_asked_for_is_ollamas_num_ctx_for_each_parallel_request() -> None:
    asked = {"model": "llama3.1-8b", "gpu": "rtx-4090", "engine": "ollama", "context": 8192}
    one, four = ask("size", asked), ask("size", asked | {"parallel": 4, "ctx-size": 32_768})
    assert (one.context, one.reserved.kv_bytes) == (8192, 8192 * 131_072)
    assert four.reserved.kv_bytes == 4 * 8192 * 131_072
    assert not any("takes a context" in note for note in one.notes)


# automaticGenerationBatch of server/sched.go, by hand: llama3.1-8b's file of 4.58 GiB and 128 KiB a token
@pytest.mark.parametrize(
    ("gpu", "context", "batch"),
    [
        ("h100-sxm", 4096, 512),
        ("h100-sxm", 4097, 1024),
        ("h100-sxm", 32_768, 1024),
        ("h100-sxm", 131_072, 2048),  # 20.6 GiB of 79.2
        ("rtx-4090", 65_536, 2048),  # 12.6 of 23.5: within 60 %
        ("rtx-4090", 98_304, 1024),  # 16.6: beyond 60, within 75 %
        ("rtx-4090", 131_072, 512),  # 20.6: beyond 80 %
        ("rtx-4060", 16_384, 512),  # 6.6 of 7.6
        (None, 131_072, 2048),  # nothing is known of the memory
    ],
)
def test_ollamas_batch_follows_from_the_context_and_what_it_expects_to_fit(
    gpu: str | None, context: int, batch: int
) -> None:
    options = _start("llama3.1-8b", gpu, context).options
    assert (options.batch_size, options.ubatch) == (batch, batch)


def test_a_batch_that_is_asked_for_is_taken() -> None:
    assert _start("llama3.1-8b", "h100-sxm", 131_072, ubatch=256).options.ubatch == 256


def test_the_batch_widens_the_cells_of_windows() -> None:
    # gemma-3: windows of 1,024 tokens in 52 of 62 layers, beside the tokens that are computed at once
    given = ({"ubatch": 256}, {"ubatch": 2048}, {})
    pools = [_start("gemma-3-27b", "h100-sxm", 65_536, **options).pool for options in given]  # type: ignore[arg-type]
    narrow, wide, own = (pool.reserved(context=65_536, batch=1).kv_bytes for pool in pools)
    cell = 52 * 2 * 16 * 128 * 2
    # its own are 1,024: 16.5 GiB of weights and the 40.7 that it expects of the cache are beyond 60 % of 79
    assert (wide - narrow, own - narrow) == (1792 * cell, 768 * cell)


def test_before_llama_cpps_server_windows_had_the_whole_context_and_batches_were_of_512() -> None:
    old = _start("gemma-3-27b", "h100-sxm", 65_536, version="0.24.0", parallel=2)
    assert (old.options.swa_full, old.options.ubatch, old.options.batch_size) == (True, 512, 1024)
    assert "in its own engine" in old.pool.notes[0]
    assert not _start("gemma-3-27b", "h100-sxm", 65_536).options.swa_full


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kv_unified": "true"}, "ollama has no kv-unified"),
        ({"swa_full": "true"}, "ollama has no swa-full"),
        ({"cache_type_k": "q8_0"}, "in one type"),
        ({"version": "0.9.6"}, "chose its parallel requests by memory"),
        ({"version": "newest"}, "is not a version of Ollama"),
        ({"block_size": "16"}, "is an option of vllm"),
    ],
)
def test_what_ollama_has_no_setting_for_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        ask("size", {"model": "llama3.1-8b", "engine": "ollama"} | given)


def test_ollamas_cache_is_of_one_type() -> None:
    given = {"model": "llama3.1-8b", "engine": "ollama", "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    assert ask("size", given).reserved.kv_bytes == 4096 * 131_072 * 34 // 64


def test_lm_studio_shares_one_buffer_among_four_requests() -> None:
    report = ask("fit", {"model": "llama3.1-8b", "weights": "q4_k_m", "gpu": "rtx-4090", "engine": "lm-studio"})
    assert (report.context, report.reserved_kv_bytes, report.max_batch) == (4096, 512 * MIB, 4)
    assert any("LM Studio is closed" in note for note in report.notes)
    assert any("as LM Studio's server loads a model" in note for note in report.notes)


def test_lm_studio_takes_one_request_where_that_is_asked_for() -> None:
    given = {"model": "gemma-3-27b", "gpu": "rtx-4090", "engine": "lm-studio", "context": 4096}
    one, four = ask("size", given | {"parallel": 1}), ask("size", given)
    # windows of four requests stand in one buffer
    assert one.reserved.kv_bytes < four.reserved.kv_bytes


def test_every_question_takes_them_for_llama_cpp() -> None:
    given = {"model": "llama3.1-8b", "weights": "q4_k_m", "gpu": "rtx-4090", "context": 8192}
    plain, own = (ask("decode", given | {"engine": name}) for name in ("llama.cpp", "ollama"))
    assert [row.ideal_s for row in plain.rows] == [row.ideal_s for row in own.rows]


def test_a_deployment_asked_again_keeps_its_program() -> None:
    deployment = kvcalc.deployment("llama3.1-8b", gpu="rtx-4090", engine="ollama")
    again = kvcalc.fit(deployment, engine="ollama")
    assert again.context == 32_768
    other = kvcalc.fit(deployment, engine="transformers")
    assert (other.context, other.engine.partition(" ")[0]) == (4096, "transformers")
