"""Logs: the wording of each engine and version, start-ups told apart, and never a crash on anything."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.errors import KvcalcError
from kvcalc.engines.logs import Printed, decoded, model_names, read_log
from kvcalc.engines.logs.text import plain_text
from kvcalc.engines.logs.values import size_gib
from kvcalc.plan.reconcile import reconcile_report

# Lines as public logs have them; the engine's version beside each.
VLLM_V1 = """\
(APIServer pid=1) INFO 04-22 01:47:15 [entrypoints/utils.py:233] non-default args: {'model_tag': 'a/b', 'model': 'a/b', 'max_model_len': 16384, 'gpu_memory_utilization': 0.95, 'enable_prefix_caching': False, 'speculative_config': {'method': 'mtp', 'num_speculative_tokens': 3}}
(APIServer pid=1) INFO 04-22 01:47:15 [config/scheduler.py:238] Chunked prefill is enabled with max_num_batched_tokens=8192.
(APIServer pid=1) INFO 04-22 01:47:15 [config/vllm.py:790] Asynchronous scheduling is enabled.
(EngineCore pid=243) INFO 04-22 01:47:25 [v1/engine/core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: model='a/b', speculative_config=None, dtype=torch.bfloat16, max_seq_len=16384, tensor_parallel_size=2, kv_cache_dtype=auto, enable_prefix_caching=False
\x1b[1;36m(Worker_TP0 pid=9)\x1b[0;0m INFO 12-11 00:06:53 [gpu_model_runner.py:4820] Model loading took 14.99 GiB memory and 9.803794 seconds
(Worker_TP0 pid=9) DEBUG 04-22 01:47:55 [gpu_worker.py:435] Memory profiling takes 18.17 seconds. Total non KV cache memory: 17.12GiB; torch peak memory increase: 1.89GiB; non-torch forward increase memory: 0.25GiB; weights memory: 14.99GiB.
(Worker_TP0 pid=9) INFO 12-11 00:06:53 [gpu_worker.py:359] Available KV cache memory: 52.36 GiB
(Worker_TP1 pid=10) INFO 12-11 00:06:53 [gpu_worker.py:359] Available KV cache memory: 52.3 GiB
(EngineCore_DP0 pid=2) INFO 12-11 00:06:53 [kv_cache_utils.py:1286] GPU KV cache size: 686,320 tokens
(EngineCore_DP0 pid=2) INFO 12-11 00:06:54 [kv_cache_utils.py:1291] Maximum concurrency for 100,000 tokens per request: 6.86x
(EngineCore_DP0 pid=178) INFO 04/20 04:23:22 [gpu_model_runner.py:3480] Graph capturing finished in 13 secs, took 0.58 GiB
"""
VLLM_V0 = """\
INFO 12-22 10:55:32 llm_engine.py:249] Initializing an LLM engine (v0.6.5) with config: model='Qwen/Qwen2.5-7B', dtype=torch.bfloat16, max_seq_len=2048
INFO 12-22 10:55:34 model_runner.py:1097] Loading model weights took 8.5107 GB
INFO 12-22 10:55:34 worker.py:241] the current vLLM instance can use total_gpu_memory (79.25GiB) x gpu_memory_utilization (0.15) = 11.89GiB
INFO 12-22 10:55:34 worker.py:241] model weights take 8.51GiB; non_torch_memory takes 0.26GiB; PyTorch activation peak memory takes 0.94GiB; the rest of the memory reserved for KV Cache is 2.18GiB.
INFO 12-22 10:55:35 gpu_executor.py:76] # GPU blocks: 715, # CPU blocks: 1310
INFO 12-22 10:55:35 gpu_executor.py:80] Maximum concurrency for 2048 tokens per request: 5.59x
"""
REFUSAL = (
    "ERROR 06-26 09:27:15 [core.py:519] ValueError: To serve at least one request with the models's max seq len "
    "(196608), 23.25 GiB KV cache is needed, which is larger than the available KV cache memory (22.5 GiB). Based on "
    "the available memory, the estimated maximum model length is 190272. Try increasing `gpu_memory_utilization`.\n"
)
SGLANG = """\
[2025-03-14 09:20:00] server_args=ServerArgs(model_path='Qwen/Qwen3-14B', dtype='auto', kv_cache_dtype='auto', tp_size=4, mem_fraction_static=0.8, page_size=1)
[2025-03-14 09:20:11 TP0] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=16.00 GB, mem usage=7.08 GB.
[2025-03-14 09:20:12 TP0] KV Cache is allocated. #tokens: 298447, K size: 5.69 GB, V size: 5.69 GB
[2025-03-14 09:20:12 TP0] max_total_num_tokens=298447, chunked_prefill_size=2048, max_running_requests=3730, context_len=40960, available_gpu_mem=2.82 GB
"""
LLAMA_CPP = """\
build: 6100 (abc1234) with cc
llama_model_loader: loaded meta data with 25 key-value pairs and 291 tensors from /models/a.gguf
print_info: arch             = qwen3
print_info: general.name     = Qwen3 8B
print_info: n_layer          = 36
load_tensors:        CUDA0 model buffer size =  4455.34 MiB
load_tensors:   CPU_Mapped model buffer size =   333.84 MiB
llama_context: n_seq_max     = 4
llama_context: n_ctx         = 32768
llama_context: n_ubatch      = 512
llama_context: flash_attn    = 1
llama_context: kv_unified    = true
llama_kv_cache_iswa: creating non-SWA KV cache, size = 32768 cells
llama_kv_cache: size =  416.00 MiB ( 32768 cells,  13 layers,  4/1 seqs), K (f16):  208.00 MiB, V (f16):  208.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size =  2560 cells
llama_kv_cache: size =   97.50 MiB (  2560 cells,  39 layers,  4/1 seqs), K (q8_0):   48.75 MiB, V (q8_0):   48.75 MiB
llama_memory_recurrent: size =   112.57 MiB (     1 cells,  48 layers,  1 seqs), R (f32):   4.57 MiB, S (f32):  108.00 MiB
llama_context:      CUDA0 compute buffer size =   300.75 MiB
"""
ALL = VLLM_V1 + REFUSAL + SGLANG + LLAMA_CPP + VLLM_V0


def only(text):
    (start_up,) = read_log(text)
    return start_up


def test_the_line_that_begins_loading_names_the_model_where_the_configuration_is_cut_off():
    # wording of a public log of vLLM 0.19 (gpu_model_runner.py:5037)
    loading = (
        "(EngineCore pid=111) INFO 06-07 08:55:57 [gpu_model_runner.py:5037] Starting to load model a/b-4.1B-it..."
    )
    assert only(f"{loading}\nINFO Available KV cache memory: 8.34 GiB\n").model == "a/b-4.1B-it"


def test_vllm_v1():
    found = only(VLLM_V1)
    assert (found.engine, found.version, found.model) == ("vllm", "0.19.0", "a/b")
    assert found.options == {
        "max_model_len": 100000,
        "gpu_memory_utilization": 0.95,
        "enable_prefix_caching": False,
        "speculative_method": "mtp",
        "speculative_tokens": 3,
        "max_num_batched_tokens": 8192,
        "dtype": "torch.bfloat16",
        "tensor_parallel_size": 2,
        "kv_cache_dtype": "auto",
    }
    assert found.events == {"V1", "asynchronous", "asked for a length"}
    assert [number.value for number in found.printed["available_kv_gib"]] == [52.36, 52.3]
    assert found.smallest("available_kv_gib").half_step == 0.005
    assert found.first("kv_cache_tokens").value == 686320
    assert found.first("max_concurrency").value == 6.86
    assert found.first("loaded_gib").value == 14.99
    assert found.first("non_kv_gib").value == 17.12
    assert found.first("graphs_gib").value == 0.58


def test_vllm_v0():
    found = only(VLLM_V0)
    assert (found.version, found.model) == ("0.6.5", "Qwen/Qwen2.5-7B")
    assert "V0" in found.events
    assert found.first("gpu_blocks").value == 715
    assert found.first("available_kv_gib").value == 2.18
    assert found.first("total_gpu_gib").value == 79.25
    assert found.first("loaded_gib").half_step == 0.00005


@pytest.mark.parametrize("text", [REFUSAL, REFUSAL.replace(" 23.25", "\n(23.25").replace("which", "\nwhich")])
def test_vllm_refuses(text):
    found = only(text)
    assert found.first("needed_kv_gib").value == 23.25
    assert found.first("available_kv_gib").value == 22.5
    assert found.first("estimated_max_model_len").value == 190272
    assert found.options["max_model_len"] == 196608


def test_sglang():
    found = only(SGLANG)
    assert (found.engine, found.model) == ("sglang", "Qwen/Qwen3-14B")
    assert found.count("tp_size") == 4
    assert found.count("context_length") == 40960
    assert found.first("pool_tokens").value == found.first("max_total_num_tokens").value == 298447
    assert found.first("k_gib").value == found.first("v_gib").value == 5.69
    assert found.first("loaded_gib").value == 7.08


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        ("KV Cache is allocated. #tokens: 383872, KV size: 19.36 GB", {"kv_gib": 19.36}),
        (
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 9, K size: 1.00 GB, V size: 2.00 GB",
            {"k_gib": 1, "v_gib": 2},
        ),
        ("KV Cache is allocated. #tokens: 171008, K 5.22 GB, V 5.22 GB", {"k_gib": 5.22, "v_gib": 5.22}),
    ],
)
def test_wordings_of_sglangs_pool(line, sizes):
    found = only(line)
    assert {name: found.first(name).value for name in sizes} == sizes


def test_llama_cpp():
    found = only(LLAMA_CPP)
    assert (found.engine, found.model, found.options["architecture"]) == ("llama.cpp", "Qwen3 8B", "qwen3")
    assert (found.count("n_ctx"), found.count("n_seq_max"), found.flag("kv_unified")) == (32768, 4, True)
    full, window = found.caches
    assert (full.windowed, full.cells, full.layers, full.total.value, full.key_type) == (False, 32768, 13, 416, "f16")
    assert (window.windowed, window.cells, window.values.value, window.value_type) == (True, 2560, 48.75, "q8_0")
    assert found.states[0].total.value == 112.57
    assert [number.value for number in found.printed["model_buffer_mib"]] == [4455.34, 333.84]


@pytest.mark.parametrize(
    ("line", "total", "values"),
    [
        ("llama_kv_cache_unified: size = 1024.00 MiB (  8192 cells,  32 layers), K (f16):  512.00 MiB, V (f16):  512.00 MiB", 1024, 512),
        ("llama_kv_cache_unified: size = 2016.00 MiB (  4096 cells, 126 layers,  1/ 1 seqs), K (f16): 1008.00 MiB, V (f16): 1008.00 MiB", 2016, 1008),
        ("llama_kv_cache: size = 1792.00 MiB (262144 cells,   8 layers,  1/1 seqs), K (turbo3):  896.00 MiB, V (turbo3):  896.00 MiB", 1792, 896),
        ("llama_new_context_with_model: KV self size  =    9.00 MiB, K (f16):    4.50 MiB, V (f16):    4.50 MiB", 9, 4.5),
        ("llama_context_kv_self: KV self size  =    9.00 MiB, K (f16):    4.50 MiB, V (f16):    4.50 MiB", 9, 4.5),
        ("KV self size  = 1166.62 MiB, c^KV (q8_0): 1166.62 MiB, kv^T: not used", 1166.62, None),
    ],
)  # fmt: skip
def test_wordings_of_llama_cpps_cache(line, total, values):
    (cache,) = only(f"0.00.038.833 I {line}").caches
    assert cache.total.value == total
    assert (cache.values and cache.values.value) == values


CACHE = "llama_kv_cache: size =  416.00 MiB ( 32768 cells,  13 layers,  4/4 seqs), K (f16):  208.00 MiB, V (f16):  208.00 MiB"
STATES = "llama_memory_recurrent: size =   598.50 MiB (     4 cells,  65 layers,  4 seqs  3 rs_seq), R (f32):   22.50 MiB, S (f32):  576.00 MiB"


def test_a_cache_s_own_line_names_its_sequences():
    assert only(CACHE).options == {"n_seq_max": 4, "kv_unified": False}
    assert only(CACHE.replace("4/4", "4/1")).options == {"n_seq_max": 4, "kv_unified": True}
    assert only(f"llama_context: n_seq_max     = 2\n{CACHE}").count("n_seq_max") == 2


def test_a_line_of_states_names_its_sequences_and_their_copies():
    found = only(STATES)
    assert found.options == {"n_seq_max": 4, "n_rs_seq": 3}
    assert (found.states[0].cells, found.states[0].layers, found.states[0].total.value) == (4, 65, 598.5)


@pytest.mark.parametrize(
    ("length", "cells", "layers", "key_type", "values"),
    [
        (36, None, None, None, None),
        (50, 32768, None, None, None),
        (63, 32768, 13, None, None),
        (80, 32768, 13, None, None),
        (96, 32768, 13, "f16", None),
        (119, 32768, 13, "f16", 208),
    ],
)
def test_a_line_that_was_cut_short_tells_what_stands_before_the_cut(length, cells, layers, key_type, values):
    (cache,) = only(CACHE[:length]).caches
    assert cache.total.value == 416
    assert (cache.cells, cache.layers, cache.key_type) == (cells, layers, key_type)
    assert (cache.values and cache.values.value) == values
    assert only(STATES[: length + 9]).states[0].total.value == 598.5


@pytest.mark.parametrize("length", range(len(CACHE)))
def test_no_digits_are_read_of_a_number_that_was_cut(length):
    for found in read_log(CACHE[:length]):
        (cache,) = found.caches
        assert {cache.total.value, cache.keys and cache.keys.value, cache.values and cache.values.value} <= {
            416,
            208,
            None,
        }
        assert (cache.cells, cache.layers) in {(None, None), (32768, None), (32768, 13)}
        assert found.options.get("n_seq_max", 4) == 4


def printed_in(text):
    """Everything that is read from a log, without the lines' numbers."""
    return [
        (
            one.engine,
            one.version,
            one.model,
            dict(one.options),
            {name: [number.value for number in numbers] for name, numbers in one.printed.items()},
            [(cache.total.value, cache.cells, cache.windowed) for cache in one.caches],
            [(state.total.value, state.cells) for state in one.states],
        )
        for one in read_log(text)
    ]


