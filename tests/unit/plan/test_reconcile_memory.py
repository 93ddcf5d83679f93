"""llama.cpp's table of memory, its ``--fit``, and what Ollama expects: numbers of public logs, computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvcalc import api
from kvcalc.engines.logs import read_log

if TYPE_CHECKING:
    from kvcalc.core.reports.reconcile import ReconcileReport, ReconcileRow

# https://github.com/ggml-org/llama.cpp, tools/fit-params/README.md: Qwen3-30B-A3B in 16 bits on an RTX 4090
FITTED = """\
build: 6895 (4341dc8bc) with cc (GCC) 15.2.1 20250813 for x86_64-pc-linux-gnu
llama_params_fit_impl: projected to use 61807 MiB of device memory vs. 24077 MiB of free device memory
llama_params_fit_impl: cannot fulfill margin of 1024 MiB, need to reduce device memory by 42444 MiB
llama_params_fit_impl: context size reduced from 40960 to 4096 -> need 3456 MiB less memory in total
llama_params_fit: successfully fit params to free device memory
llama_memory_breakdown_print: | memory breakdown [MiB] | total   free     self   model   context   compute    unaccounted |
llama_memory_breakdown_print: |   - CUDA0 (RTX 4090)   | 24077 =  945 + (19187 = 17904 +     384 +     898) +        3945 |
llama_memory_breakdown_print: |   - Host               |                 58271 = 58259 +       0 +      12                |
"""
# a note on llama-cli, b8211: Qwen3-1.7B on a laptop's RTX 4080, no context asked for
TRAINED = """\
build      : b8211-a0ed91a44
llama_memory_breakdown_print: | memory breakdown [MiB]          | total   free    self   model   context   compute    unaccounted |
llama_memory_breakdown_print: |   - CUDA0 (RTX 4080 Laptop GPU) | 12281 = 5181 + (5831 =  1050 +    4480 +     300) +        1269 |
llama_memory_breakdown_print: |   - Host                        |                  254 =   166 +       0 +      88                |
"""
# notes on Qwen3-Coder-Next (UD-IQ3_XXS) on an RTX 5090, of which the third row is cut off at its end
NEXT = """\
llama_context: n_ctx = {}
llama_memory_breakdown_print: |   - CUDA0 (RTX 5090)   | 32606 = {} |
llama_memory_breakdown_print: |   - Host               |                 {}                |
"""
_ROWS = {
    4096: ("1057 + (29365 = 28609 +     397 +     358) +        2183", "30956 = 30940 +       0 +      16"),
    100_096: (" 912 + (29598 = 26349 +    2647 +     601) +        2095", "31144 = 30940 +       0 +     203"),
}
# https://github.com/ollama/ollama/issues/8098: llama3.2:3b on an H100
EXPECTED = (
    'time=2024-12-15T01:34:58.907+09:00 level=INFO source=memory.go:356 msg="offload to cuda" layers.requested=-1 '
    'layers.model=29 layers.offload=29 layers.split="" memory.available="[78.6 GiB]" memory.gpu_overhead="0 B" '
    'memory.required.full="3.7 GiB" memory.required.partial="3.7 GiB" memory.required.kv="896.0 MiB" '
    'memory.required.allocations="[3.7 GiB]" memory.weights.total="2.4 GiB" memory.graph.full="424.0 MiB"\n'
    'time=2024-12-15T01:34:58.907+09:00 level=INFO source=server.go:376 msg="starting llama server" '
    'cmd="/usr/lib/ollama/runners/cuda_v12_avx/ollama_llama_server runner --model /root/.ollama/models/blobs/sha256-dd '
    '--ctx-size 8192 --batch-size 512 --n-gpu-layers 29 --threads 104 --parallel 4 --port 38609"\n'
)
# https://github.com/ollama/ollama/issues/9181: llama3.3:70b over four cards, 44 of 81 layers on them
SPLIT = (
    "time=2025-02-18T02:21:25.646Z level=INFO source=server.go:130 msg=offload library=cuda layers.requested=-1 "
    'layers.model=81 layers.offload=44 layers.split=11,11,11,11 memory.available="[22.0 GiB 22.0 GiB 22.0 GiB 22.0 GiB]" '
    'memory.gpu_overhead="0 B" memory.required.full="127.4 GiB" memory.required.kv="19.5 GiB"\n'
    'time=2025-02-18T02:21:25.647Z level=INFO source=server.go:380 msg="starting llama server" cmd="/o/ollama runner '
    '--model /o/blobs/sha256-fe --ctx-size 64000 --batch-size 512 --n-gpu-layers 44 --flash-attn --parallel 1"\n'
)
# https://github.com/ollama/ollama/pull/12000: gemma3:12b, whose windowed layers keep 1,024 tokens and a batch
WINDOWED = (
    "time=2025-08-22T17:36:22.027-04:00 level=INFO source=server.go:175 msg=offload library=cuda layers.requested=-1 "
    'layers.model=49 layers.offload=48 layers.split="" memory.available="[11.1 GiB]" memory.required.kv="992.0 MiB"\n'
    'msg="starting llama server" cmd="/usr/local/bin/ollama runner --ollama-engine --model /u/blobs/sha256-e8 '
    '--ctx-size 8192 --batch-size 512 --n-gpu-layers 48 --threads 28 --parallel 1 --port 36629"\n'
)


def _rows(report: ReconcileReport) -> dict[str, ReconcileRow]:
    return {row.quantity: row for row in report.rows}


def test_the_table_and_what_fit_saves_are_those_of_the_context() -> None:
    report = api.reconcile(FITTED, model="qwen3-30b-a3b")
    rows = _rows(report)
    assert report.agrees
    assert (rows["context_mib"].printed, rows["context_mib"].predicted) == (384, 384)
    assert (rows["fit_saved_mib"].printed, rows["fit_saved_mib"].predicted) == (3456, 3456)
    assert (rows["cuda0_self_mib"].printed, rows["cuda0_self_mib"].predicted) == (19187, 19186)
    assert rows["cuda0_unaccounted_mib"].predicted == 3945
    assert "other programs" in rows["cuda0_unaccounted_mib"].reason
    assert any("36.85 GiB more than the devices had free" in note for note in report.notes)
    assert {part.part: part.taken_bytes for part in report.memory} == {
        "weights": (17904 + 58259) * 2**20,
        "KV cache and states": 384 * 2**20,
        "compute buffers": 910 * 2**20,
        "not llama.cpp's": 3945 * 2**20,
    }


def test_without_a_context_the_table_is_that_of_the_trained_one() -> None:
    rows = _rows(api.reconcile(TRAINED, model="qwen3-1.7b"))
    assert (rows["context_mib"].printed, rows["context_mib"].predicted, rows["context_mib"].agrees) == (
        4480,
        4480,
        True,
    )


@pytest.mark.parametrize("context", _ROWS)
def test_the_tables_context_holds_the_states_of_the_servers_four_sequences(context: int) -> None:
    row = _rows(api.reconcile(NEXT.format(context, *_ROWS[context]), model="qwen3-next-80b-a3b"))["context_mib"]
    assert row.agrees
    assert "states 301." in row.reason
    assert row.printed == int(row.predicted)


def test_another_model_does_not_agree() -> None:
    rows = _rows(api.reconcile(FITTED, model="qwen3-8b"))
    assert not rows["context_mib"].agrees
    assert not rows["fit_saved_mib"].agrees
    assert rows["cuda0_self_mib"].agrees


def test_a_table_before_anything_was_allocated_is_passed_over() -> None:
    # https://github.com/ollama/ollama/issues/17482
    tried = (
        "common_memory_breakdown_print: |   - CUDA0 (RTX 3090)   | 24124 = 23860 + (15946 = 15364 +     411 +     170) +"
        "      -15681 |\ncommon_memory_breakdown_print: |   - Host               |                    804 =   682 +"
        "       0 +     122                |\n"
    )
    # https://github.com/ggml-org/llama.cpp/issues/19437: a size below 0, printed without its sign
    wrapped = (
        "llama_memory_breakdown_print: |   - CUDA0 (GTX 1080 Ti) | 11165 = 8702 + (10001 =  9814 +     134 +      51) + "
        "17592186036877 |\n"
    )
    assert read_log(tried + wrapped) == ()
    (start_up,) = read_log(tried + FITTED)
    assert [row.device for row in start_up.breakdown] == ["CUDA0", "Host"]
    assert start_up.breakdown[0].self_mib == 19187


def test_the_last_of_several_tables_counts() -> None:
    later = FITTED.replace("17904 +     384", "17804 +     484")
    (start_up,) = read_log(FITTED + later.splitlines()[-2] + "\n" + later.splitlines()[-1])
    assert [row.context_mib for row in start_up.breakdown] == [484, 0]


@pytest.mark.parametrize(
    ("log", "model", "printed"),
    [(EXPECTED, "llama3.2-3b", 0.875), (SPLIT, "llama3.3-70b", 19.5), (WINDOWED, "gemma-3-12b", 0.96875)],
)
def test_the_cache_that_ollama_expects_is_that_of_its_context(log: str, model: str, printed: float) -> None:
    row = _rows(api.reconcile(log, model=model, engine="ollama"))["ollama_kv_gib"]
    assert (row.printed, row.agrees) == (printed, True)


def test_layers_that_stay_with_the_processor_are_told() -> None:
    report = api.reconcile(SPLIT, model="llama3.3-70b")
    assert any("37 of 81 layers are computed by the processor" in note for note in report.notes)
    assert not any("computed by the processor" in note for note in api.reconcile(EXPECTED, model="llama3.2-3b").notes)


@pytest.mark.parametrize(
    ("total", "printed", "agrees"),
    [("7.6 GiB", 4096, True), ("23.5 GiB", 32768, True), ("23.0 GiB", 4096, True), ("47.5 GiB", 262144, True),
     ("47.5 GiB", 32768, False)],
)  # fmt: skip
def test_ollamas_default_context_is_computed_from_the_memory_it_prints(total: str, printed: int, agrees: bool) -> None:  # noqa: FBT001
    log = f'level=INFO source=routes.go:2058 msg="vram-based default context" total_vram="{total}" default_num_ctx={printed}\n'
    row = _rows(api.reconcile(log + EXPECTED, model="llama3.2-3b"))["ollama_default_num_ctx"]
    assert row.agrees is agrees


def test_the_parts_of_ollamas_own_engine_add_up() -> None:
    # numbers by its rule: 11.5 and 11.9 GiB of weights, as https://github.com/ollama/ollama/pull/11090 prints them
    parts = "".join(
        f'level=INFO source=device.go:240 msg="{name}" device={device} size="{size}"\n'
        for name, device, size in (
            ("model weights", "CUDA0", "11.5 GiB"), ("model weights", "CUDA1", "11.9 GiB"),
            ("model weights", "CPU", "680.0 MiB"), ("kv cache", "CUDA0", "320.0 MiB"), ("kv cache", "CUDA1", "320.0 MiB"),
        )
    )  # fmt: skip
    total = 'level=INFO source=device.go:272 msg="total memory" size="{}"\n'
    command = 'msg="starting llama server" cmd="ollama runner --ollama-engine --ctx-size 4096 --parallel 1"\n'
    rows = _rows(api.reconcile(command + parts + total.format("24.7 GiB"), model="mistral-small-3.1-24b"))
    assert rows["ollama_total_gib"].agrees
    assert (rows["kv_buffer_mib"].printed, rows["kv_buffer_mib"].predicted) == (640, 640)
    assert "on 2 devices" in rows["kv_buffer_mib"].reason
    wrong = _rows(api.reconcile(command + parts + total.format("26.0 GiB"), model="mistral-small-3.1-24b"))
    assert not wrong["ollama_total_gib"].agrees


def test_a_fit_that_could_not_act_says_why() -> None:
    # https://github.com/ggml-org/llama.cpp/issues/19437
    failed = (
        "llama_params_fit_impl: context size reduced from 262144 to 30000 -> need 6257 MiB less memory in total\n"
        "llama_params_fit: failed to fit params to free device memory: n_gpu_layers already set by user to 99, abort\n"
    )
    report = api.reconcile(failed, model="qwen3-next-80b-a3b")
    assert any("without -ngl it chooses" in note for note in report.notes)
    row = _rows(report)["fit_saved_mib"]
    # 12 layers of 2 heads of 256: 5,441 MiB, and masks on several devices
    assert (row.predicted_least < 5441 + 1 < row.printed, row.agrees) == (True, True)


_PARTLY = """\
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3060) (0000:01:00.0) - {free} MiB free
llama_model_loader: loaded meta data with 30 key-value pairs and 399 tensors from qwen3-8b.gguf
load_tensors: offloaded {layers}/37 layers to GPU
load_tensors:        CUDA0 model buffer size =  {weights} MiB
llama_context: n_ctx         = 40960
llama_context:      CUDA0 compute buffer size =   304.75 MiB
llama_kv_cache: size = 5760.00 MiB ( 40960 cells,  36 layers,  1/1 seqs), K (f16): 2880.00 MiB, V (f16): 2880.00 MiB
"""


def test_flags_are_named_with_which_all_layers_would_be_on_the_gpu() -> None:
    # by hand: 37 layers of 120 MiB; 8,000 MiB less the margin of 256 and 304.75 of buffers leave 2,999 of the cache
    log = _PARTLY.format(free=8000, layers=20, weights="2400.00")
    advice = api.reconcile(log, model="qwen3-8b").advice
    assert "-ngl 37 -c 20480: all 37 layers on the GPU" in advice
    # in q8_0 the 5,760 MiB are 3,060
    assert not any(each.startswith("-ngl 37 -ctk") for each in advice)
    assert any(each.startswith("-ngl 37 -c 39936 -ctk q8_0") for each in advice)
    assert "-ngl 37: all 37 layers on the GPU" in api.reconcile(log.replace("8000", "16000"), model="qwen3-8b").advice


def test_nothing_is_advised_where_all_layers_are_on_the_gpu() -> None:
    log = _PARTLY.format(free=16000, layers=37, weights="4440.00")
    assert not any("-ngl" in each for each in api.reconcile(log, model="qwen3-8b").advice)


# llama.cpp's lines on one cache (llama-kv-cache.cpp): its part on each device, then the whole
_HELD = """\
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 4096
{}
llama_kv_cache: size =  512.00 MiB (  4096 cells,  32 layers,  1/1 seqs)
"""


@pytest.mark.parametrize("parts", [{"CPU": 64, "CUDA0": 448}, {"CUDA0": 512}, {"CUDA0": 256, "CUDA1": 256}])
@pytest.mark.parametrize("is_cut", [False, True])
def test_parts_on_devices_are_the_cache_and_not_more(parts: dict[str, int], *, is_cut: bool) -> None:
    log = _HELD.format(
        "\n".join(f"llama_kv_cache: {name} KV buffer size = {mib}.00 MiB" for name, mib in parts.items())
    )
    report = api.reconcile(log.partition("llama_kv_cache: size")[0] if is_cut else log, model="llama3.1-8b")
    row = _rows(report)["kv_cache_mib"]
    assert (row.printed, row.predicted, row.agrees) == (512, 512, True)
    assert [part.taken_bytes for part in report.memory if part.part == "KV cache"] == [512 * 2**20]


def test_a_log_without_its_context_is_not_held_against_the_model_s_own() -> None:
    log = "llama_kv_cache: CPU KV buffer size = 64.00 MiB\nllama_kv_cache: CUDA0 KV buffer size = 448.00 MiB\n"
    report = api.reconcile(log, model="llama3.1-8b")
    assert report.rows == ()
    assert any("does not say the context" in note for note in report.notes)
    cells = "llama_kv_cache: size =  512.00 MiB (  4096 cells,  32 layers,  1/1 seqs)\n"
    assert _rows(api.reconcile(log + cells, model="llama3.1-8b"))["kv_cache_mib"].agrees
