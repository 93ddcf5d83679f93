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


@pytest.mark.parametrize("tokens", ["475,968", "476,080"])
def test_one_block_beyond_the_digits_differs(tokens):
    row = rows(vllm(tokens=tokens, requests="58.10" if tokens < "476" else "58.12"))["kv_cache_tokens"]
    assert not row.agrees
    assert row.difference in (-16, 16)


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
    assert "none of the terms tried" in rows(vllm(tokens="123,456", requests="1.00"))["kv_cache_tokens"].reason


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


def test_sglang_with_windows_is_refused_by_name():
    with pytest.raises(UnsupportedError, match="gemma-3-27b"):
        api.reconcile("KV Cache is allocated. #tokens: 9, K size: 1.00 GB, V size: 1.00 GB", model="gemma-3-27b")


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


def test_the_advice_is_computed():
    advice = " ".join(api.reconcile(vllm()).advice)
    assert "a request of 8,192 tokens needs 1.00 GiB" in advice
    assert "fp8 would hold 2.00 times as many tokens" in advice


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


def test_several_engines_are_reported_beside_each_other():
    log = vllm() + LLAMA_CPP.format("5760.00")
    report = api.reconcile(log)
    assert report.engine == "vllm, llama.cpp"
    assert report.model == "llama3.1-8b, qwen3-8b"
    assert "--engine chooses one" in report.notes[0]
    assert api.reconcile(log, engine="ollama").engine == "llama.cpp"


def test_a_start_up_without_a_model_does_not_hide_the_others():
    report = api.reconcile(vllm() + "KV Cache is allocated. #tokens: 9, K size: 1.00 GB, V size: 1.00 GB")
    assert report.model == "llama3.1-8b"
    assert any("names no model" in note for note in report.notes)


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
        found, _ = reconcile_start_up(start_up, api.load_model(data.draw(st.sampled_from(NAMES))))
    except KvcalcError:
        return
    assert all(row.predicted_least <= row.predicted <= row.predicted_most for row in found)
