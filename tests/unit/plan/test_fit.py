"""Does it fit: the budget, the capacity of the cache, and the largest that fits."""

from __future__ import annotations

import pytest

import kvcalc
from kvcalc.core.reports.fit import Budget
from kvcalc.core.units import GIB
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.pools import ENGINES

LLAMA = kvcalc.deployment("llama3.1-8b")


def test_kv_memory_answers_capacity_as_vllm_counts_it() -> None:
    report = kvcalc.fit(
        LLAMA, kv_memory_bytes=int(23.45 * GIB), options=EngineOptions(max_model_len=32_768, block_size=16)
    )
    # 32 layers of 16 tokens: 2 MiB a block
    assert report.num_blocks == int(23.45 * GIB) // (16 * 131_072)
    assert report.kv_capacity_tokens == report.num_blocks * 16
    assert report.max_concurrency == report.num_blocks / (32_768 / 16)
    assert report.fits
    assert report.budget is None
    assert report.min_gpus is None


def test_an_engine_that_holds_exactly_one_request_does_not_start() -> None:
    memory = 4 * GIB
    exact, shorter = (
        kvcalc.fit(LLAMA, kv_memory_bytes=memory, options=EngineOptions(max_model_len=length))
        for length in (32_768, 32_752)
    )
    assert (exact.fits, shorter.fits) == (False, True)
    assert "max-model-len 32,768" in exact.reason


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "transformers", "ideal"])
@pytest.mark.parametrize("model", ["llama3.1-8b", "gemma-3-27b", "gpt-oss-20b"])
def test_the_largest_batch_and_context_fit_and_one_more_does_not(engine: str, model: str) -> None:
    deployment = kvcalc.deployment(model)
    memory = 20 * GIB

    def asked(length: int) -> EngineOptions:
        return EngineOptions(max_model_len=length) if engine == "vllm" else EngineOptions()

    def fits(context: int, batch: int) -> bool:
        return kvcalc.fit(
            deployment, engine=engine, options=asked(context), context=context, batch=batch, kv_memory_bytes=memory
        ).fits

    report = kvcalc.fit(deployment, engine=engine, options=asked(8192), context=8192, batch=3, kv_memory_bytes=memory)
    assert report.max_batch > 3
    assert fits(8192, report.max_batch)
    assert not fits(8192, report.max_batch + 1)
    longest = kvcalc.fit(deployment, engine=engine, context=8192, batch=3, kv_memory_bytes=memory).max_context
    assert fits(longest, 3)
    limit = deployment.model.context_limit
    assert limit is not None
    assert 8192 <= longest <= limit
    assert longest == limit or not fits(longest + 1, 3)