PREFIXES = {
    "docker --timestamps": "2026-04-22T01:47:15.123456789Z ",
    "docker compose": "vllm-1  | ",
    "docker compose --timestamps": "vllm-1  | 2026-04-22T01:47:15.123456789Z ",
    "kubectl --prefix": "[pod/vllm-7d9f8c6b5-abcde/server] ",
    "kubectl --prefix --timestamps": "[pod/vllm-7d9f8c6b5-abcde/server] 2026-04-22T01:47:15.123456789Z ",
    "journald": "Nov 30 10:00:00 gpu-host-01.example.com vllm[12345]: ",
    "journald -o short-iso": "2026-11-30T10:00:00+0000 gpu-host-01.example.com llama-server[12345]: ",
    "a quoted reply": "> ",
}


@pytest.mark.parametrize("engine", [VLLM_V1 + REFUSAL, SGLANG, LLAMA_CPP, VLLM_V0], ids=["v1", "sglang", "cpp", "v0"])
@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_what_stands_in_front_of_a_line_changes_nothing(engine, prefix):
    assert printed_in("\n".join(prefix + line for line in engine.splitlines())) == printed_in(engine)


@pytest.mark.parametrize("engine", [VLLM_V1 + REFUSAL, SGLANG, LLAMA_CPP, VLLM_V0], ids=["v1", "sglang", "cpp", "v0"])
def test_docker_s_own_file_is_read(engine):
    lines = [json.dumps({"log": line + "\n", "stream": "stderr"}) for line in engine.splitlines()]
    assert printed_in("\n".join(lines)) == printed_in(engine)


