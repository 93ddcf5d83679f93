"""The figures that anyone can check by hand."""

from __future__ import annotations

import pytest

import kvcalc
from kvcalc.core.units import GIB


def per_token(model: str, **options: object) -> int:
    return kvcalc.size(kvcalc.deployment(model, **options)).kv.bytes_per_token


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("llama2-7b", {"kv_dtype": "bf16"}, 32 * 32 * (128 + 128) * 2),
        ("llama2-70b", {"kv_dtype": "bf16"}, 327_680),
        ("llama2-70b", {"kv_dtype": "bf16", "settings": ["kv_heads=64"]}, 2_621_440),
        ("llama3.1-8b", {"kv_dtype": "bf16"}, 131_072),
        ("llama3.1-8b", {"kv_dtype": "fp8"}, 65_536),
        ("llama3.1-8b", {"kv_dtype": "q8_0"}, 69_632),
        ("llama3.1-8b", {"kv_dtype": "q4_0"}, 36_864),
        ("llama3.1-8b", {"kv_dtype": "int4-g128"}, 32 * 8 * 2 * (64 + 2)),
        ("llama3.1-8b", {"kv_dtype": "int8_per_token_head"}, 32 * 8 * 2 * (128 + 4)),
        ("deepseek-v3", {"kv_dtype": "bf16"}, 61 * (512 + 64) * 2),
        ("falcon-7b", {"kv_dtype": "bf16"}, 32 * 2 * 64 * 2),
    ],
)
def test_bytes_per_token(model: str, options: dict[str, object], expected: int) -> None:
    assert per_token(model, **options) == expected


def test_the_articles_70b_with_multi_head_attention_takes_671_gigabytes_and_the_real_one_an_eighth() -> None:
    twin = kvcalc.deployment("llama2-70b", settings=["kv_heads=64"])
    real = kvcalc.deployment("llama2-70b")
    total = kvcalc.size(twin, context=8000, batch=32).kv.total_bytes
    assert round(total / 1e9, 2) == 671.09
    assert kvcalc.size(real, context=8000, batch=32).kv.total_bytes * 8 == total


def test_gemma_3_27b_keeps_whole_contexts_in_one_layer_of_six() -> None:
    held = kvcalc.size(kvcalc.deployment("gemma-3-27b"), context=131_072).kv
    entry = 16 * (128 + 128) * 2
    assert held.bytes_per_sequence == entry * (10 * 131_072 + 52 * 1024)
    assert round(held.bytes_per_sequence / GIB, 2) == 10.41
    assert [(s["from_tokens"], s["bytes_per_token"]) for s in held.affine] == [(0, 62 * entry), (1024, 10 * entry)]


def test_llama2_70b_decodes_at_24_tokens_a_second_on_one_h100s_bandwidth_and_does_not_fit() -> None:
    report = kvcalc.decode(kvcalc.deployment("llama2-70b", gpu="h100-sxm"), batches=[1], contexts=[128])
    row = report.rows[0]
    assert not row.fits
    assert row.limiter == "memory"
    assert row.ideal_s == pytest.approx(41e-3, rel=0.005)
    assert row.tokens_per_s == pytest.approx(24.4, rel=0.005)
    # every parameter but the input embedding, of which one row is read, and the cache of 128 tokens read and one written
    embedding = 32_000 * 8192
    moved = 2 * (68_976_648_192 - embedding + 8192) + 129 * 327_680 + 2 * 32_000
    assert row.ideal_s == pytest.approx(moved / 3.35e12, rel=1e-12)


def test_h100_sxm_ridge_point_is_295_flop_per_byte() -> None:
    ridge = kvcalc.roofline("h100-sxm").ridge_flop_per_byte
    assert ridge["bf16"] == pytest.approx(989.4e12 / 3.35e12)
    assert round(ridge["bf16"]) == 295


def test_mixtral_at_batch_64_reads_the_expected_experts_not_two_of_eight() -> None:
    row = kvcalc.decode(kvcalc.deployment("mixtral-8x7b", gpu="h100-sxm"), batches=[64], contexts=[1]).rows[0]
    assert row.experts is not None
    assert row.ideal_s == pytest.approx(27.8e-3, rel=0.002)
    assert row.experts.best_s == pytest.approx(7.6e-3, rel=0.005)
    assert row.experts.worst_s == pytest.approx(27.8e-3, rel=0.002)
    expert = 3 * 4096 * 14336
    touched = 8 * (1 - (1 - 2 / 8) ** 64)
    rest = 46_702_792_704 - 32 * 8 * expert - 32_000 * 4096 + 64 * 4096
    cache = 64 * 2 * (2 * 32 * 8 * 128) * 2
    logits = 64 * 32_000
    assert row.ideal_s == pytest.approx(
        2 * (rest + 32 * touched * expert + logits) / 3.35e12 + cache / 3.35e12, rel=1e-9
    )