@pytest.mark.parametrize("page", [1, 64])
def test_sglang_divides_its_memory_by_the_bytes_of_a_token(page: int) -> None:
    deployment = kvcalc.deployment("qwen3-235b-a22b", gpus=4)
    options = EngineOptions(block_size=page, max_model_len=8192)
    report = kvcalc.fit(deployment, engine="sglang", options=options, kv_memory_bytes=17 * GIB, context=8000)
    per_token = 94 * 1 * (128 + 128) * 2
    assert report.kv_capacity_tokens == 17 * GIB // per_token // page * page
    assert report.reserved_kv_bytes == per_token * -(-8000 // page) * page


def test_sglang_keeps_every_token_in_windowed_layers_too() -> None:
    # 62 layers, of which 10 have no window: 16 heads of 128, keys and values, in 16 bits
    report = kvcalc.fit(kvcalc.deployment("gemma-3-27b"), engine="sglang", kv_memory_bytes=24 * GIB)
    assert report.kv_capacity_tokens == 24 * GIB // (62 * 16 * 2 * 128 * 2) == 50_737


def test_sglang_runs_out_of_states_before_it_runs_out_of_tokens() -> None:
    report = kvcalc.fit(kvcalc.deployment("qwen3-next-80b-a3b"), engine="sglang", kv_memory_bytes=24 * GIB, batch=32)
    assert (report.kv_capacity_tokens, report.state_slots, report.max_running_requests) == (554_968, 156, 31)
    assert (report.fits, report.max_batch) == (False, 31)
    assert report.reason == "the engine takes at most 31 sequences at once: it has 156 slots of recurrent states"
    assert report.request_table_bytes == 32 * (262_144 + 4) * 4


def test_a_pool_that_sglang_does_not_start_with_says_why() -> None:
    deployment = kvcalc.deployment("nemotron-h-56b")
    report = kvcalc.fit(deployment, engine="sglang", kv_memory_bytes=8 * GIB)
    assert (report.fits, report.max_batch, report.kv_capacity_tokens) == (False, 0, 0)
    assert report.reason == "3 slots of recurrent states, 5 a request, hold no request"


def test_sglangs_table_of_requests_must_have_room_outside_of_its_share() -> None:
    # 2,049 rows of 10,485,764 tokens, 4 B each
    deployment = kvcalc.deployment("llama4-scout", gpu="h100-sxm", tensor_parallel=8)
    whole = EngineOptions(max_model_len=10_485_760)
    report = kvcalc.fit(deployment, engine="sglang", options=whole, context=4096)
    assert report.request_table_bytes == 2049 * (10_485_760 + 4) * 4
    assert (report.fits, report.max_batch, report.max_concurrency) == (False, 0, 0)
    assert report.max_context == kvcalc.fit(deployment, engine="sglang", context=4096).max_context
    assert report.reason.startswith("the table of 2,048 requests takes 80.04 GiB")
    shorter = EngineOptions(max_model_len=1_000_000)
    assert kvcalc.fit(deployment, engine="sglang", options=shorter, context=4096).fits


def test_sglang_is_started_for_the_context_that_is_asked_for_as_vllm_is() -> None:
    deployment = kvcalc.deployment("llama4-scout", gpu="h200", gpus=4)
    report = kvcalc.fit(deployment, engine="sglang", context=8192)
    assert (report.fits, report.max_model_len, report.min_gpus) == (True, 8192, 2)
    assert report.request_table_bytes == 4097 * (8192 + 4) * 4
    assert int(report.max_concurrency) == report.max_batch == 180
    told = "started for the 8,192 tokens asked for; without --context-length the engine takes 10,485,760"
    assert told in report.notes
    longest = kvcalc.fit(deployment, engine="sglang", context=report.max_context)
    longer = kvcalc.fit(deployment, engine="sglang", context=report.max_context + 1)
    assert (longest.fits, longer.fits) == (True, False)


def test_sglang_without_a_context_is_started_for_the_length_that_it_reads() -> None:
    report = kvcalc.fit(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), engine="sglang")
    assert (report.context, report.max_model_len) == (4096, 131_072)
    unstarted = kvcalc.fit(kvcalc.deployment("llama4-scout", gpu="h200", gpus=4), engine="sglang")
    assert (unstarted.fits, unstarted.max_concurrency, unstarted.max_batch) == (False, 0, 0)
    assert kvcalc.fit(kvcalc.deployment("llama4-scout", gpu="h200", gpus=4), engine="sglang",
                      context=unstarted.max_context).fits  # fmt: skip


@pytest.mark.parametrize(("context", "factor"), [(8192, 1.0), (8193, 0.85), (None, 0.85)])
def test_amds_kernels_leave_their_part_of_the_share_by_the_length_of_the_start(
    context: int | None, factor: float
) -> None:
    deployment = kvcalc.deployment("llama3.1-8b", gpu="mi300x")
    report = kvcalc.fit(deployment, engine="sglang", context=context)
    assert report.budget is not None
    assert report.budget.utilization == pytest.approx(0.864 * factor)


