"""Start-up refusals: the wording of each engine and version, what it was doing, and the sizes in the line."""

import pytest

from kvcalc.engines.logs import read_log
from kvcalc.engines.logs.names import card_names

ENGINE = "(EngineCore_DP0 pid=7) INFO 11-06 10:50:01 [core.py:93] Initializing a V1 LLM engine (v0.11.2) with config: model='a/b', max_seq_len=8192"
LOADED = "(EngineCore_DP0 pid=7) INFO 11-06 10:50:41 [gpu_model_runner.py:2653] Model loading took 14.9889 GiB and 9.1 seconds"
SIZED = "(EngineCore_DP0 pid=7) INFO 11-06 10:51:01 [gpu_worker.py:349] Available KV cache memory: 5.25 GiB"
READY = "(APIServer pid=1) INFO:     Application startup complete."
# PyTorch 2.3 to 2.11, 2.1 and 2.2, up to 2.0
TORCH = (
    "(EngineCore_DP0 pid=7) ERROR 11-06 10:51:09 [core.py:842] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
    "2.32 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.20 GiB is free. Process 3121 has 1.02 GiB memory in use. "
    "Including non-PyTorch memory, this process has 21.42 GiB memory in use. Of the allocated memory 20.98 GiB is allocated "
    "by PyTorch, with 12.00 MiB allocated in private pools (e.g., CUDA Graphs), and 51.20 MiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF"
)
TORCH_2_1 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 172.00 MiB. GPU 3 has a total capacty of 23.69 GiB "
    "of which 22.06 MiB is free. Including non-PyTorch memory, this process has 23.66 GiB memory in use. Of the allocated "
    "memory 23.28 GiB is allocated by PyTorch, and 3.11 MiB is reserved by PyTorch but unallocated."
)
TORCH_2_0 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB (GPU 1; 23.65 GiB total capacity; 22.51 GiB "
    "already allocated; 50.44 MiB free; 22.90 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory"
)
NPU = TORCH_2_0.replace("torch.cuda.OutOfMemoryError: CUDA", "RuntimeError: NPU").replace("GPU 1", "NPU 6")
HIP = TORCH_2_1.replace("CUDA out", "HIP out").replace("capacty", "capacity")


def refused(*lines, engine=None):
    (found,) = read_log("\n".join(lines), engine=engine)
    assert found.refusal is not None
    return found.refusal


def sizes(refusal):
    return {name: round(size.value, 3) for name, size in refusal.sizes.items()}


@pytest.mark.parametrize(
    ("line", "device", "expected"),
    [
        (TORCH, "0", {"tried_gib": 2.32, "total_gib": 23.64, "free_gib": 1.2, "process_gib": 21.42, "torch_gib": 20.98, "unused_gib": 0.05}),
        (TORCH_2_1, "3", {"tried_gib": 0.168, "total_gib": 23.69, "free_gib": 0.022, "process_gib": 23.66, "torch_gib": 23.28, "unused_gib": 0.003}),
        (HIP, "3", {"tried_gib": 0.168, "total_gib": 23.69, "free_gib": 0.022, "process_gib": 23.66, "torch_gib": 23.28, "unused_gib": 0.003}),
        (TORCH_2_0, "1", {"tried_gib": 0.219, "total_gib": 23.65, "free_gib": 0.049, "torch_gib": 22.51}),
        (NPU, "6", {"tried_gib": 0.219, "total_gib": 23.65, "free_gib": 0.049, "torch_gib": 22.51}),
    ],
    ids=["2.3 to 2.11", "2.1", "ROCm", "2.0", "Ascend"],
)  # fmt: skip
def test_pytorchs_line(line, device, expected):
    found = refused(ENGINE, line)
    assert (found.kind, found.device, found.line) == ("out_of_memory", device, 2)
    assert sizes(found) == expected


@pytest.mark.parametrize(
    ("before", "stage"),
    [
        ([], "loading the weights"),
        ([LOADED], "profiling the largest pass"),
        ([LOADED, SIZED], "allocating the cache or capturing CUDA graphs"),
        ([LOADED, SIZED, READY], "serving requests"),
    ],
)
def test_what_vllm_was_doing(before, stage):
    assert refused(ENGINE, *before, TORCH).stage == stage


