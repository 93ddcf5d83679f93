"""Reconciling: intervals of printed digits, the rule of a version, and the term that explains a difference."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc import api
from kvcalc.core.errors import InputError, KvcalcError, UnsupportedError
from kvcalc.engines.logs import read_log
from kvcalc.plan.reconcile import check_engine, reconcile_start_up

LLAMA = "Initializing a V1 LLM engine (v0.19.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', max_seq_len=8192"


def vllm(*, memory="58.11", tokens="476,000", requests="58.11", head=LLAMA):
    return (
        f"{head}\nAvailable KV cache memory: {memory} GiB\nGPU KV cache size: {tokens} tokens\n"
        f"Maximum concurrency for 8,192 tokens per request: {requests}x\n"
    )


def rows(text, model=None):
    return {row.quantity: row for row in api.reconcile(text, model=model).rows}


def test_numbers_within_their_digits_agree():
    found = rows(vllm())
    assert set(found) == {"kv_cache_tokens", "max_concurrency"}
    assert all(row.agrees and row.difference == 0 for row in found.values())
    # 0.01 GiB is 5.12 blocks of 2 MiB
    assert found["kv_cache_tokens"].predicted_least == 475984
    assert found["kv_cache_tokens"].predicted_most == 476064


def test_a_cpu_has_blocks_of_128_tokens():
    log = (
        "Initializing a V1 LLM engine (v0.32.0) with config: model='x', dtype=torch.bfloat16, max_seq_len=600\n"
        "Explicitly set (0.5/23.54) GiB for KV cache on node 0.\nCPU KV cache size: {} tokens, "
        "Maximum concurrency for 600 tokens per request: {}x\n"
    )
    # 0.5 GiB is 182 blocks of 128 x 30 x 3 x 64 x 4 B; a request of 600 tokens has 5
    found = rows(log.format("21,840", "36.40"), "smollm2-135m")
    assert all(row.agrees for row in found.values())
    assert not all(row.agrees for row in rows(log.format("22,976", "38.29"), "smollm2-135m").values())


@pytest.mark.parametrize(
    ("version", "tokens", "requests", "assumed"),
    [
        ("0.33.0", "731,015", "178.47", "Hopper's or Blackwell's"),
        ("0.33.0", "939,739", "229.43", ""),
        ("0.32.0", "939,739", "229.43", ""),
        ("0.32.0", "731,015", "178.47", None),
    ],
)
def test_the_card_is_told_from_the_tokens_of_gated_delta_nets(version, tokens, requests, assumed):
    # Qwen3-Next in 40 GiB as 0.33's own code counts it, with and without FlashInfer's kernel
    head = (
        f"Initializing a V1 LLM engine (v{version}) with config: model='Qwen/Qwen3-Next-80B-A3B-Instruct', "
        "dtype=torch.bfloat16, max_seq_len=4096, kv_cache_dtype=auto, enable_prefix_caching=True"
    )
    found = rows(vllm(memory="40.00", tokens=tokens, requests=requests, head=head).replace("8,192", "4,096"))
    assert all(row.agrees == (assumed is not None) for row in found.values())
    assert assumed is None or all((assumed in row.reason) for row in found.values())
    assert assumed or not any("Hopper" in row.reason for row in found.values())


@pytest.mark.parametrize(
    ("version", "is_counted"), [("0.19.2", False), ("0.20.0", True), ("0.33.0", True), ("unknown", True)]
)
def test_the_estimate_for_cuda_graphs_leaves_the_cache_less_from_0_20_on(version, is_counted):
    """What the cache is left over from is printed; a version that is none is taken for one that counts the estimate."""
    others = 17.12 - 0.84 * is_counted
    profiled = (
        "Estimated CUDA graph memory: 0.84 GiB total\nRequested memory: 0.950000 (util), 75.23 GiB\n"
        f"Memory profiling takes 18.17 seconds. Total non KV cache memory: {others:.2f}GiB\n"
    )
    head = LLAMA.replace("0.19.0", version)
    row = rows(vllm(head=f"{head}\n{profiled}"))["available_kv_gib"]
    assert row.agrees
    assert ("the estimate for CUDA graphs" in row.reason) == is_counted


def test_one_number_that_agrees_leaves_the_others_to_be_explained():
    profiled = "Requested memory: 0.950000 (util), 75.23 GiB\nMemory profiling takes 1 seconds. Total non KV cache memory: 17.12GiB\n"
    found = rows(vllm(head=f"{LLAMA}\n{profiled}", tokens="400,000", requests="48.83"))
    assert found["available_kv_gib"].agrees
    assert not found["kv_cache_tokens"].agrees
    assert "unexplained by any term tried" in found["kv_cache_tokens"].reason


@pytest.mark.parametrize("tokens", ["475,968", "476,080"])
def test_one_block_beyond_the_digits_differs(tokens):
    row = rows(vllm(tokens=tokens, requests="58.10" if tokens < "476" else "58.12"))["kv_cache_tokens"]
    assert not row.agrees
    assert row.difference in (-16, 16)


def test_a_number_that_cannot_occur_differs_though_it_lies_in_the_interval():
    row = rows(vllm(tokens="476,017"))["kv_cache_tokens"]
    assert (row.agrees, row.predicted, row.difference) == (False, 476016, 1)
    assert row.reason.startswith("no whole number of blocks gives 476,017 tokens; nearest: 476,016 and 476,032")


def test_a_concurrency_that_no_number_of_blocks_gives_differs():
    # 2 blocks a request: halves only
    log = (
        "Initializing a V1 LLM engine (v0.19.0) with config: model='meta-llama/Llama-3.1-8B', max_seq_len=32\n"
        "Available KV cache memory: 1.0 GiB\nMaximum concurrency for 32 tokens per request: {}x\n"
    )
    assert rows(log.format("256.00"))["max_concurrency"].agrees
    assert "no whole number of blocks gives 255.8" in rows(log.format("255.80"))["max_concurrency"].reason


def test_predicted_is_computed_and_not_the_printed_number():
    found = {tokens: rows(vllm(tokens=tokens))["kv_cache_tokens"] for tokens in ("475,984", "476,064")}
    assert all(row.agrees for row in found.values())
    assert len({row.predicted for row in found.values()}) == 1


def test_blocks_of_another_size_are_named_as_the_term():
    # 61 layers x 576 x 2 B; 64 tokens a block by default, and 458,384 is 28,649 x 16
    log = (
        "Initializing a V1 LLM engine (v0.19.0) with config: model='deepseek-ai/DeepSeek-V3', max_seq_len=8192, "
        "tensor_parallel_size=8\nAvailable KV cache memory: 30.0 GiB\nGPU KV cache size: 458,384 tokens\n"
    )
    row = rows(log)["kv_cache_tokens"]
    assert not row.agrees
    assert "nearest: 458,368 and 458,432" in row.reason
    assert "blocks in multiples of 16 tokens" in row.reason


def test_an_estimate_that_one_token_more_would_not_change_differs():
    log = (
        "Initializing a V1 LLM engine (v0.15.2) with config: model='Qwen/Qwen3-30B-A3B'\nTo serve at least one request "
        "with the model's max seq len (262144), 24.0 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (3.18 GiB). Based on the available memory, the estimated maximum model length is 34737."
    )
    row = rows(log)["estimated_max_model_len"]
    assert not row.agrees
    assert "34,738 tokens need no more blocks than 34,737" in row.reason


def test_every_replica_is_checked():
    sizes = ("476,016", "123,456")
    log = "".join(
        f"(EngineCore_DP{rank} pid=1) {LLAMA}\n(EngineCore_DP{rank} pid=1) Available KV cache memory: 58.11 GiB\n"
        f"(EngineCore_DP{rank} pid=1) GPU KV cache size: {size} tokens\n"
        for rank, size in enumerate(sizes)
    )
    found = {row.start_up.split(",")[0]: row.agrees for row in api.reconcile(log).rows}
    assert found == {"vllm DP0": True, "vllm DP1": False}


@pytest.mark.parametrize(("count", "left_out"), [(6, 0), (40, 8)])
def test_every_start_is_computed_up_to_a_bound_and_the_others_are_told(count, left_out):
    report = api.reconcile("".join(vllm(tokens=f"{16 * size:,}") for size in range(1, count + 1)))
    assert len(report.left_out) == left_out
    assert report.complete == (not left_out)
    assert len({row.start_up for row in report.rows}) == count - left_out
    assert any("too many" in note and "line 1" in note for note in report.notes) == bool(left_out)


@pytest.mark.parametrize(
    ("printed", "agrees"), [("14.99", True), ("14.9888", True), ("14.90", False), ("34.99", False)]
)
def test_the_memory_of_the_weights_is_computed(printed, agrees):
    # 8,030,261,248 parameters of 2 B, 14.9575 GiB, and 32 MiB of positions
    row = rows(f"{LLAMA}, tensor_parallel_size=1\nModel loading took {printed} GiB memory")["weights_gib"]
    assert (row.agrees, row.predicted_least) == (agrees, pytest.approx(14.957527))


def test_weights_are_counted_in_the_type_that_the_log_tells():
    row = rows(f"{LLAMA}, tensor_parallel_size=1, dtype=torch.float32\nModel loading took 29.95 GiB memory")[
        "weights_gib"
    ]
    assert (row.agrees, row.predicted_least) == (True, pytest.approx(2 * 14.957527))


def test_data_parallel_copies_share_out_the_experts_of_a_mixture():
    head = LLAMA.replace("meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mixtral-8x7B-Instruct-v0.1")
    whole = rows(f"{head}, tensor_parallel_size=1\nModel loading took 87.0 GiB memory")["weights_gib"]
    shared = rows(f"{head}, tensor_parallel_size=1, data_parallel_size=4\nModel loading took 24.0 GiB memory")[
        "weights_gib"
    ]
    experts = 32 * 8 * 3 * 4096 * 14336 * 2 / 2**30
    assert whole.predicted_least - shared.predicted_least == pytest.approx(experts * 3 / 4)


def test_tables_of_positions_of_a_small_model_are_not_a_difference():
    head = LLAMA.replace("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct")
    # 0.9202 GiB of weights, and 1.6 % of them
    assert rows(f"{head}, tensor_parallel_size=1\nModel loading took 0.935 GiB memory")["weights_gib"].agrees


def test_towers_are_among_the_weights():
    head = LLAMA.replace("meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mistral-Small-3.1-24B-Instruct-2503")
    # 23.57 G parameters of text, and 0.44 G of a tower
    assert rows(f"{head}, tensor_parallel_size=1\nModel loading took 44.75 GiB memory")["weights_gib"].agrees


def test_a_model_that_was_started_without_its_towers_is_lighter():
    head = LLAMA.replace("meta-llama/Llama-3.1-8B-Instruct", "google/gemma-3-27b-it")
    assert "gemma" in head
    took = "Model loading took 50.40 GiB memory"
    assert rows(f"{head}, tensor_parallel_size=1, language_model_only=True\n{took}")["weights_gib"].agrees
    assert not rows(f"{head}, tensor_parallel_size=1\n{took}")["weights_gib"].agrees


def test_padded_experts_are_computed():
    head = LLAMA.replace("meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-120b")
    assert "gpt-oss" in head
    found = {
        printed: rows(f"{head}, tensor_parallel_size=1\nModel loading took {printed} GiB memory")["weights_gib"].agrees
        for printed in ("60.00", "64.38", "65.9651", "68.70", "72.00")
    }
    assert found == {"60.00": False, "64.38": True, "65.9651": True, "68.70": True, "72.00": False}


def test_a_rank_that_disagrees_is_shown():
    log = f"{LLAMA}, tensor_parallel_size=2\nModel loading took 7.51 GiB memory\nModel loading took {{}} GiB memory"
    assert rows(log.format("7.51"))["weights_gib"].agrees
    assert rows(log.format("15.00"))["weights_gib"].printed == 15.0


def test_an_engine_that_calls_itself_v0_is_read():
    (start_up,) = read_log(vllm(head=LLAMA.replace("a V1 LLM engine (v0.19.0)", "a V0 LLM engine (v0.8.2)")))
    assert (start_up.version, start_up.model) == ("0.8.2", "meta-llama/Llama-3.1-8B-Instruct")
    assert "V0" in start_up.events


def test_ranks_that_are_not_told_are_assumed():
    row = rows(f"{LLAMA}\nModel loading took 7.51 GiB memory")["weights_gib"]
    assert row.agrees
    assert "assumed: 2 tensor-parallel ranks" in row.reason


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (LLAMA + ", quantization=awq", "quantised (awq)"),
        (LLAMA.replace("-Instruct", "-Instruct-AWQ-INT4"), "AWQ-INT4"),
        (LLAMA + ", speculative_config={'method': 'eagle3', 'num_speculative_tokens': 2}", "draft model"),
        (LLAMA + ", enable_lora=True", "adapters"),
        (LLAMA + ", enable_eplb=True", "more than once"),
        (LLAMA + "\nnon-default args: {'cpu_offload_gb': 8.0}", "memory of the CPU"),
        (
            LLAMA + "\nnon-default args: {'speculative_config': {'model': 'm', 'num_speculative_tokens': 5}}",
            "draft model",
        ),
        (
            LLAMA.replace("meta-llama/Llama-3.1-8B-Instruct", "cognitivecomputations/DeepSeek-V3-AWQ")
            + ", quantization=awq_marlin",
            "stored otherwise (awq_marlin)",
        ),
        (LLAMA.replace("meta-llama/Llama-3.1-8B-Instruct", "unsloth/gpt-oss-120b-BF16"), "stored otherwise"),
        (LLAMA.replace("meta-llama/Llama-3.1-8B-Instruct", "state-spaces/mamba-2.8b-hf"), "32 bits"),
    ],
)
def test_weights_whose_size_is_not_known_are_told(head, why):
    report = api.reconcile(f"{head}\nModel loading took 5.30 GiB memory")
    assert report.rows == ()
    assert any(why in note for note in report.notes)


def test_decode_context_parallelism_is_named_as_not_modelled():
    with pytest.raises(UnsupportedError, match="decode_context_parallel_size=2"):
        api.reconcile(vllm(head=LLAMA + ", tensor_parallel_size=8, decode_context_parallel_size=2"))


def test_concurrency_follows_the_tokens_printed():
    found = rows(vllm(requests="58.12"))
    assert found["kv_cache_tokens"].agrees
    assert not found["max_concurrency"].agrees


def test_the_format_that_explains_a_difference_is_named():
    found = rows(vllm(tokens="952,016", requests="116.21"))
    assert not found["kv_cache_tokens"].agrees
    assert "KV kept in fp8, not bf16" in found["kv_cache_tokens"].reason


def test_another_rank_explains_fewer_tokens_where_one_of_two_was_printed():
    head = f"{LLAMA}, tensor_parallel_size=2"
    row = rows(vllm(memory="29.06", tokens="470,000", requests="57.37", head=head))["kv_cache_tokens"]
    assert not row.agrees
    assert "28.69 GiB on another rank: the smallest of 2 decides" in row.reason


def test_a_difference_that_nothing_explains_says_so():
    assert "unexplained by any term tried" in rows(vllm(tokens="123,456", requests="1.00"))["kv_cache_tokens"].reason


@pytest.mark.parametrize(
    ("version", "tokens", "reason"),
    [
        ("0.20.2", 31360, "blocks of 25,690,112 B // 4 groups x 784 tokens"),
        ("0.23.1", 123399, "concurrency x 122,633; 25,690,112 B a block"),
    ],
)
def test_what_a_version_prints_as_tokens(version, tokens, reason):
    # 161 blocks: 161 // 4 x 784, and floor(161 / 160 x 122,633)
    log = (
        f"Initializing a V1 LLM engine (v{version}) with config: model='Qwen/Qwen3.6-27B', max_seq_len=122633, "
        f"tensor_parallel_size=2, enable_prefix_caching=False\nAvailable KV cache memory: 3.86 GiB\n"
        f"GPU KV cache size: {tokens:,} tokens"
    )
    row = rows(log)["kv_cache_tokens"]
    assert row.agrees
    assert row.reason == reason


def test_the_budget_is_computed_where_all_its_terms_are_printed():
    log = (
        "Initializing an LLM engine (v0.6.5) with config: model='Qwen/Qwen2.5-7B'\n"
        "the current vLLM instance can use total_gpu_memory (79.25GiB) x gpu_memory_utilization (0.15) = 11.89GiB\n"
        "model weights take 8.51GiB; non_torch_memory takes 0.26GiB; PyTorch activation peak memory takes 0.94GiB; the "
        "rest of the memory reserved for KV Cache is 2.18GiB.\n"
    )
    row = rows(log, model="qwen2.5-7b")["available_kv_gib"]
    assert row.agrees
    assert row.predicted_least == pytest.approx(2.16175)  # 79.245 x 0.15 - 8.515 - 0.265 - 0.945


def test_sglang_counts_its_padding_page():
    log = "server_args=ServerArgs(model_path='Qwen/Qwen3-14B', tp_size=4)\nKV Cache is allocated. #tokens: 298447, K size: 5.69 GB, V size: 5.69 GB"
    found = rows(log)
    assert all(row.agrees for row in found.values())
    assert found["k_gib"].predicted_most > found["k_gib"].predicted_least


@pytest.mark.parametrize(("stages", "layers"), [(2, 18), (5, 7), (5, 8)])
def test_sglang_keeps_the_layers_of_a_pipeline_stage(stages, layers):
    tokens = 367_000
    size = tokens * layers * 4 * 128 * 2 / 2**30
    log = (
        f"server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=2, pp_size={stages}, page_size=1)\n"
        f"KV Cache is allocated. #tokens: {tokens}, K size: {size:.2f} GB, V size: {size:.2f} GB"
    )
    report = api.reconcile(log)
    assert report.agrees
    with pytest.raises(InputError, match="40 pipeline stages"):
        api.reconcile(log.replace(f"pp_size={stages}", "pp_size=40"))


def test_sglang_keeps_every_token_of_gemmas_windows():
    # 62 layers x 16 heads x 128 x 2 B for keys, and as much for values
    size = (50_737 + 1) * 62 * 16 * 128 * 2 / 2**30
    log = f"KV Cache is allocated. #tokens: 50737, K size: {size:.2f} GB, V size: {size:.2f} GB"
    assert all(row.agrees for row in rows(log, model="gemma-3-27b").values())


# A public log of MiMo-V2-Flash on 4 GPUs (https://github.com/sgl-project/sglang/pull/18039).
TWO_POOLS = """\
server_args=ServerArgs(model_path='XiaomiMiMo/MiMo-V2-Flash', tp_size=4, page_size=64)
Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 375360, K size: 1.21 GB, V size: 0.81 GB
SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 300288, K size: 8.38 GB, V size: 5.59 GB
"""


def test_sglang_prints_a_pool_for_windows_beside_the_other():
    found = rows(TWO_POOLS)
    assert set(found) == {"k_gib", "v_gib", "window_k_gib", "window_v_gib"}
    assert all(row.agrees for row in found.values())
    assert not rows(TWO_POOLS.replace("8.38", "8.40"))["window_k_gib"].agrees


def test_sglang_prints_slots_of_states():
    log = (
        "server_args=ServerArgs(model_path='Qwen/Qwen3-Next-80B-A3B-Instruct', tp_size=1)\n"
        "Mamba Cache is allocated. max_mamba_cache_size: 156, conv_state size: 0.26GB, ssm_state size: 11.04GB\n"
        "KV Cache is allocated. #tokens: 554968, K size: 6.35 GB, V size: 6.35 GB\n"
    )
    found = rows(log)
    assert set(found) == {"k_gib", "v_gib", "conv_state_gib", "ssm_state_gib"}
    assert all(row.agrees for row in found.values())
    assert not rows(log.replace("156", "150"))["ssm_state_gib"].agrees


LLAMA_CPP = """\
print_info: general.name     = Qwen3 8B
llama_context: n_ctx         = 40960
llama_kv_cache: size = {} MiB ( 40960 cells,  36 layers,  1/1 seqs), K (f16): 2880.00 MiB, V (f16): 2880.00 MiB
"""


def test_llama_cpp():
    assert all(row.agrees for row in rows(LLAMA_CPP.format("5760.00")).values())
    assert not rows(LLAMA_CPP.format("5760.01"))["kv_cache_mib"].agrees


def test_llama_cpp_once_kept_windowed_layers_in_one_cache():
    # 62 layers x 16 kv heads x 128 x 2 B x 8,192 cells for keys, and as much for values
    log = "llama_context: n_ctx = 8192\nllama_kv_cache_unified: size = 3968.00 MiB (  8192 cells,  62 layers), K (f16): 1984.00 MiB, V (f16): 1984.00 MiB"
    assert all(row.agrees for row in rows(log, model="gemma-3-27b").values())


def test_llama_cpp_with_two_caches():
    # 8,192 cells for 10 layers, 1,024 + 512 for the 52 with a window of 1,024
    log = (
        "llama_context: n_ctx = 8192\nllama_context: n_ubatch = 512\n"
        "llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells\n"
        "llama_kv_cache: size = 640.00 MiB (  8192 cells,  10 layers,  1/1 seqs), K (f16): 320.00 MiB, V (f16): 320.00 MiB\n"
        "llama_kv_cache_iswa: creating     SWA KV cache, size = 1536 cells\n"
        "llama_kv_cache: size = 624.00 MiB (  1536 cells,  52 layers,  1/1 seqs), K (f16): 312.00 MiB, V (f16): 312.00 MiB\n"
    )
    found = rows(log, model="gemma-3-27b")
    assert all(row.agrees for row in found.values())
    assert {"full_cells", "swa_cells"} <= set(found)


# 48 layers x (10,240 channels x 3 columns + 48 heads x 128 x 128) x 4 B = 149.625 MiB a sequence
STATES = "llama_memory_recurrent: size = {} MiB ({} cells,  48 layers, {}), R (f32): 1.00 MiB, S (f32): 1.00 MiB"


@pytest.mark.parametrize(
    ("size", "cells", "sequences"),
    [
        ("149.62", 1, "1 seqs"),
        ("598.50", 4, "4 seqs"),
        ("598.50", 4, ""),
        ("598.50", 1, "1 seqs  3 rs_seq"),
        ("2394.00", 4, "4 seqs  3 rs_seq"),
    ],
)
def test_llama_cpps_states_are_those_of_the_sequences_on_their_line(size, cells, sequences):
    log = STATES.format(size, cells, sequences)
    assert rows(log, model="qwen3.6-27b")["recurrent_state_mib"].agrees
    assert not rows(log.replace(size, f"{float(size) + 0.02:.2f}"), model="qwen3.6-27b")["recurrent_state_mib"].agrees


def test_llama_cpps_streams_are_those_of_the_cache_s_line():
    # 36 layers x 8 heads x 128 x 2 B x 10,240 cells x 4 streams for keys, and as much for values
    log = "llama_kv_cache: size = 5760.00 MiB ( 10240 cells,  36 layers,  4/4 seqs), K (f16): 2880.00 MiB, V (f16): 28"
    found = rows(log, model="qwen3-8b")
    assert all(row.agrees for row in found.values())
    assert "v_cache_mib" not in found
    assert not rows(log.replace("4/4", "4/1"), model="qwen3-8b")["kv_cache_mib"].agrees


def test_the_advice_is_computed():
    advice = " ".join(api.reconcile(vllm()).advice)
    assert "a request of 8,192 tokens needs 1.00 GiB" in advice
    assert "fp8 would hold 2.00 times as many tokens" in advice


def test_the_advice_is_that_of_a_pipeline_stage():
    # 16 of 32 layers: 0.5 GiB of the 1 GiB of 8,192 tokens
    head = LLAMA + ", pipeline_parallel_size=2"
    advice = " ".join(api.reconcile(vllm(memory="20.00", tokens="327,680", requests="40.00", head=head)).advice)
    assert "needs 0.50 GiB per GPU" in advice
    assert "39.99 such requests fit" in advice


def test_a_refusal_is_told_the_most_that_fits():
    log = (
        "Initializing a V1 LLM engine (v0.15.2) with config: model='Qwen/Qwen3-30B-A3B', kv_cache_dtype=auto\n"
        "To serve at least one request with the model's max seq len (262144), 24.0 GiB KV cache is needed, which is larger "
        "than the available KV cache memory (3.18 GiB). Based on the available memory, the estimated maximum model length "
        "is 34736."
    )
    report = api.reconcile(log)
    assert report.agrees
    assert any(
        line.startswith("max-model-len 34,") and line.endswith("is the most that fits") for line in report.advice
    )


GLM = """\
Initializing a V1 LLM engine (v{}) with config: model='zai-org/GLM-4.7-FP8', max_seq_len=202752, pipeline_parallel_size=8
ValueError: To serve at least one request with the models's max seq len (202752), ({} GiB KV cache is needed, which is larger than the available KV cache memory ({} GiB). Based on the available memory, the estimated maximum model length is {}. Try
"""


@pytest.mark.parametrize("version", ["0.14.1", "0.15.2rc1.dev93+g11a4c9d30", "0.1.dev1+g58996f358"])
def test_a_pipeline_that_was_asked_for_all_layers_on_every_rank(version):
    # https://github.com/vllm-project/vllm/issues/32105; a build that does not tell its version is tried both ways
    report = api.reconcile(GLM.format(version, "71.16", "28.57", 81392), model="glm-4.7")
    assert report.agrees
    assert {row.quantity for row in report.rows} == {"needed_kv_gib", "estimated_max_model_len"}
    assert "of all layers, on every rank" in report.rows[0].reason
    advice = " ".join(report.advice)
    assert "needs 71.16 GiB per GPU" in advice
    assert "max-model-len 81,392 is the most that fits" in advice


def test_a_pipeline_whose_ranks_are_asked_for_their_own_layers():
    # the fullest rank has 12 of 92 layers: 202,752 tokens x 12 x 2 x 8 heads x 128 x 2 B
    found = rows(GLM.format("0.16.0", "9.28", "3.00", 65536), model="glm-4.7")
    assert found["needed_kv_gib"].agrees
    assert "of a rank's layers" in found["needed_kv_gib"].reason
    assert not rows(GLM.format("0.16.0", "71.16", "28.57", 81392), model="glm-4.7")["needed_kv_gib"].agrees


def test_a_hybrid_of_0_11_keeps_one_state_a_request_in_blocks_of_960_tokens():
    # https://github.com/vllm-project/vllm/issues/28228
    log = (
        "Initializing a V1 LLM engine (v0.11.1) with config: model='moonshotai/Kimi-Linear-48B-A3B-Instruct', "
        "max_seq_len=120000, tensor_parallel_size=2\n"
        "(Worker_TP0 pid=1) Available KV cache memory: 2.30 GiB\n(Worker_TP1 pid=2) Available KV cache memory: 2.30 GiB\n"
        "Add 1 padding layers, may waste at most 5.00% KV cache memory\nGPU KV cache size: 75,840 tokens\n"
        "Maximum concurrency for 120,000 tokens per request: 2.48x\n"
    )
    found = rows(log)
    assert set(found) == {"kv_cache_tokens", "max_concurrency", "padding_waste_percent"}
    assert all(row.agrees for row in found.values())
    assert not rows(log.replace("0.11.1", "0.32.0"))["kv_cache_tokens"].agrees


GEMMA = (
    "Chunked prefill is enabled with max_num_batched_tokens={batched}.\n{ahead}"
    "Initializing a V1 LLM engine (v{version}) with config: model='google/gemma-4-31b-it', max_seq_len=262144\n{printed}"
)
AHEAD = "Asynchronous scheduling is enabled.\n"
POOL = "Available KV cache memory: 64.68 GiB\nGPU KV cache size: {} tokens\n"
NEEDED = "To serve at least one request with the model's max seq len (262144), {} GiB KV cache is needed, which is larger than the available KV cache memory (30.0 GiB)."


@pytest.mark.parametrize("ahead", [AHEAD, ""])
@pytest.mark.parametrize(
    ("version", "batched", "right", "wrong"),
    [
        ("0.24.0", 8192, POOL.format("626,949"), POOL.format("509,255")),
        ("0.25.1", 32768, NEEDED.format("45.79"), NEEDED.format("70.79")),
        ("0.26.0", 32768, NEEDED.format("70.79"), NEEDED.format("45.80")),
    ],
)
def test_the_passes_in_flight_are_those_of_the_version(version, batched, right, wrong, ahead):
    # two passes count from 0.26 on (https://github.com/vllm-project/vllm/pull/47728)
    log = GEMMA.format(version=version, batched=batched, ahead=ahead, printed="{}")
    assert api.reconcile(log.replace("{}", right), model="gemma-4-31b").agrees
    assert not api.reconcile(log.replace("{}", wrong), model="gemma-4-31b").agrees


def test_a_pass_alone_is_tried_where_nothing_says_that_passes_are_scheduled_ahead():
    # an XPU with MTP ran with one pass at 0.26
    log = GEMMA.format(version="0.26.0", batched=32768, ahead="{}", printed=NEEDED.format("45.79"))
    assert api.reconcile(log.replace("{}", ""), model="gemma-4-31b").agrees
    assert not api.reconcile(log.replace("{}", AHEAD), model="gemma-4-31b").agrees


def test_several_engines_are_reported_beside_each_other():
    log = vllm() + LLAMA_CPP.format("5760.00")
    report = api.reconcile(log)
    assert report.engine == "vllm, llama.cpp"
    assert report.model == "llama3.1-8b, qwen3-8b"
    assert "choose one with --engine" in report.notes[0]
    assert api.reconcile(log, engine="ollama").engine == "llama.cpp"


def test_a_start_up_without_a_model_does_not_hide_the_others():
    report = api.reconcile(vllm() + "KV Cache is allocated. #tokens: 9, K size: 1.00 GB, V size: 1.00 GB")
    assert report.model == "llama3.1-8b"
    assert any("the log names no model" in note for note in report.notes)


@pytest.mark.parametrize("log", ["", "nothing here", "\0\xff"])
def test_a_log_of_nothing_is_refused(log):
    with pytest.raises(InputError, match="no number"):
        api.reconcile(log)


def test_a_model_that_cannot_be_identified_asks_for_it():
    with pytest.raises(InputError, match="'z/unheard-of'") as caught:
        api.reconcile(vllm(head="Initializing a V1 LLM engine (v0.19.0) with config: model='z/unheard-of'"))
    assert "--model" in caught.value.hint


def test_an_unknown_engine_is_refused():
    with pytest.raises(InputError) as caught:
        check_engine("vlm")
    assert "vllm" in caught.value.hint


def test_the_fullest_pipeline_stage_decides():
    # 36 layers over 5 stages: 7, 7, 7, 8, 7
    log = (
        "Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-8B', max_seq_len=8192, "
        "pipeline_parallel_size=5\nAvailable KV cache memory: 10.00 GiB\nGPU KV cache size: 327,680 tokens\n"
    )
    row = rows(log)["kv_cache_tokens"]
    # 8 layers x 8 kv heads x 256 x 2 B x 16 tokens
    assert (row.agrees, row.reason) == (True, "blocks of 524,288 B x 16 tokens")


def test_more_stages_than_layers_are_refused():
    head = LLAMA + ", pipeline_parallel_size=33"
    with pytest.raises(InputError, match="33 pipeline stages"):
        api.reconcile(vllm(head=head))


NAMES = ("llama3.1-8b", "gpt-oss-20b", "qwen3-next-80b-a3b", "deepseek-v3.2", "gemma-3-27b")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_numbers_and_options_are_held_against_any_model(data):
    """A start-up with wild options either gives rows or an error that a user understands."""
    text = vllm() + LLAMA_CPP.format("5760.00") + "KV Cache is allocated. #tokens: 9, K size: 1.00 GB, V size: 1.00 GB"
    start_up = data.draw(st.sampled_from(read_log(text)))
    wild = st.one_of(st.integers(-5, 10**12), st.booleans(), st.floats(allow_nan=False), st.text(max_size=5))
    names = st.sampled_from(
        ["tensor_parallel_size", "pipeline_parallel_size", "max_model_len", "block_size", "max_num_batched_tokens",
         "kv_cache_dtype", "dtype", "speculative_tokens", "speculative_method", "n_ctx", "n_seq_max", "n_ubatch", "flash_attn",
         "tp_size", "page_size", "num_gpu_blocks_override", "enable_prefix_caching", "stored_dtype"]
    )  # fmt: skip
    options = data.draw(st.dictionaries(names, wild, max_size=4))
    start_up = replace(start_up, options={**start_up.options, **options})
    try:
        found, *_ = reconcile_start_up(start_up, api.load_model(data.draw(st.sampled_from(NAMES))))
    except KvcalcError:
        return
    assert all(row.predicted_least <= row.predicted <= row.predicted_most for row in found)