@pytest.mark.parametrize("model", ["mamba2-2.7b", "mamba-2.8b"])
def test_sglangs_own_limit_is_taken_for_a_model_without_one(model: str) -> None:
    deployment = kvcalc.deployment(model, gpu="l4")
    report = kvcalc.fit(deployment, engine="sglang")
    assert (report.fits, report.context, report.max_model_len, report.max_context) == (True, 2048, 2048, 2048)
    assert report.min_gpus == 1
    beyond = kvcalc.fit(deployment, engine="sglang", context=4096)
    assert (beyond.fits, beyond.min_gpus, beyond.min_gpus_reason) == (
        False,
        None,
        "no number of GPUs starts at this length",
    )


def test_a_pool_of_states_alone_is_no_smaller_for_a_shorter_context() -> None:
    report = kvcalc.fit(kvcalc.deployment("mamba2-2.7b", gpu="l4"), engine="sglang", context=128, batch=8)
    assert (report.fits, report.kv_capacity_tokens, report.max_batch) == (True, 2048, 9)


def test_no_number_of_gpus_says_what_holds_for_all_of_them() -> None:
    report = kvcalc.fit(kvcalc.deployment("mamba2-2.7b", gpu="l4"), engine="sglang", context=1024, batch=1000)
    assert (report.min_gpus, report.min_gpus_reason) == (None, "more than 64")


def test_states_are_counted_in_the_format_that_sglang_is_told() -> None:
    def asked(dtype: str | None) -> kvcalc.Deployment:
        return kvcalc.deployment("qwen3-next-80b-a3b", gpu="h200", gpus=2, engine="sglang",
                                 options=EngineOptions(mamba_ssm_dtype=dtype))  # fmt: skip

    own, short = (kvcalc.decode(asked(dtype), batches=[256], contexts=[1024]).rows[0] for dtype in (None, "bfloat16"))
    recurrent = 36 * 32 * 128 * 128  # elements of 36 layers
    assert own.kv_read_bytes - short.kv_read_bytes == 256 * recurrent * 2
    assert short.tokens_per_s > 1.1 * own.tokens_per_s
    size = kvcalc.size(asked("bfloat16"), context=8192)
    assert size.reserved is not None
    wide = kvcalc.size(asked(None), context=8192).kv
    assert wide.state_bytes_per_sequence - size.kv.state_bytes_per_sequence == recurrent * 2
    assert size.per_gpu.kv_bytes <= size.reserved.total_bytes
    other = kvcalc.fit(asked("bfloat16"), engine="vllm", context=8192)
    assert other.logical_kv_bytes == kvcalc.fit(asked(None), engine="vllm", context=8192).logical_kv_bytes


@pytest.mark.parametrize(
    "option", ["mamba_radix_cache_strategy", "mamba_ssm_dtype", "gdn_prefill_backend", "flash_attn"]
)
def test_an_unknown_word_is_refused_of_any_model(option: str) -> None:
    with pytest.raises(kvcalc.InputError, match=f"{option.replace('_', '-')} is one of"):
        EngineOptions(**{option: "foo"})


def test_sglang_says_that_its_pools_are_those_of_another_version() -> None:
    deployment = kvcalc.deployment("qwen3-8b")
    report = kvcalc.fit(deployment, engine="sglang", options=EngineOptions(version="0.5.9"), kv_memory_bytes=GIB)
    assert any("not of 0.5.9" in note for note in report.notes)
    with pytest.raises(kvcalc.InputError, match="not a version of SGLang"):
        kvcalc.fit(deployment, engine="sglang", options=EngineOptions(version="latest"), kv_memory_bytes=GIB)


def test_sglang_shares_the_requests_asked_for_among_copies() -> None:
    options = EngineOptions(max_num_seqs=256)
    deployment = kvcalc.deployment("deepseek-v3", tensor_parallel=1, data_parallel=8)
    report = kvcalc.fit(deployment, engine="sglang", options=options, kv_memory_bytes=24 * GIB, context=1024)
    assert (report.max_running_requests, report.max_batch) == (32, 256)