def test_decode_flop_is_two_per_active_matrix_parameter_plus_attention() -> None:
    row = kvcalc.decode(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), batches=[3], contexts=[1000]).rows[0]
    layer = 4096 * (4096 + 1024 + 1024) + 4096 * 4096 + 3 * 4096 * 14336
    linear = 2 * (32 * layer + 128_256 * 4096)
    assert row.flop == 3 * (linear + 32 * 2 * 1000 * 32 * (128 + 128))
    assert row.kv_read_bytes == 3 * 1000 * 131_072


def test_prefill_counts_the_causal_half_and_the_output_head_once() -> None:
    row = kvcalc.prefill(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), prompts=[1000]).rows[0]
    layer = 4096 * (4096 + 1024 + 1024) + 4096 * 4096 + 3 * 4096 * 14336
    attention = 32 * 2 * (1000 * 1001 // 2) * 32 * (128 + 128)
    assert row.flop == 2 * 32 * layer * 1000 + 2 * 128_256 * 4096 + attention
    assert row.limiter == "compute"


def test_absorbed_latent_decode_works_on_the_compressed_vectors() -> None:
    one, two = (
        kvcalc.decode(kvcalc.deployment("deepseek-v3", gpu="h200"), contexts=[context]).rows[0]
        for context in (1000, 1001)
    )
    assert two.flop - one.flop == 61 * 2 * 128 * (2 * 512 + 64)


def test_intensity_levels_off_where_only_the_cache_is_left_to_read() -> None:
    plateau = kvcalc.roofline("h200", [kvcalc.deployment("llama3.1-8b", gpu="h200")], contexts=[4096]).plateaus[0]
    layer = 4096 * (4096 + 1024 + 1024) + 4096 * 4096 + 3 * 4096 * 14336
    flop = 2 * (32 * layer + 128_256 * 4096) + 32 * 2 * 4096 * 32 * 256
    moved = 4097 * 131_072 + 2 * 4096 + 2 * 128_256
    assert plateau.plateau_flop_per_byte == pytest.approx(flop / moved)
    weights = 2 * (8_030_261_248 - 128_256 * 4096)
    assert plateau.half_batch == -(-weights // moved)
    assert plateau.compute_bound_batch is None


def test_tensor_parallel_replicates_kv_heads_and_latent_vectors() -> None:
    def rank_kv(model: str, tensor: int) -> int:
        return kvcalc.size(kvcalc.deployment(model, gpus=tensor), context=1).per_gpu.kv_bytes

    assert [rank_kv("llama3.1-8b", t) for t in (1, 2, 8, 16)] == [131_072, 65_536, 16_384, 16_384]
    assert rank_kv("deepseek-v3", 8) == rank_kv("deepseek-v3", 1)


def test_weights_split_over_ranks_add_up_to_the_whole_and_what_is_replicated() -> None:
    whole = kvcalc.size(kvcalc.deployment("llama3.1-8b"))
    split = kvcalc.size(kvcalc.deployment("llama3.1-8b", gpus=8))
    norms = 2 * (32 * 2 * 4096 + 4096)
    assert 8 * split.per_gpu.weight_bytes == whole.weights.total_bytes + 7 * norms


def test_a_batch_that_cannot_be_dealt_evenly_is_counted_once() -> None:
    rows = [
        kvcalc.decode(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm", data_parallel=ranks), batches=[3]).rows[0]
        for ranks in (1, 2, 8)
    ]
    assert {row.kv_read_bytes for row in rows} == {3 * 4096 * 131_072}
    assert len({row.flop for row in rows}) == 1
    # the busiest of two ranks decodes two of the three sequences
    two = kvcalc.decode(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), batches=[2]).rows[0]
    assert rows[1].ideal_s == two.ideal_s


def test_one_sequence_passes_every_pipeline_stage() -> None:
    whole, halves = (
        kvcalc.decode(kvcalc.deployment("llama2-70b", gpu="h100-sxm", pipeline_parallel=stages)).rows[0]
        for stages in (1, 2)
    )
    assert halves.tokens_per_s == pytest.approx(2 * whole.tokens_per_s, rel=0.01)
    assert halves.tokens_per_s_per_sequence == pytest.approx(whole.tokens_per_s_per_sequence, rel=0.01)


def test_a_format_without_a_peak_is_named_with_the_one_it_runs_at() -> None:
    report = kvcalc.decode(kvcalc.deployment("llama3.1-8b", gpu="v100-sxm2-32gb"))
    assert any("no bf16 peak: it is taken to run as fp16" in note for note in report.notes)


def test_a_step_that_stays_in_the_cache_says_so() -> None:
    small = kvcalc.decode(kvcalc.deployment("gpt2", gpu="rtx-4090", weights="q4_k"), contexts=[1])
    assert any("last-level cache" in note for note in small.notes)
    large = kvcalc.decode(kvcalc.deployment("llama3.1-8b", gpu="rtx-4090"), contexts=[1])
    assert not any("last-level cache" in note for note in large.notes)


def test_an_override_is_named_as_the_source_of_what_it_changes() -> None:
    twin = kvcalc.deployment("llama2-70b", settings=["kv_heads=64"])
    entry = kvcalc.explain("size", twin)[0]
    assert entry.sources == ("derived: --set kv_heads=64",)
    assert any("kv_heads=64" in note for note in kvcalc.size(twin).notes)