@pytest.mark.parametrize(
    "colour", ["\x1b[1;36m{}\x1b[0;0m", "[1;36m{}[0;0m", "^[[1;36m{}^[[0;0m", "#033[1;36m{}#033[0m"]
)
def test_colours_are_taken_off_however_they_are_spelled(colour):
    painted = VLLM_V1.replace("GPU KV", colour.format("GPU KV")).replace(
        "(Worker_TP0 pid=9)", colour.format("(Worker_TP0)")
    )
    assert printed_in(painted) == printed_in(VLLM_V1)


@pytest.mark.parametrize("width", [80, 100, 120, 132])
@pytest.mark.parametrize("engine", [VLLM_V1 + REFUSAL, SGLANG, LLAMA_CPP, VLLM_V0], ids=["v1", "sglang", "cpp", "v0"])
def test_lines_that_a_terminal_wrapped_are_joined(engine, width):
    # a terminal shows colours, and does not count them
    lines = plain_text(engine).splitlines()
    wrapped = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    found = printed_in("\n".join(wrapped))
    assert [one[4:] for one in found] == [one[4:] for one in printed_in(engine)]
    assert [one[0] for one in found] == [one[0] for one in printed_in(engine)]


def test_joined_lines_keep_the_numbers_of_the_lines_after_them():
    wrapped = "\n".join(["x" * 80, "y" * 80, "z" * 80, "end", "INFO Available KV cache memory: 3.5 GiB"])
    assert only(wrapped).line == 5