def test_transformers_cached_latent_attention_as_heads_before_version_5() -> None:
    def reserved(version: str) -> int:
        options = EngineOptions(version=version)
        found = kvcalc.size(
            kvcalc.deployment("deepseek-v3", kv_dtype="bf16"), context=1000, engine="transformers", options=options
        )
        assert found.reserved is not None
        return found.reserved.total_bytes

    assert reserved("4.57") == 1000 * 61 * 128 * (128 + 64 + 128) * 2
    assert reserved("5.24") == 1000 * 61 * (512 + 64) * 2


def test_a_static_cache_is_allocated_at_its_full_length() -> None:
    options = EngineOptions(max_model_len=32_768)
    found = kvcalc.size(kvcalc.deployment("gemma-3-27b"), context=10, batch=2, engine="transformers", options=options)
    entry = 16 * (128 + 128) * 2
    assert found.reserved is not None
    assert found.reserved.total_bytes == 2 * entry * (10 * 32_768 + 52 * 1024)


def test_the_budget_adds_up() -> None:
    report = kvcalc.fit(
        kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), activation_bytes=GIB, overhead_bytes=GIB // 4, context=8192
    )
    budget = report.budget
    assert budget is not None
    usable = int(0.92 * budget.memory_bytes)
    assert budget.kv_bytes_available == usable - budget.weight_bytes - GIB - GIB // 4
    assert budget.intervals["kv_bytes_available"] == (budget.kv_bytes_available,) * 2


def test_unknown_terms_are_intervals_and_the_pessimistic_end_counts() -> None:
    budget = kvcalc.fit(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm")).budget
    assert budget is not None
    least, most = budget.intervals["kv_bytes_available"]
    assert least < most
    assert budget.kv_bytes_available == least


@pytest.mark.parametrize(
    ("engine", "version", "utilization"),
    [
        ("vllm", None, 0.92),
        ("vllm", "0.25", 0.92),
        ("vllm", "0.19", 0.9),
        ("sglang", None, 0.83),
        ("llama.cpp", None, 1.0),
        ("transformers", "4.57", 1.0),
        ("ideal", None, 1.0),
    ],
)
def test_an_engine_takes_its_own_share_of_the_memory(engine: str, version: str | None, utilization: float) -> None:
    deployment, options = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), EngineOptions(version=version)
    budget = kvcalc.fit(deployment, engine=engine, options=options).budget
    asked = kvcalc.fit(deployment, engine=engine, options=EngineOptions(version=version, utilization=0.5)).budget
    assert budget is not None
    assert asked is not None
    assert (budget.utilization, asked.utilization) == (utilization, 0.5)


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(kvcalc.InputError, match="utilization must be above 0"):
        kvcalc.fit(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), options=EngineOptions(utilization=0.0))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_comes_out_of_an_engines_share(engine: str) -> None:
    """Activations of the largest pass come out of the share, but SGLang leaves them outside; MLX's is one, the ideal has nothing."""
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm")

    def budget(**asked: int) -> Budget:
        found = kvcalc.fit(deployment, engine=engine, options=EngineOptions(utilization=0.8, **asked)).budget
        assert found is not None
        return found

    few, many = budget(max_num_batched_tokens=1000, ubatch=100), budget(max_num_batched_tokens=9000, ubatch=1000)
    assert (few.activation_bytes < many.activation_bytes) == (engine not in ("sglang", "mlx", "ideal"))
    assert (few.overhead_bytes > 0) == (engine != "ideal")
    assert few.outside_bytes == few.memory_bytes - int(0.8 * few.memory_bytes)


