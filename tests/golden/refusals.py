"""Start-up logs of every kind of refusal, each with other numbers, cards and options around it."""

from __future__ import annotations

from typing import Any

__all__ = ["LOGS"]

_VLLM = (
    "Initializing a V1 LLM engine (v{version}) with config: model='{model}', dtype=torch.bfloat16, max_seq_len={length}, "
    "tensor_parallel_size={tensor}, pipeline_parallel_size={pipeline}, kv_cache_dtype={kv}\n"
)
_OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried} GiB. GPU 0 has a total capacity of {total} GiB of "
    "which {free} GiB is free. Including non-PyTorch memory, this process has {own} GiB memory in use. Of the allocated\n"
)
_LOADED = "Model loading took {weights} GiB memory and 9.8 seconds\n"
_LEFT = "Available KV cache memory: {left} GiB\n"
_VLLM_KINDS = {
    "too long": _LEFT
    + "ValueError: To serve at least one request with the models's max seq len ({length}), ({needed} GiB KV cache is needed, "
    "which is larger than the available KV cache memory ({left} GiB). Based on\n",
    "nothing left": _LEFT.replace("{left}", "-1.5") + "ValueError: No available memory for the cache blocks.\n",
    "nothing left, not told": "ValueError: No available memory for the cache blocks.\n",
    "in use": "ValueError: Free memory on device cuda:0 ({free_first}/{total} GiB) on startup is less than desired GPU memory "
    "utilization (0.9, {wanted} GiB). Decrease GPU memory utilization\n",
    "loading": _OUT_OF_MEMORY,
    "profiling": _LOADED + _OUT_OF_MEMORY,
    "after sizing": _LOADED + _LEFT + _OUT_OF_MEMORY,
    "sampling": _LOADED
    + _LEFT
    + _OUT_OF_MEMORY
    + "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.\n",
}
_BASE: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B", "version": "0.19.0", "length": 40960, "tensor": 1, "pipeline": 1, "kv": "auto", "needed": 5.62,
    "left": 4.51, "tried": 0.77, "total": 23.64, "free": 0.19, "own": 23.4, "weights": 15.27, "free_first": 20.11,
    "wanted": 21.28, "asked": "", "set": "", "gpu": None,
}  # fmt: skip
_ALL, _OUT = tuple(_VLLM_KINDS), ("loading", "profiling", "after sizing")
# What is other than in the base, and for which kinds of refusal.
_AROUND: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "": ({}, _ALL),
    "its card": ({"gpu": "rtx-3090"}, _ALL),
    "a larger card": ({"gpu": "l40s", "total": 44.4, "own": 44.1, "free_first": 39.2, "wanted": 39.96}, _ALL),
    "a length asked for": ({"asked": "'max_model_len': 40960", "gpu": "rtx-3090"}, _ALL[:4]),
    "a low share": ({"asked": "'gpu_memory_utilization': 0.8", "gpu": "rtx-3090", "left": 2.15}, _ALL[:4]),
    "a high share": ({"asked": "'gpu_memory_utilization': 0.97", "gpu": "rtx-3090"}, _ALL),
    "a later release": ({"version": "0.32.0", "gpu": "rtx-3090"}, _ALL[:4]),
    "8 bits in the cache": ({"kv": "fp8_e4m3", "gpu": "rtx-3090", "left": 2.4}, ("too long", "after sizing")),
    "two ranks": ({"model": "Qwen/Qwen3-14B", "tensor": 2, "gpu": "rtx-3090", "weights": 13.9, "left": 1.2}, _ALL[:-1]),
    "two stages": (
        {"model": "Qwen/Qwen3-14B", "pipeline": 2, "gpu": "rtx-3090", "weights": 13.9, "left": 1.2},
        ("too long", "nothing left", "after sizing"),
    ),
    "windows": (
        {"model": "google/gemma-3-12b-it", "gpu": "rtx-3090", "weights": 22.7, "length": 131072, "left": 0.9},
        ("too long", "nothing left, not told", "profiling"),
    ),
    "states": (
        {"model": "Qwen/Qwen3.6-27B", "gpu": "h100-sxm", "weights": 50.1, "total": 79.19, "length": 262144},
        ("too long", "nothing left, not told", "in use"),
    ),
    "small passes": (
        {"asked": "'max_num_batched_tokens': 1024", "gpu": "rtx-3090", "tried": 0.2, "own": 22.0},
        ("profiling",),
    ),
    "a large pass": ({"gpu": "rtx-3090", "tried": 2.0, "own": 22.5}, _OUT),
    "other programs": ({"own": 13.5, "gpu": "rtx-3090"}, _OUT),
    "memory for the cache set": (
        {
            "set": "Initial free memory 23.2 GiB, reserved 4.51 GiB memory for KV Cache as specified by "
            "kv_cache_memory_bytes config and skipped memory profiling.\n",
            "gpu": "rtx-3090",
        },
        ("too long",),
    ),
}
_BEYOND = (
    "/vllm/config.py\nnon-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 131072}\nUser-specified max_model_len "
    "(131072) is greater than the derived max_model_len (max_position_embeddings=40960 or model_max_length=None in model's "
    "config.json)\n"
)
_HEADS = (
    "non-default args: {'model': 'Qwen/Qwen2.5-7B', 'tensor_parallel_size': 8}\n"
    "Total number of attention heads (28) must be divisible by tensor parallel size (8)."
)
_OTHERS: dict[str, tuple[str, str | None]] = {
    "too many sequences": (
        _VLLM.format(**{**_BASE, "model": "Qwen/Qwen3.6-27B", "version": "0.26.0", "tensor": 2})
        + "Available KV cache memory: 9.00 GiB\nValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (161).",
        None,
    ),
    "beyond the model": (_BEYOND, "rtx-3090"),
    "uneven heads": (_HEADS, "rtx-4090"),
}