def test_a_traceback_tells_whose_line_of_pytorch_it_is():
    path = 'File "/usr/local/lib/python3.12/dist-packages/{}/model_loader.py", line 41, in load_model'
    for engine, folder in (("vllm", "vllm"), ("sglang", "sglang/srt")):
        (found,) = read_log(f"{path.format(folder)}\n{TORCH}")
        assert (found.engine, found.refusal.kind) == (engine, "out_of_memory")
    assert read_log(TORCH) == ()
    assert refused(TORCH, engine="sglang").kind == "out_of_memory"


def test_the_first_of_many_ranks_counts():
    other = TORCH.replace("GPU 0", "GPU 1").replace("2.32", "1.16")
    assert refused(ENGINE, TORCH, other).device == "0"


@pytest.mark.parametrize("name", ["device", "device cuda:1"])
def test_memory_in_use(name):
    line = (
        f"ValueError: Free memory on {name} (20.11/23.64 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 21.28 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    (found,) = read_log(f"{ENGINE}\n{line}")
    assert (found.refusal.kind, found.refusal.device) == ("memory_in_use", "1" if "cuda" in name else "")
    assert sizes(found.refusal) == {"free_gib": 20.11, "total_gib": 23.64, "requested_gib": 21.28}
    assert found.options["gpu_memory_utilization"] == 0.9
    assert refused(ENGINE, line.replace(") on startup", ") on\nstartup")).kind == "memory_in_use"


def test_no_memory_for_the_cache():
    line = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
    (found,) = read_log(f"{ENGINE}\n{LOADED}\nINFO [gpu_worker.py:1] Available KV cache memory: -0.3 GiB\n{line}")
    assert found.refusal.kind == "no_cache_memory"
    assert found.first("available_kv_gib").value == -0.3


@pytest.mark.parametrize("wording", ["models's max seq len (196608), (23.25", "model's max seq len (196608), 23.25"])
def test_a_request_too_long(wording):
    line = (
        f"ValueError: To serve at least one request with the {wording} GiB KV cache is needed, which is larger than the "
        "available KV cache memory (22.5 GiB). Based on the available memory, the estimated maximum model length is 190272."
    )
    found = refused(ENGINE, line)
    assert (found.kind, sizes(found)) == ("request_too_long", {"needed_gib": 23.25, "available_gib": 22.5})


def test_a_request_too_long_for_the_first_engine():
    line = "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV cache (3664)."
    assert refused("INFO llm_engine.py:1] # GPU blocks: 229, # CPU blocks: 512", line).kind == "request_too_long"


def test_the_warm_up_of_the_sampler():
    line = (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering "
        "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )
    found = refused(ENGINE, LOADED, SIZED, TORCH, line)
    assert (found.stage, found.sizes["sequences"].value) == ("warming up the sampler", 1024)
    assert found.sizes["tried_gib"].value == 2.32
    assert refused(ENGINE, line).stage == "warming up the sampler"


def test_other_refusals_of_vllm():
    states = (
        "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (161). Each decode sequence requires one Mamba "
        "cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most 161"
    )
    found = refused(ENGINE, states)
    assert (found.kind, sizes(found)) == ("too_many_sequences", {"sequences": 1024, "blocks": 161})
    beyond = (
        "Value error, User-specified max_model_len (131072) is greater than the derived max_model_len "
        "(max_position_embeddings=32768 or model_max_length=None in model's config.json)."
    )
    # 0.19 prints the limit of a checkpoint whose config has it as 2048.0
    assert sizes(refused("/vllm/config.py", beyond.replace("32768", "2048.0"))) == {"asked": 131072, "limit": 2048}
    found = refused("/site-packages/vllm/config.py", beyond)
    assert (found.kind, sizes(found)) == ("beyond_model", {"asked": 131072, "limit": 32768})
    heads = "Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8)."
    found = refused("/site-packages/vllm/config.py", heads)
    assert (found.kind, sizes(found)) == ("uneven_heads", {"heads": 28, "ranks": 8})


SERVER = "[2026-03-14 09:20:00] server_args=ServerArgs(model_path='Qwen/Qwen3-14B', tp_size=1, mem_fraction_static=0.5)"
BEGIN = "[2026-03-14 09:20:01 TP0] Load weight begin. avail mem=23.20 GB"
END = "[2026-03-14 09:20:11 TP0] Load weight end. elapsed=9.92 s, type=Qwen3ForCausalLM, avail mem=11.00 GB, mem usage=12.20 GB."


@pytest.mark.parametrize(
    "ending", ["", " Current value: mem_fraction_static=0.5", " Current value: self.mem_fraction_static=0.5"]
)
def test_sglang_has_not_enough_memory(ending):
    line = f"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.{ending}"
    (found,) = read_log(f"{SERVER}\n{BEGIN}\n{END}\n{line}")
    assert (found.engine, found.refusal.kind) == ("sglang", "no_cache_memory")
    assert [found.first(name).value for name in ("free_before_gib", "free_after_gib", "loaded_gib")] == [23.2, 11, 12.2]
    (alone,) = read_log(line)
    assert alone.options == ({"mem_fraction_static": 0.5} if ending else {})


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5.", "tokens"),
        (
            "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=0",
            "a slot of recurrent states",
        ),
        (
            "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests. max_mamba_cache_size=3",
            "the recurrent states of a request",
        ),
        (
            "ValueError: SWA pool (7598 tokens) cannot hold even one request: the prefill admission floor is",
            "a window and a page",
        ),
        (
            "RuntimeError: SWA pool cap (82177 tokens, 2.82 GiB) leaves no room for the full KV pool within the available",
            "tokens beside the windows of all requests",
        ),
    ],
)
def test_what_sglangs_pools_have_no_room_for(line, what):
    found = refused(SERVER, BEGIN, END, line)
    assert (found.kind, found.stage) == ("no_cache_memory", f"making room for {what}")