def test_fewest_gpus_hold_the_batch_and_fewer_do_not() -> None:
    options = EngineOptions(max_model_len=8192)
    report = kvcalc.fit(kvcalc.deployment("llama3.1-70b", gpu="h100-sxm"), options=options, context=8192, batch=8)
    assert report.smallest is not None
    assert (report.smallest.gpus, report.smallest.tensor, report.smallest.pipeline) == (3, 1, 3)
    verdicts = [
        kvcalc.fit(
            kvcalc.deployment("llama3.1-70b", gpu="h100-sxm", tensor_parallel=tensor, pipeline_parallel=stages),
            options=options,
            context=8192,
            batch=8,
        ).fits
        for tensor, stages in ((1, 1), (2, 1), (1, 2), (1, 3), (4, 1))
    ]
    assert verdicts == [False, False, False, True, True]


def test_pipeline_stages_are_limited_by_the_fullest() -> None:
    memory = 10 * GIB
    whole = kvcalc.fit(LLAMA, kv_memory_bytes=memory)
    halves = kvcalc.fit(kvcalc.deployment("llama3.1-8b", pipeline_parallel=2), kv_memory_bytes=memory)
    assert halves.num_blocks == 2 * (whole.num_blocks or 0)


def test_without_accelerator_or_memory_the_question_has_no_answer() -> None:
    with pytest.raises(kvcalc.InputError, match="depends on the accelerator"):
        kvcalc.fit(LLAMA)


def test_several_gpus_under_llama_cpp_are_refused() -> None:
    with pytest.raises(kvcalc.UnsupportedError, match="several GPUs"):
        kvcalc.fit(kvcalc.deployment("llama3.1-8b", gpu="rtx-4090", gpus=2), engine="llama.cpp")


@pytest.mark.parametrize("engine", ["ideal", "transformers", "sglang", "llama.cpp"])
def test_only_an_engine_that_starts_whole_wants_room_for_the_models_longest(engine: str) -> None:
    # 10 GiB hold 81,920 tokens of 128 KiB, and the model's limit is 131,072
    memory = 10 * GIB
    report = kvcalc.fit(LLAMA, engine=engine, context=4096, kv_memory_bytes=memory)
    whole = kvcalc.fit(LLAMA, kv_memory_bytes=memory)
    assert (report.fits, report.max_batch, report.max_model_len) == (True, 20, 4096)
    assert (whole.fits, whole.max_batch, whole.max_model_len) == (False, 0, 131_072)


def test_an_engine_is_started_for_the_context_that_is_asked_for() -> None:
    # 10 GiB hold 81,920 tokens of 128 KiB; one block is the null block
    report = kvcalc.fit(LLAMA, context=4096, kv_memory_bytes=10 * GIB)
    assert (report.fits, report.max_batch, report.max_model_len) == (True, 19, 4096)
    assert any("without --max-model-len the engine takes 131,072" in note for note in report.notes)


def test_llama_cpp_takes_256_sequences_however_much_memory_there_is() -> None:
    report = kvcalc.fit(LLAMA, engine="llama.cpp", context=256, kv_memory_bytes=100 * GIB)
    assert (report.max_batch, report.fits) == (256, True)


@pytest.mark.parametrize(("batch", "fits"), [(1, True), (4, True), (5, False)])
def test_llama_cpp_allocates_all_its_slots(batch: int, *, fits: bool) -> None:
    options = EngineOptions(parallel=4)
    report = kvcalc.fit(
        LLAMA, engine="llama.cpp", options=options, context=8192, batch=batch, kv_memory_bytes=100 * GIB
    )
    assert (report.fits, report.reserved_kv_bytes, report.max_batch) == (fits, 4 * GIB, 4)
    assert bool(report.max_context) == fits


def test_llama_cpp_allocates_slots_of_the_longest_length() -> None:
    options = EngineOptions(max_model_len=16_384)
    report = kvcalc.fit(LLAMA, engine="llama.cpp", options=options, context=8192, batch=3, kv_memory_bytes=9 * GIB)
    assert (report.reserved_kv_bytes, report.max_batch, report.max_concurrency) == (6 * GIB, 4, 4.0)