def test_lines_of_ranks_that_are_equally_long_are_not_joined():
    lines = [
        f"(Worker_TP{rank} pid=1) INFO [gpu_worker.py:359] Available KV cache memory: 52.3{rank} GiB"
        for rank in range(4)
    ]
    assert len(only("\n".join(lines)).printed["available_kv_gib"]) == 4


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_files_are_decoded(encoding):
    text = decoded(VLLM_V1.replace("\n", "\r\n").encode(encoding))
    assert printed_in(text) == printed_in(VLLM_V1)
    assert [one.line for one in read_log(text)] == [one.line for one in read_log(VLLM_V1)]


def test_several_engines_are_told_apart_even_where_their_lines_alternate():
    mixed = [line for pair in zip(VLLM_V1.splitlines(), SGLANG.splitlines() + [""] * 20, strict=False) for line in pair]
    assert {found.engine for found in read_log("\n".join(mixed))} == {"vllm", "sglang"}
    assert [found.engine for found in read_log(ALL)] == ["vllm", "vllm", "sglang", "llama.cpp", "vllm"]


def test_a_second_start_keeps_the_options_and_not_the_numbers():
    first, second = read_log(VLLM_V1 + REFUSAL)
    assert first.first("needed_kv_gib") is None
    assert second.first("kv_cache_tokens") is None
    assert (second.model, second.options["max_model_len"]) == ("a/b", 196608)


