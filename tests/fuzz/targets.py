"""What reads something that anybody may have written: a valid example of each kind, and what is done with it."""

from __future__ import annotations

import asyncio
import json
import struct
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import httpx
import yaml

import kvcalc
from kvcalc import api
from kvcalc.engines.logs import read_log
from kvcalc.evidence.log_text import log_of
from kvcalc.evidence.read import read_records
from kvcalc.evidence.suites import run_suites
from kvcalc.importers.gguf import parse_header
from kvcalc.importers.gguf_families import gguf_profile
from kvcalc.importers.hugging_face import import_config, read_config
from kvcalc.importers.safetensors import import_safetensors, read_header
from kvcalc.importers.traces import parse_columns, read_trace
from kvcalc.plan.reconcile import reconcile_report
from kvcalc.profiles.loader import load_hardware_file, load_model_file

from .damage import damaged_bytes, damaged_document, damaged_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

ROOT = Path(__file__).parents[2]
FACTS = ROOT / "kvcalc" / "evidence" / "facts"


def _sized(model: kvcalc.ModelProfile) -> None:
    kvcalc.size(kvcalc.deployment(model), context=min(model.context_limit or 4096, 4096))


@cache
def _configs() -> list[dict[str, Any]]:
    cases = json.loads((ROOT / "tests" / "conformance" / "transformers_types.json").read_text(encoding="utf-8"))
    quantized = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}
    schemes = [
        quantized,
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["re:.*self_attn.*"]},
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"model.layers.0.mlp": {"quant_algo": "NVFP4"}},
        },
        *(
            {"quant_method": name, "bits": 4, "group_size": 128}
            for name in ("gptq", "awq", "bitsandbytes", "quark", "aqlm", "mxfp4")
        ),
    ]
    return [case["config"] | ({"quantization_config": schemes[index % len(schemes)]} if index % 3 == 0 else {})
            for index, case in enumerate(cases.values())]  # fmt: skip


def config(random: Random, folder: Path) -> None:
    """A config.json, damaged as a document or as a text."""
    del folder
    document = random.choice(_configs())
    if random.random() < 0.8:
        text = json.dumps(damaged_document(document, random))
    else:
        text = damaged_text(json.dumps(document, indent=1), random)
    _sized(import_config(read_config(text), name="m")[0])


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


