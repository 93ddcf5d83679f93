"""The readers of foreign files, fed with damage: one clear error or a result, in bounded time."""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.errors import KvcalcError
from kvcalc.evidence.read import read_records
from kvcalc.evidence.suites import run_suites
from kvcalc.importers.gguf import parse_header
from kvcalc.importers.gguf_families import gguf_profile
from kvcalc.importers.hugging_face import import_config, read_config
from kvcalc.importers.safetensors import read_header

# Reading takes milliseconds; the deadline only has to tell a reader that runs away from a busy machine.
_FUZZ = settings(max_examples=300, deadline=10_000)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def _gguf() -> bytes:
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


def _safetensors() -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "BF16", "shape": [4, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "I32", "shape": [], "data_offsets": [16, 20]},
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(20)


_GGUF, _SAFETENSORS = _gguf(), _safetensors()
_CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
    "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip


@st.composite
def _damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """The valid file cut short, with bytes changed, or with a count or length blown up; sometimes plain noise."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    data = bytearray(valid)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data) - 8))
        if draw(st.booleans()):
            data[place] = draw(st.integers(0, 255))
        else:
            data[place : place + 8] = struct.pack("<Q", draw(st.sampled_from([0, 1, 2**31, 2**40, 2**63, 2**64 - 1])))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


def _import_gguf(data: bytes) -> None:
    header = parse_header(data, len(data), where="m.gguf")
    gguf_profile(header.metadata, header.table, name="m")


def test_undamaged_files_are_read() -> None:
    _import_gguf(_GGUF)
    assert len(read_header(lambda at, size: _SAFETENSORS[at : at + size], len(_SAFETENSORS), where="m")) == 2
    assert import_config(_CONFIG, name="m")[0].layers == 2


@_FUZZ
@given(_damaged(_GGUF))
def test_gguf_gives_only_clear_errors(data: bytes) -> None:
    with contextlib.suppress(KvcalcError):
        _import_gguf(data)


@_FUZZ
@given(_damaged(_SAFETENSORS))
def test_safetensors_gives_only_clear_errors(data: bytes) -> None:
    with contextlib.suppress(KvcalcError):
        read_header(lambda at, size: data[at : at + size], len(data), where="m.safetensors")


_LEAVES = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, -1, 1, 7, 10**9, 10**12, 10**30, 0.5, 1e300, float("inf"), float("nan")])
    | st.sampled_from(["", "llama", "fp8", "auto", "bfloat16", "x" * 100, "re:(a+)+$", "*", "model.layers.0*"])
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_METADATA = ["block_count", "attention.head_count", "attention.head_count_kv", "attention.key_length", "expert_count",
             "expert_used_count", "attention.sliding_window", "attention.sliding_window_pattern", "ssm.inner_size",
             "feed_forward_length", "embedding_length", "nextn_predict_layers", "vocab_size"]  # fmt: skip


@_FUZZ
@given(
    st.dictionaries(st.sampled_from([*_CONFIG, "text_config", "layer_types", "sliding_window"]), _VALUES, max_size=4)
)
def test_config_values_of_any_kind_give_only_clear_errors(changes: dict[str, Any]) -> None:
    text = json.dumps(_CONFIG | changes)
    with contextlib.suppress(KvcalcError):
        import_config(read_config(text), name="m")


@_FUZZ
@given(
    st.sampled_from(["fp8", "mxfp4", "compressed-tensors", "modelopt", "gptq", "awq", "bitsandbytes", "quark", "aqlm"]),
    st.dictionaries(
        st.sampled_from(["config_groups", "ignore", "quantized_layers", "quant_algo", "weight_block_size", "bits",
                         "group_size", "kv_cache_scheme", "exclude", "modules_to_not_convert", "global_quant_config",
                         "load_in_4bit", "load_in_8bit", "expert_dtype", "num_codebooks"]),
        _VALUES,
        max_size=5,
    ),
)  # fmt: skip
def test_quantisation_values_of_any_kind_give_only_clear_errors(method: str, keys: dict[str, Any]) -> None:
    with contextlib.suppress(KvcalcError):
        import_config(_CONFIG | {"quantization_config": {"quant_method": method} | keys}, name="m")


@_FUZZ
@given(
    st.sampled_from(["llama", "gemma3", "gemma4", "deepseek2", "mamba2", "qwen3next", "nemotron_h", "lfm2", "gpt-oss"]),
    st.dictionaries(st.sampled_from(_METADATA), _LEAVES | st.lists(_LEAVES, max_size=4), max_size=6),
)
def test_gguf_metadata_of_any_kind_gives_only_clear_errors(architecture: str, changes: dict[str, Any]) -> None:
    header = parse_header(_GGUF, len(_GGUF), where="m.gguf")
    metadata = {key.replace("llama.", f"{architecture}."): value for key, value in header.metadata.items()}
    metadata |= {"general.architecture": architecture} | {f"{architecture}.{key}": changes[key] for key in changes}
    with contextlib.suppress(KvcalcError):
        gguf_profile(metadata, header.table, name="m")


@given(
    st.text(max_size=300)
    | st.integers(1, 5000).map(lambda depth: "[" * depth)
    | st.integers(1, 5000).map(lambda d: '{"a":' * d)
)
def test_json_text_of_any_kind_gives_only_clear_errors(text: str) -> None:
    with contextlib.suppress(KvcalcError):
        read_config(text)


_ROW = "- {id: a, phase: decode, value: 50, unit: tok/s, hardware: RTX 4090, model: Llama 2 7B, weight_format: q4_0, batch: 1}\n"
_WORDS = st.sampled_from(
    ("id", "phase", "decode", "prefill", "end_to_end", "value", "50", "-1", "1e400", "tok/s", "ms", "batch", "max load", "null", "{", "}",
     "[", "]", ":", "- ", ", ", "\n", "groups", "columns", "rows", "RTX 4090", "8x", "(7-core GPU)", "model", "é", "0", "99999999999")
)  # fmt: skip


def _run(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    with contextlib.suppress(KvcalcError):
        run_suites(records=read_records(path))


@_FUZZ
@given(st.lists(_WORDS, max_size=30), st.integers(0, len(_ROW)), st.integers(0, 40))
def test_a_damaged_list_of_records(words: list[str], place: int, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(Path(folder), "a.yaml", _ROW[:place] + "".join(words) + _ROW[place + cut :])


_TABLE = "gpu,framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency_ms\nl,T,1,NVIDIA L40S,gemm,t,bfloat16,8,1024,2048,0.01\n"


@_FUZZ
@given(st.lists(_WORDS, max_size=10), st.integers(0, len(_TABLE)), st.integers(0, 40))
def test_a_damaged_table_of_kernels(words: list[str], place: int, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(Path(folder), "a.csv", _TABLE[:place] + "".join(words) + _TABLE[place + cut :])