def test_a_configuration_pasted_below_the_numbers_is_theirs():
    lines = VLLM_V1.splitlines()
    found = only("\n".join([*lines[4:], *lines[:4]]))
    assert (found.model, found.version, found.count("tensor_parallel_size")) == ("a/b", "0.19.0", 2)
    assert found.first("kv_cache_tokens").value == 686320


def test_a_rank_may_print_its_memory_late():
    lines = VLLM_V1.splitlines()
    found = only("\n".join([*lines[:7], lines[8], lines[7], *lines[9:]]))
    assert len(found.printed["available_kv_gib"]) == 2


def test_the_same_start_again_is_one_of_its_own():
    first, second = read_log(VLLM_V1 * 2)
    assert second.options == first.options
    assert second.line > first.line


def test_replicas_are_start_ups_of_their_own():
    lines = [
        f"(EngineCore_DP{rank} pid=1) INFO [gpu_worker.py:1] Available KV cache memory: {10 + rank}.5 GiB\n"
        f"(EngineCore_DP{rank} pid=1) INFO [kv_cache_utils.py:1] GPU KV cache size: {rank + 1},000 tokens"
        for rank in range(4)
    ]
    found = read_log("\n".join(["Initializing a V1 LLM engine (v0.19.0) with config: model='a/b'", *lines]))
    assert [one.first("kv_cache_tokens").value for one in found] == [1000, 2000, 3000, 4000]
    assert [one.replica for one in found] == ["DP0", "DP1", "DP2", "DP3"]
    assert {one.model for one in found} == {"a/b"}


def test_a_cpu_prints_its_memory_and_its_tokens_in_words_of_its_own():
    found = only(
        "Initializing a V1 LLM engine (v0.32.0) with config: model='a/b'\n"
        "(MainProcess pid=7) INFO [cpu_worker.py:260] Explicitly set (0.5/23.54) GiB for KV cache on node 0.\n"
        "(MainProcess pid=7) INFO [kv_cache_utils.py:2327] CPU KV cache size: 21,840 tokens, "
        "Maximum concurrency for 600 tokens per request: 36.40x\n"
    )
    assert found.first("available_kv_gib") == Printed(value=0.5, half_step=0.005, line=2)
    assert found.first("kv_cache_tokens").value == 21840
    assert found.first("max_concurrency").value == 36.4
    assert "cpu" in found.events


ENGINE = "Initializing a V1 LLM engine (v0.19.0) with config: model='{}'\nGPU KV cache size: {} tokens\n"
BATCHED = "INFO Chunked prefill is enabled with max_num_batched_tokens={}.\n"


