"""A record of printed numbers as the log it was taken from: the engines' own wording, only what the record holds."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

# Larger blocks are chosen by the engine for models with states, which it prints.
_USUAL_BLOCK = 64

# Names of vLLM's configuration line, by the record's field.
_VLLM = {
    "model": "model",
    "dtype": "dtype",
    "max_model_len": "max_seq_len",
    "tensor_parallel": "tensor_parallel_size",
    "pipeline_parallel": "pipeline_parallel_size",
    "data_parallel": "data_parallel_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "prefix_caching": "enable_prefix_caching",
    "weight_quant": "quantization",
}
_SGLANG = {
    "tensor_parallel": "tp_size",
    "data_parallel": "dp_size",
    "mem_fraction_static": "mem_fraction_static",
    "kv_cache_dtype": "kv_cache_dtype",
}


def log_of(record: Record) -> str:
    """Return the text of a log that prints what the record holds."""
    return {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama_cpp}[record["engine"]](record)


def _config(record: Record, names: dict[str, str]) -> str:
    pairs = {names[field]: record[field] for field in names if field in record}
    for name in pairs.keys() & {"kv_cache_dtype", "quantization"}:
        pairs[name] = str(pairs[name]).split(" ")[0]
    return ", ".join(f"{name}={value!r}" if name == "model" else f"{name}={value}" for name, value in pairs.items())


def _vllm(record: Record) -> str:
    version = str(record.get("engine_version", "unknown"))
    core, worker = "(EngineCore_DP0 pid=120) INFO 08-01 12:00:00", "(Worker_TP0 pid=130) INFO 08-01 12:00:01"
    first = version.startswith("V0")
    draft = f", speculative_config=SpeculativeConfig({record['speculation']})" if "speculation" in record else ""
    engine = "an LLM engine" if first else "a V1 LLM engine"
    shown = version if version[0].isdigit() else "unknown"
    lines = [f"{core} [core.py:77] Initializing {engine} (v{shown}) with config: {_config(record, _VLLM)}{draft}"]
    if "weights_gib" in record:
        lines.append(f"{worker} [gpu_model_runner.py:1] Model loading took {record['weights_gib']} GiB and 9.1 seconds")
    if record.get("block_size", 0) > _USUAL_BLOCK:
        tokens = record["block_size"]
        lines.append(f"{core} [config.py:1] Setting attention block size to {tokens} tokens to ensure that it fits.")
    if "state_padding_percent" in record:
        share = record["state_padding_percent"]
        lines.append(f"{core} [config.py:1] Padding mamba page size by {share}% to ensure that they are equal.")
    if "padding_waste_percent" in record:
        share = record["padding_waste_percent"]
        lines.append(f"{core} [kv_cache_utils.py:1] Add 8 padding layers, may waste at most {share}% KV cache memory")
    if "available_kv_gib" in record and "needed_gib" not in record:
        lines.append(f"{worker} [gpu_worker.py:359] Available KV cache memory: {record['available_kv_gib']} GiB")
    if "gpu_blocks" in record:
        lines.append(f"{core} [executor_base.py:111] # GPU blocks: {record['gpu_blocks']}, # CPU blocks: 2048")
    if "kv_tokens" in record:
        lines.append(f"{core} [kv_cache_utils.py:1286] GPU KV cache size: {record['kv_tokens']:,} tokens")
    if "max_concurrency" in record and "max_model_len" in record:
        length, requests = record["max_model_len"], record["max_concurrency"]
        lines.append(
            f"{core} [kv_cache_utils.py:1291] Maximum concurrency for {length:,} tokens per request: {requests}x"
        )
    if "needed_gib" in record:
        lines.append(_refusal(record))
    return "\n".join(lines)


def _refusal(record: Record) -> str:
    longest = record.get("est_max_len")
    estimate = f"Based on the available memory, the estimated maximum model length is {longest}. " if longest else ""
    return (
        f"ValueError: To serve at least one request with the model's max seq len ({record['needed_for_tokens']}), "
        f"{record['needed_gib']} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({record['available_kv_gib']} GiB). {estimate}Try increasing `gpu_memory_utilization`."
    )


def _sglang(record: Record) -> str:
    model = record.get("model", "")
    lines = [f"[2025-07-22 10:00:00] server_args=ServerArgs(model_path='{model}', {_config(record, _SGLANG)})"]
    sizes = f"K size: {record.get('k_gb_printed')} GB, V size: {record.get('v_gb_printed')} GB"
    if "total_kv_gb_printed" in record:
        sizes = f"KV size: {record['total_kv_gb_printed']} GB"
    lines.append(f"[2025-07-22 10:01:00 TP0] KV Cache is allocated. #tokens: {record['kv_tokens']}, {sizes}")
    lines.append(f"[2025-07-22 10:01:01 TP0] max_total_num_tokens={record['kv_tokens']}, chunked_prefill_size=8192")
    return "\n".join(lines)


def _llama_cpp(record: Record) -> str:
    cells, kind = record["cells"], record.get("kv_cache_dtype", "f16")
    lines = [f"llama_context: n_seq_max     = 1\nllama_context: n_ctx         = {cells}"]
    if "model" in record:
        lines.insert(0, f"print_info: general.name     = {record['model']}")
    total = record["total_kv_mib"]
    keys = record.get("k_mib", total / 2)
    if "v_mib" not in record and "k_mib" in record:
        return "\n".join(
            [*lines, f"llama_new_context_with_model: KV self size  = {total:.2f} MiB, c^KV ({kind}): {keys:.2f} MiB"]
        )
    values = record.get("v_mib", total / 2)
    layers = record.get("layers")
    if layers is None:
        head = f"llama_new_context_with_model: KV self size  = {total:.2f} MiB"
        return "\n".join([*lines, f"{head}, K ({kind}): {keys:.2f} MiB, V ({kind}): {values:.2f} MiB"])
    lines.append(
        f"llama_kv_cache: size = {total:7.2f} MiB ({cells:6d} cells, {layers:3d} layers,  1/1 seqs), "
        f"K ({kind}): {keys:7.2f} MiB, V ({kind}): {values:7.2f} MiB"
    )
    return "\n".join(lines)
