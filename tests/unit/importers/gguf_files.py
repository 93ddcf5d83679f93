"""GGUF files for tests: a real header written by the ``gguf`` package, and a data section that is a hole in the file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

Shapes = dict[str, tuple[tuple[int, ...], str]]


def write_gguf(path: Path, architecture: str, keys: dict[str, Any], tensors: Shapes, *, vocabulary: int = 0) -> Path:
    """Write a file with these keys (without the architecture's prefix) and tensors (row width first, as ggml has it).

    Args:
        path: where to write.
        architecture: ``general.architecture``.
        keys: numbers, texts and lists of them; a key with a dot at its front keeps its name as it is.
        tensors: name to shape and ggml type.
        vocabulary: tokens, and as many scores, to write beside.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        name = key[1:] if key.startswith(".") else f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    if vocabulary:
        writer.add_token_list([f"token-{index}" for index in range(vocabulary)])
        writer.add_token_scores([0.0] * vocabulary)
    size = 0
    for name, (shape, kind) in tensors.items():
        block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        stored = int(np.prod(shape)) // block * block_bytes
        size += -(-stored // 32) * 32
        stored_shape = (*reversed(shape[1:]), shape[0] // block * block_bytes)
        writer.add_tensor_info(
            name, stored_shape, np.dtype(np.uint8), stored, raw_dtype=gguf.GGMLQuantizationType[kind]
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    start = -(-path.stat().st_size // 32) * 32
    os.truncate(path, start + size)
    return path


def llama_tensors(
    layers: int, hidden: int, inner: int, rows: int, *, heads: int, kv: int, width: int, kind: str = "Q4_0"
) -> Shapes:
    """Return the tensors of a Llama."""
    shapes: Shapes = {
        "token_embd.weight": ((hidden, rows), kind),
        "output.weight": ((hidden, rows), "Q6_K" if hidden % 256 == 0 else "Q8_0"),
        "output_norm.weight": ((hidden,), "F32"),
    }
    for layer in range(layers):
        block = {
            "attn_norm": ((hidden,), "F32"),
            "attn_q": ((hidden, heads * width), kind),
            "attn_k": ((hidden, kv * width), kind),
            "attn_v": ((hidden, kv * width), "Q8_0"),
            "attn_output": ((heads * width, hidden), kind),
            "ffn_norm": ((hidden,), "F32"),
            "ffn_gate": ((hidden, inner), kind),
            "ffn_up": ((hidden, inner), kind),
            "ffn_down": ((inner, hidden), kind),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in block.items()}
    return shapes