def test_lines_before_the_engines_first_are_those_of_the_start_that_follows():
    first, second = read_log(
        BATCHED.format(2048) + ENGINE.format("a", 16) + BATCHED.format(4096) + ENGINE.format("b", 32)
    )
    assert [one.count("max_num_batched_tokens") for one in (first, second)] == [2048, 4096]
    assert only(ENGINE.format("a", 16) + BATCHED.format(2048)).count("max_num_batched_tokens") == 2048


def test_the_build_before_the_model_is_its_version():
    assert only(LLAMA_CPP).version == "6100 (abc1234)"
    assert [one.version for one in read_log(LLAMA_CPP + LLAMA_CPP.replace("6100", "6500"))] == [
        "6100 (abc1234)", "6500 (abc1234)"
    ]  # fmt: skip


@pytest.mark.parametrize("prefix", ["{}-0  | ", "[pod/{}-0/vllm] "])
def test_services_are_told_apart_by_their_prefix(prefix):
    servers = [(ENGINE.format("a", 16), "prefill"), (ENGINE.format("b", 32), "decode")]
    lines = [[prefix.format(name) + line for line in text.splitlines()] for text, name in servers]
    found = read_log("\n".join(line for pair in zip(*lines, strict=True) for line in pair))
    assert [(one.model, one.first("kv_cache_tokens").value) for one in found] == [("a", 16), ("b", 32)]
    assert ["prefill-0" in one.source for one in found] == [True, False]


def test_the_level_of_a_message_is_no_service():
    text = ENGINE.format("a", 16).splitlines()
    assert only(f"INFO | {text[0]}\nWARNING | {text[1]}").source == ""


def test_start_ups_beyond_the_most_that_are_kept_are_told():
    found = read_log("".join(ENGINE.format("a", size) for size in range(600)) * 2)
    assert len(found) == 1000 or "earlier" in found[0].events


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama3.1-70b"),
        ("Meta Llama 3.1 8B Instruct", "llama3.1-8b"),
        ("qwen2.5:3b", "qwen2.5-3b"),
        ("/cache/models--Qwen--Qwen3-14B/snapshots/40c069824f", "qwen3-14b"),
        (r"C:\models\Qwen3-8B-Q4_K_M.gguf", "qwen3-8b"),
        ("gemma-4-26b-a4b (AWQ)", "gemma-4-26b-a4b"),
    ],
)
def test_names_to_look_a_model_up_by(printed, name):
    assert name in model_names(printed)


def reconcile_without_a_model(text):
    def unknown(start_up):
        raise KvcalcError(f"no model for {start_up.engine}")

    try:
        reconcile_report(read_log(text), unknown)
    except KvcalcError:
        return


@pytest.mark.slow
@given(st.text(max_size=2000))
def test_any_text_is_read(text):
    reconcile_without_a_model(text)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.data())
def test_a_mutated_log_is_read(data):
    text = ALL
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 60)))
        text = (
            text[:start]
            + data.draw(st.sampled_from(["", "9" * 30, "\x1b[", "(", "\n", "None", "-", "0", ".", "é"]))
            + text[end:]
        )
    reconcile_without_a_model(text)


TRAFFIC = (
    "INFO 08-01 12:00:00 [loggers.py:127] Engine 000: Avg prompt throughput: 474.7 tokens/s, GPU KV cache usage: 0.0%\n"
)
NOISE = [TRAFFIC, "x", "a\n", ALL, "\x1b[3", "max_total_num_tokens=", "K (f16): ", "\r", "size = 1 MiB ( ", "'model': "]
MEBIBYTE = 2**20


@pytest.mark.slow
@pytest.mark.parametrize("unit", NOISE, ids=lambda unit: repr(unit[:12]))
def test_ten_megabytes_take_less_than_two_seconds(unit, usual_s):
    text = unit * (10 * MEBIBYTE // len(unit))
    start = time.process_time()
    reconcile_without_a_model(text)
    assert time.process_time() - start < usual_s(2)


def test_numbers_below_ten_megabytes_of_noise_are_found():
    text = TRAFFIC * (5 * MEBIBYTE // len(TRAFFIC))
    assert [found.engine for found in read_log(text + VLLM_V1 + text)] == ["vllm"]


def test_half_of_a_last_digit_is_in_the_unit_of_its_number() -> None:
    assert size_gib("512.00", "MiB", 1) == Printed(value=0.5, half_step=0.005 / 1024, line=1)
    assert size_gib("22.5", "GiB", 1).half_step == 0.05