_SGLANG = (
    "server_args=ServerArgs(model_path='{model}', tp_size={tensor}, mem_fraction_static={share}, context_length={length}, "
    "kv_cache_dtype='{kv}')\n"
)
_SGLANG_LOADED = (
    "Load weight begin. avail mem={before} GB\n"
    "Load weight end. type=Qwen3ForCausalLM, avail mem={after} GB, mem usage=27.60 GB.\n"
)
_SGLANG_KINDS = {
    "no pool": _SGLANG_LOADED + "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n",
    "no pool, not told": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n",
    "beside the pool": _SGLANG_LOADED + "max_total_num_tokens=90000, context_len=40960\n" + _OUT_OF_MEMORY,
    "loading": _OUT_OF_MEMORY,
}
_SGLANG_BASE: dict[str, Any] = {
    "model": "Qwen/Qwen3-14B", "tensor": 1, "share": 0.5, "length": None, "kv": "auto", "before": 47.2, "after": 19.5,
    "tried": 1.2, "total": 47.4, "free": 0.19, "own": 46.0, "gpu": None,
}  # fmt: skip
_SGLANG_AROUND: dict[str, dict[str, Any]] = {
    "": {},
    "its card": {"gpu": "rtx-a6000"},
    "a high share": {"share": 0.9, "gpu": "rtx-a6000"},
    "no share": {"share": None, "gpu": "rtx-a6000"},
    "no share, no card": {"share": None},
    "8 bits in the cache": {"kv": "fp8_e5m2", "share": 0.7, "gpu": "rtx-a6000"},
    "a short context": {"length": 9000, "gpu": "rtx-a6000"},
    "two ranks": {"tensor": 2, "after": 33.0, "gpu": "rtx-a6000"},
    "a small card": {"gpu": "rtx-4090", "before": 23.1, "after": 1.1, "total": 23.5},
}

_LLAMA_CPP = (
    "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA GeForce RTX 3090) (0000:01:00.0) - {free} MiB free\n"
    "llama_model_loader: loaded meta data with 25 key-value pairs\nprint_info: general.name     = Qwen3 14B\n"
    "print_info: file size   = 8.38 GiB (4.87 BPW)\n"
)
_OFFLOADED = (
    "load_tensors: offloaded {layers}/41 layers to GPU\nload_tensors:        CUDA0 model buffer size =  {weights} MiB\n"
)
_CONTEXT = "llama_context: n_ctx         = {context}\n"
_MALLOC = (
    "ggml_backend_cuda_buffer_type_alloc_buffer: allocating {tried} MiB on device 0: cudaMalloc failed: out of memory\n"
)
_LLAMA_CPP_KINDS = {
    "weights": _CONTEXT + _MALLOC + "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n",
    "cache": _OFFLOADED
    + _CONTEXT
    + _MALLOC
    + "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache\n",
    "compute": _OFFLOADED + _CONTEXT + _MALLOC + "graph_reserve: failed to allocate compute buffers\n",
    "cache of no context": _OFFLOADED
    + _MALLOC
    + "llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache\n",
    "host": _CONTEXT + "model requires more system memory (21.5 GiB) than is available (14.2 GiB)\n",
}
_LLAMA_CPP_BASE: dict[str, Any] = {
    "free": 23871, "layers": 41, "weights": 8165.72, "context": 131072, "tried": 20480.0, "gpu": None,
}  # fmt: skip
_LLAMA_CPP_AROUND: dict[str, dict[str, Any]] = {
    "": {},
    "a small card": {"free": 11900},
    "a full card": {"free": 8600},
    "some layers": {"layers": 20, "weights": 3980.5},
    "a short context": {"context": 8192, "tried": 1280.0, "free": 9200},
}


def _logs() -> dict[str, tuple[str, str | None]]:
    logs: dict[str, tuple[str, str | None]] = {}
    for around, (other, kinds) in _AROUND.items():
        given = _BASE | other
        asked = f"non-default args: {{'model': '{given['model']}', {given['asked']}}}\n" if given["asked"] else ""
        for kind in kinds:
            log = asked + (_VLLM + given["set"] + _VLLM_KINDS[kind]).format(**given)
            logs[f"vllm, {kind}{around and ', '}{around}"] = (log, given["gpu"])
    logs |= {f"vllm, {kind}": case for kind, case in _OTHERS.items()}
    for engine, head, texts, base, arounds in (
        ("sglang", _SGLANG, _SGLANG_KINDS, _SGLANG_BASE, _SGLANG_AROUND),
        ("llama.cpp", _LLAMA_CPP, _LLAMA_CPP_KINDS, _LLAMA_CPP_BASE, _LLAMA_CPP_AROUND),
    ):
        for around, other in arounds.items():
            given = base | other
            for kind, text in texts.items():
                logs[f"{engine}, {kind}{around and ', '}{around}"] = ((head + text).format(**given), given["gpu"])
    return logs


LOGS = _logs()