def test_data_parallel_copies_share_the_experts() -> None:
    asked = {"gpu": "h200", "data_parallel": 8}
    options = EngineOptions(max_model_len=8192)
    shared, told = (
        kvcalc.fit(kvcalc.deployment("deepseek-v3", **asked, expert_parallel=ep), options=options, batch=16)
        for ep in (None, 8)
    )
    assert shared.budget == told.budget
    assert shared.fits


@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers", "ideal"])
def test_capacity_is_that_of_one_copy_and_the_batch_that_of_all(engine: str) -> None:
    options = EngineOptions(max_model_len=8192) if engine == "vllm" else EngineOptions()
    one, two = (
        kvcalc.fit(
            kvcalc.deployment("llama3.1-8b", data_parallel=copies),
            engine=engine,
            options=options,
            context=8192,
            kv_memory_bytes=10 * GIB + GIB // 2,
        )
        for copies in (1, 2)
    )
    assert (two.kv_capacity_tokens, two.max_concurrency) == (one.kv_capacity_tokens, one.max_concurrency)
    assert (one.max_batch, two.max_batch) == (10, 20)


def test_the_arrangement_that_was_asked_for_is_among_those_tried() -> None:
    report = kvcalc.fit(
        kvcalc.deployment("llama3.1-8b", gpu="h100-sxm", data_parallel=2),
        options=EngineOptions(max_model_len=8192, max_num_seqs=4),
        context=8192,
        batch=8,
    )
    assert report.fits
    assert report.min_gpus == 2
    assert report.smallest is not None
    assert report.smallest.data == 2


def test_whisper_holds_its_encoders_output() -> None:
    options = EngineOptions(max_model_len=400)
    report = kvcalc.fit(kvcalc.deployment("whisper-small"), options=options, context=400, batch=2, kv_memory_bytes=GIB)
    # 25 blocks of the decoder's tokens and 94 of the 1,500 of the encoder, of 12 layers: vLLM runs the 32-bit checkpoint in 16
    assert report.reserved_kv_bytes == 2 * (25 + 94) * 16 * 12 * (2 * 12 * 64) * 2


@pytest.mark.parametrize("name", ["max_num_seqs", "block_size", "max_model_len"])
@pytest.mark.parametrize("value", [0, -3])
def test_an_option_below_one_is_refused(name: str, value: int) -> None:
    with pytest.raises(kvcalc.InputError, match="must be 1 or more"):
        EngineOptions(**{name: value})


def test_terms_beside_the_caches_memory_are_told_to_have_no_part() -> None:
    plain, beside = (
        kvcalc.fit(LLAMA, options=EngineOptions(utilization=share), kv_memory_bytes=GIB) for share in (None, 0.5)
    )
    assert beside.kv_capacity_tokens == plain.kv_capacity_tokens
    assert any("no part in the answer" in note for note in beside.notes)
    assert not any("no part in the answer" in note for note in plain.notes)


def test_the_longest_context_is_no_shorter_than_one_that_fits() -> None:
    report = kvcalc.fit(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), engine="ideal", context=131_073)
    assert (report.fits, report.max_context) == (True, 131_073)


def test_an_engine_takes_as_many_sequences_as_it_is_told() -> None:
    options = EngineOptions(max_num_seqs=4, max_model_len=4096)
    deployment = kvcalc.deployment("llama3.1-8b", data_parallel=2)
    report, more = (
        kvcalc.fit(deployment, options=options, context=4096, batch=batch, kv_memory_bytes=10 * GIB) for batch in (8, 9)
    )
    assert (report.fits, report.max_batch) == (True, 8)
    assert (more.fits, more.reason) == (False, "the engine takes at most 8 sequences at once")