def test_what_sglang_was_doing():
    pool = "[2026-03-14 09:20:12 TP0] max_total_num_tokens=30000, chunked_prefill_size=2048"
    assert refused(SERVER, BEGIN, TORCH).stage == "loading the weights"
    assert refused(SERVER, BEGIN, END, TORCH).stage == "profiling the largest pass"
    assert refused(SERVER, END, pool, f"Exception: Capture cuda graph failed: {TORCH_2_1}").stage.startswith(
        "allocating"
    )


LLAMA = "llama_model_loader: loaded meta data with 25 key-value pairs and 291 tensors from /models/a.gguf\n"


@pytest.mark.parametrize(
    ("lines", "device", "tried_gib", "stage"),
    [
        pytest.param(
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 44817.04 MiB on device 0: cudaMalloc failed: out of memory\n"
            "alloc_tensor_range: failed to allocate CUDA0 buffer of size 46994073600\n"
            "llama_model_load: error loading model: unable to allocate CUDA0 buffer",
            "0", 43.767, "allocating the weights", id="weights"),
        pytest.param(
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 18432.00 MiB on device 1: cudaMalloc failed: out of memory\n"
            "alloc_tensor_range: failed to allocate CUDA1 buffer of size 19327352832\n"
            "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
            "1", 18, "allocating the KV cache", id="cache"),
        pytest.param(
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8900.01 MiB on device 0: cudaMalloc failed: out of memory\n"
            "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 9332334592\n"
            "llama_new_context_with_model: failed to allocate compute buffers",
            "0", 8.691, "allocating the compute buffers", id="compute buffers, 2025"),
        pytest.param(
            "0.05.982.170 E ggml_vulkan: Device memory allocation of size 1632174080 failed.\n"
            "0.05.982.175 E alloc_tensor_range: failed to allocate Vulkan0 buffer of size 1632174080\n"
            "0.06.650.537 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
            "Vulkan0", 1.52, "allocating the KV cache", id="vulkan, 2026"),
        pytest.param(
            "ggml_metal_buffer_init: error: failed to allocate buffer, size = 20480.00 MiB\n"
            "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
            "Metal", 20, "allocating the KV cache", id="metal"),
        pytest.param(
            "ggml_aligned_malloc: insufficient memory (attempted to allocate 36000.00 MB)\n"
            "alloc_tensor_range: failed to allocate CPU buffer of size 37748736000\n"
            "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
            "CPU", 35.156, "allocating the KV cache", id="host"),
        pytest.param(
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 598.50 MiB on device 0: hipMalloc failed: out of memory\n"
            "llama_init_from_model: failed to initialize the context: failed to allocate buffer for rs cache",
            "0", 0.584, "allocating the recurrent states", id="states on ROCm"),
    ],
)  # fmt: skip
def test_llama_cpp(lines, device, tried_gib, stage):
    found = refused(LLAMA + lines)
    assert (found.kind, found.device, found.stage) == ("out_of_memory", device, stage)
    assert round(found.sizes["tried_gib"].value, 3) == tried_gib
    assert found.line == 2 + lines.startswith("0.05")