@cache
def gguf_file() -> bytes:
    """A small valid file, written by hand so that every byte is known."""
    numbers = {"block_count": 1, "embedding_length": 32, "feed_forward_length": 32, "context_length": 64}
    numbers |= {"attention.head_count": 2, "attention.head_count_kv": 1}
    keys = [_text("general.architecture") + struct.pack("<I", 8) + _text("llama")]
    keys += [_text(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()]
    keys += [_text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("bc")]
    keys += [_text("llama.rope.dimension_sections") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3)]
    tensors = [("token_embd.weight", (32, 8), 2, 8 * 18), ("blk.0.attn_q.weight", (32, 32), 1, 2048)]
    infos, offset = b"", 0
    for name, shape, kind, size in tensors:
        infos += _text(name) + struct.pack("<IQQIQ", 2, *shape, kind, offset)
        offset += -(-size // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys) + infos
    return head + bytes(-len(head) % 32) + bytes(offset)


def read_gguf_bytes(data: bytes) -> None:
    """Import a GGUF file from memory."""
    header = parse_header(data, len(data), where="m.gguf")
    _sized(gguf_profile(header.metadata, header.table, name="m"))


_ARCHITECTURES = (
    "llama",
    "gemma3",
    "gemma4",
    "deepseek2",
    "mamba2",
    "qwen3next",
    "nemotron_h",
    "lfm2",
    "gpt-oss",
    "qwen35moe",
    "rwkv7",
)
_METADATA = ("attention.key_length", "attention.value_length", "expert_count", "expert_used_count", "attention.sliding_window",
             "attention.sliding_window_pattern", "ssm.inner_size", "ssm.state_size", "nextn_predict_layers", "vocab_size",
             "attention.kv_lora_rank", "full_attention_interval")  # fmt: skip


def gguf(random: Random, folder: Path) -> None:
    """A GGUF file: its bytes, or the values of its keys for one of several architectures."""
    del folder
    if random.random() < 0.5:
        read_gguf_bytes(damaged_bytes(gguf_file(), random))
        return
    header = parse_header(gguf_file(), len(gguf_file()), where="m.gguf")
    architecture = random.choice(_ARCHITECTURES)
    metadata = {key.replace("llama.", f"{architecture}."): value for key, value in header.metadata.items()}
    metadata |= {f"{architecture}.{key}": random.randint(0, 64) for key in random.sample(_METADATA, 4)}
    metadata = damaged_document(metadata, random) | {"general.architecture": architecture}
    _sized(gguf_profile(metadata, header.table, name="m"))


@cache
def safetensors_header() -> dict[str, Any]:
    """The header of a small valid file."""
    return {
        "__metadata__": {"format": "pt"},
        "model.embed_tokens.weight": {"dtype": "BF16", "shape": [4, 2], "data_offsets": [0, 16]},
        "model.layers.0.mlp.up_proj.weight_scale": {"dtype": "F32", "shape": [], "data_offsets": [16, 20]},
    }


def safetensors_file(header: Any, data_bytes: int = 20) -> bytes:
    """A file with a header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data_bytes)


def safetensors(random: Random, folder: Path) -> None:
    """A safetensors file: its bytes, its header as a document, and its index, with a config beside it."""
    data = safetensors_file(safetensors_header())
    data = (
        damaged_bytes(data, random)
        if random.random() < 0.5
        else safetensors_file(damaged_document(safetensors_header(), random))
    )
    if random.random() < 0.8:
        read_header(lambda at, size: data[at : at + size], len(data), where="m.safetensors")
        return
    (folder / "config.json").write_text(json.dumps(random.choice(_configs())), encoding="utf-8")
    (folder / "model-00001-of-00001.safetensors").write_bytes(data)
    index = {"metadata": {}, "weight_map": dict.fromkeys(safetensors_header(), "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(damaged_document(index, random)), encoding="utf-8")
    _sized(import_safetensors(folder / "model.safetensors.index.json", "m"))


TRACES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:59:59.9999999,374,44\n2023-11-16 19:00:00.1,396,109\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}\n'
    '{"timestamp": 27, "input_length": 512, "output_length": 9, "hash_ids": [0]}\n',
    "own.csv": "in,x,out,when\n5,,6,100\n7,,8,350\n",
    "own.tsv": "in\tout\twhen\n5\t6\t100\n7\t8\t2024-05-01T10:00:00+02:00\n",
}


def traces(random: Random, folder: Path) -> None:
    """A trace of requests, known or mapped."""
    name = random.choice(list(TRACES))
    path = folder / name
    text = damaged_text(TRACES[name], random)
    path.write_bytes(damaged_bytes(text.encode(), random) if random.random() < 0.2 else text.encode())
    columns = None
    if name.startswith("own"):
        mapping = "time=when:ms,prompt=in,output=out"
        columns = parse_columns(damaged_text(mapping, random) if random.random() < 0.3 else mapping)
    for request in read_trace(path, columns=columns):
        assert request.arrival_s >= 0
        assert request.prompt_tokens >= 1


@cache
def _logs() -> list[str]:
    records = yaml.safe_load((FACTS / "engine_logs.yaml").read_text(encoding="utf-8"))
    return [log_of(record) for record in records]


def logs(random: Random, folder: Path) -> None:
    """The start-up log of an engine, read and held against a model."""
    del folder
    model = kvcalc.load_model(random.choice(("llama3.1-8b", "gemma-3-27b", "deepseek-v3", "mamba-2.8b")))
    reconcile_report(read_log(damaged_text(random.choice(_logs()), random)), lambda _: model)


@cache
def _profiles() -> list[Path]:
    return sorted([*(ROOT / "model_profiles").glob("*.yaml"), *(ROOT / "hardware_profiles").glob("*.yaml")])


@cache
def _document(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def profiles(random: Random, folder: Path) -> None:
    """A profile of a model or an accelerator, as text or as a document (JSON is YAML)."""
    source = random.choice(_profiles())
    path = folder / "profile.yaml"
    if random.random() < 0.5:
        path.write_bytes(damaged_text(source.read_text(encoding="utf-8"), random).encode("utf-8", "surrogatepass"))
    else:
        path.write_text(json.dumps(damaged_document(_document(source), random), default=str), encoding="utf-8")
    if source.parent.name == "model_profiles":
        _sized(load_model_file(path))
    else:
        hardware = load_hardware_file(path)
        assert hardware.usable_memory_bytes >= 0


CHECKS = """\
defaults: {gpu: h100-sxm}
checks:
- name: chat
  model: llama2-70b
  matrix: {gpus: [4, 8]}
  batch: 8
  expect:
    fits: true
    kv_bytes_per_token: {equals: 320 KiB, within: 1%}
    decode.tokens_per_s_per_sequence: {min: 30, max: 1e4}
  record: [size.kv.bytes_per_sequence]
"""


def checks(random: Random, folder: Path) -> None:
    """A file of checks, run."""
    path = folder / "kvcalc.checks.yaml"
    document = yaml.safe_load(CHECKS)
    text = damaged_text(CHECKS, random) if random.random() < 0.5 else json.dumps(damaged_document(document, random))
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    api.check_files([path])


RECORDS = {
    "a.yaml": "- {id: a, phase: decode, value: 50, unit: tok/s, hardware: RTX 4090, model: Llama 2 7B, weight_format: q4_0, batch: 1}\n",
    "a.csv": "gpu,framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency_ms\n"
    "l,T,1,NVIDIA L40S,gemm,t,bfloat16,8,1024,2048,0.01\n",
}


def records(random: Random, folder: Path) -> None:
    """A list of published speeds or a table of kernel times, held against the bounds."""
    name = random.choice(list(RECORDS))
    (folder / name).write_bytes(damaged_text(RECORDS[name], random).encode("utf-8", "surrogatepass"))
    run_suites(records=read_records(folder / name))


ASKED = {
    "size": {"model": "llama3.1-8b", "context": "8192", "batch": "8", "engine": "vllm"},
    "fit": {"model": "llama3.1-8b", "gpu": "h100-sxm", "context": "8192", "batch": "8", "kv-dtype": "q8_0", "engine": "llama.cpp"},
    "decode": {"model": "llama3.1-8b", "gpu": "h100-sxm", "batch": "1-64*4", "context": "1024,8192", "estimate": "true"},
    "prefill": {"model": "llama3.1-8b", "gpu": "h100-sxm", "prompt": "8k", "gpus": "2", "price": "2.5"},
    "roofline": {"model": "llama3.1-8b", "gpu": "h100-sxm", "batch": "1,64", "context": "4096"},
    "levers": {"model": "llama2-7b", "context": "4096", "with": "gqa,fp8"},
    "traffic": {"model": "llama2-7b", "prompt": "0", "output-tokens": "4096"},
    "simulate": {"model": "llama3.1-8b", "gpu": "h100-sxm", "rate": "4", "requests": "20", "prompt": "uniform:128-512",
                 "output-tokens": "20", "seed": "3"},
    "demo/paging": {"block-size": "32"},
    "catalogue": {"kind": "gpu"},
    "compare": {"side": "model=llama3.1-8b&gpu=h200&batch=8"},
    "engines": {"model": "llama3.1-8b", "context": "4096"},
}  # fmt: skip


@cache
def _application() -> Any:
    from kvcalc.explore.server import application

    return application(None)


async def _status(method: str, address: str, body: bytes | None) -> int:
    transport = httpx.ASGITransport(_application())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8977") as client:
        return (await client.request(method, address, content=body)).status_code


def requests(random: Random, folder: Path) -> None:
    """A question to the page's server: fields, or a config or a log that someone pasted."""
    del folder
    name = random.choice(list(ASKED))
    asked = dict(ASKED[name])
    for field in random.sample(list(asked), random.randint(1, len(asked))):
        asked[field] = damaged_text(asked[field], random)
    method, body = "GET", None
    if random.random() < 0.3:
        name, method = random.choice(("size", "fit", "decode", "reconcile")), "POST"
        asked.pop("model", None)
        body = json.dumps(damaged_document(random.choice(_configs()), random)).encode()
        if name == "reconcile":
            body = damaged_text(random.choice(_logs()), random).encode("utf-8", "surrogatepass")
    status = asyncio.run(_status(method, f"/api/{name}?{urlencode(asked, errors='surrogatepass')}", body))
    assert status in {200, 400, 403, 404, 405, 413, 414, 415, 422, 431, 503}, status


TARGETS: dict[str, Callable[[Random, Path], None]] = {
    each.__name__: each
    for each in (config, gguf, safetensors, traces, logs, profiles, checks, records, requests)
}  # fmt: skip