@pytest.mark.parametrize(("pipeline", "data"), [(2, 1), (1, 2), (2, 2)])
def test_the_ideal_engine_reserves_what_the_fullest_rank_keeps(pipeline: int, data: int) -> None:
    deployment = kvcalc.deployment("gemma-3-27b", pipeline_parallel=pipeline, data_parallel=data)
    report = kvcalc.fit(deployment, engine="ideal", context=4096, batch=6, kv_memory_bytes=GIB)
    assert report.reserved_kv_bytes == report.logical_kv_bytes


def test_a_model_without_keys_has_no_longest_context() -> None:
    report = kvcalc.fit(kvcalc.deployment("mamba-2.8b"), engine="ideal", kv_memory_bytes=GIB)
    assert report.fits
    assert report.max_context == 10**9


@pytest.mark.parametrize(
    ("engine", "asked", "options", "words"),
    [
        ("vllm", {"kv_dtype": "q8_0"}, {}, "keeps no cache in q8_0"),
        ("sglang", {"kv_dtype": "int8"}, {}, "keeps no cache in int8"),
        ("vllm", {}, {"block_size": 24}, "multiples of 16"),
    ],
)
def test_what_an_engine_refuses_is_refused(engine: str, asked: dict, options: dict, words: str) -> None:
    deployment = kvcalc.deployment("llama3.1-8b", **asked)
    with pytest.raises(kvcalc.InputError, match=words):
        kvcalc.fit(deployment, engine=engine, options=EngineOptions(**options), kv_memory_bytes=GIB)


@pytest.mark.parametrize("tensor", [3, 12])
def test_ranks_that_do_not_share_the_heads_are_refused_before_anything_is_asked(tensor: int) -> None:
    with pytest.raises(kvcalc.InputError, match=f"not shared evenly by {tensor}"):
        kvcalc.deployment("llama3.1-8b", tensor_parallel=tensor)


def test_terms_of_the_budget_may_be_nothing() -> None:
    report = kvcalc.fit(
        kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), engine="ideal", activation_bytes=0, overhead_bytes=0
    )
    assert report.budget is not None
    assert report.budget.kv_bytes_available == report.budget.memory_bytes - report.budget.weight_bytes


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_an_engine_started_for_a_length_takes_nothing_longer(engine: str) -> None:
    report = kvcalc.fit(LLAMA, engine=engine, options=EngineOptions(max_model_len=8192), kv_memory_bytes=10 * GIB)
    assert report.max_context == 8192


def test_terms_that_are_given_hold_for_the_fewest_gpus_too() -> None:
    one = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm")
    assert kvcalc.fit(one).min_gpus == 1
    for more in ({"overhead_bytes": 100 * GIB}, {"activation_bytes": 100 * GIB}):
        report = kvcalc.fit(one, **more)
        assert not report.fits
        assert report.min_gpus is None
    # 15 GiB of weights do not stand beside 62 GiB, half of them does
    shared = kvcalc.fit(one, context=4096, overhead_bytes=62 * GIB, activation_bytes=0)
    assert (shared.fits, shared.min_gpus) == (False, 2)


@pytest.mark.parametrize("engine", ["vllm", "llama.cpp", "sglang", "ideal"])
def test_the_longest_context_is_no_longer_than_the_model_takes(engine: str) -> None:
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm", engine=engine)
    beyond = kvcalc.fit(deployment, context=1_000_000)
    assert (beyond.fits, beyond.max_context) == (False, 131_072)
    longer = kvcalc.fit(deployment, options=EngineOptions(max_model_len=200_000), context=4096)
    refused = engine in ("vllm", "sglang")
    assert longer.max_context == (131_072 if refused else 200_000)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_share_of_the_memory_is_checked_for_every_question(share: float) -> None:
    asked = {"model": "llama3.1-8b", "engine": "vllm", "utilization": share}
    for question in ("size", "fit", "decode"):
        with pytest.raises(kvcalc.InputError, match="utilization must be above 0 and at most 1"):
            kvcalc.ask(question, asked if question == "size" else asked | {"gpu": "h100-sxm"})