def test_ollama_asks_for_the_host_s_memory_first():
    found = refused(
        'time=2026-01-05T10:00:00.000Z level=WARN source=server.go:168 msg="model request too large for system" requested="36.0 GiB"\n'
        'time=2026-01-05T10:00:00.001Z level=INFO source=sched.go:453 msg="Load failed" model=/models/blobs/sha256-1 '
        'error="model requires more system memory (36.0 GiB) than is available (24.5 GiB)"'
    )
    assert (found.device, found.stage, sizes(found)) == (
        "CPU",
        "loading the weights",
        {"tried_gib": 36, "free_gib": 24.5},
    )


def test_a_second_try_of_llama_cpp_may_succeed():
    (found,) = read_log(
        LLAMA
        + "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 51748.72 MiB on device 1: cudaMalloc failed: out of memory\n"
        "graph_reserve: failed to allocate compute buffers\n"
        "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
        "llama_context:      CUDA0 compute buffer size =   300.75 MiB\n"
    )
    assert found.refusal is None


def test_buffers_of_the_gpu_are_told_from_the_host_s():
    (found,) = read_log(
        LLAMA
        + "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:01:00.0) - 23871 MiB free\n"
        "load_tensors: offloaded 37/37 layers to GPU\n"
        "load_tensors:   CPU_Mapped model buffer size =   333.84 MiB\nload_tensors:        CUDA0 model buffer size =  4455.34 MiB\n"
        "llama_context:  CUDA_Host  output buffer size =     0.58 MiB\nllama_kv_cache:      CUDA0 KV buffer size =  5760.00 MiB\n"
        "llama_context:      CUDA0 compute buffer size =   304.75 MiB\nllama_context:  CUDA_Host compute buffer size =    84.01 MiB\n"
    )
    names = ("model_buffer_mib", "gpu_model_mib", "gpu_kv_mib", "gpu_compute_mib", "device_free_mib")
    printed = {name: [size.value for size in found.printed[name]] for name in names}
    assert printed == {
        "model_buffer_mib": [333.84, 4455.34], "gpu_model_mib": [4455.34], "gpu_kv_mib": [5760], "gpu_compute_mib": [304.75],
        "device_free_mib": [23871],
    }  # fmt: skip
    assert (found.options["gpu_layers"], found.options["all_layers"]) == (37, 37)


def test_a_start_that_failed_and_one_that_did_not():
    first, second = read_log(f"{ENGINE}\n{TORCH}\n{ENGINE}\n{LOADED}\n{SIZED}")
    assert first.refusal is not None
    assert second.refusal is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes", "rtx-3090"),
        ("llama_load_model_from_file: using device CUDA0 (NVIDIA GeForce RTX 4090) - 22871 MiB free", "rtx-4090"),
        ("ggml_vulkan: 0 = AMD Radeon RX 7900 XTX (RADV NAVI31) (radv) | uma: 0 | fp16: 1", "rx-7900-xtx"),
        ("ggml_metal_init: GPU name:   Apple M3 Max", "apple-m3-max"),
        (
            "GPU models and configuration: GPU 0: NVIDIA A100-SXM4-80GB\nNvidia driver version: 550.120",
            "a100-sxm4-80gb",
        ),
        ("GPU 0: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: GPU-1)", "rtx-pro-6000-blackwell-server"),
        ("|   0  NVIDIA L40S                    On  | 00000000:1E:00.0 Off |                  Off |", "l40s"),
        (
            "Config file not found at /x/E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json",
            "h100-80gb-hbm3",
        ),
        ("[2025] Using configuration from device_name=AMD_Instinct_MI300X.json", "mi300x"),
    ],
)
def test_the_card_that_a_log_names(line, name):
    assert name in card_names(f"noise\n{line}\nnoise")


def test_no_card_is_named():
    assert card_names("GPU 0 has a total capacity of 23.64 GiB; GPU blocks: 12") == ()
