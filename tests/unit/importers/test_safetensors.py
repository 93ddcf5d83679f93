"""safetensors headers: exact bytes, shards, broken files, and the profile of a config with its file's own formats."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvcalc.core.errors import ProfileError
from kvcalc.core.formats import parse_format
from kvcalc.core.workload import Formats
from kvcalc.cost.parameters import parameters, weight_bytes
from kvcalc.importers.safetensors import import_safetensors, read_header, read_safetensors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CONFIG = {
    "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
    "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip


def _llama(dtype: Any = np.float16) -> dict[str, np.ndarray]:
    arrays = {"model.embed_tokens.weight": (32, 16), "lm_head.weight": (32, 16), "model.norm.weight": (16,)}
    for layer in range(2):
        block = {
            "self_attn.q_proj": (16, 16), "self_attn.k_proj": (8, 16), "self_attn.v_proj": (8, 16),
            "self_attn.o_proj": (16, 16), "mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16), "mlp.down_proj": (16, 24),
            "input_layernorm": (16,), "post_attention_layernorm": (16,),
        }  # fmt: skip
        arrays |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    return {name: np.zeros(shape, dtype) for name, shape in arrays.items()}


def _checkpoint(folder: Path, arrays: dict[str, np.ndarray], config: Mapping[str, Any] = _CONFIG) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(arrays, folder / "model.safetensors")
    return folder / "model.safetensors"


def _parse(header: bytes | dict[str, Any], data: bytes = b"", *, length: int | None = None) -> object:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    whole = struct.pack("<Q", len(text) if length is None else length) + text + data
    return read_header(lambda offset, size: whole[offset : offset + size], len(whole), where="m.safetensors")


def _entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_table_lists_dtypes_shapes_and_bytes(tmp_path: Path) -> None:
    arrays = {"a": np.zeros((3, 5), np.float32), "b": np.zeros((7,), np.int8), "empty": np.zeros((0, 4), np.float16)}
    save_file(arrays, tmp_path / "m.safetensors", metadata={"format": "pt"})
    table = read_safetensors(tmp_path / "m.safetensors")
    assert table.tensors["a"].shape == (3, 5)
    assert table.bytes_by_dtype() == {"F32": 60, "I8": 7, "F16": 0}
    assert (table.total_bytes, table.total_elements) == (67, 22)


def test_index_and_single_shard_stand_for_the_whole_checkpoint(tmp_path: Path) -> None:
    arrays = _llama()
    names = sorted(arrays)
    files = {name: f"model-0000{place % 2 + 1}-of-00002.safetensors" for place, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: arrays[name] for name in names if files[name] == file}, tmp_path / file)
    total = sum(array.nbytes for array in arrays.values())
    assert read_safetensors(tmp_path / "model-00002-of-00002.safetensors").total_bytes == total
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": files}))
    assert read_safetensors(index).total_bytes == total
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ProfileError, match=r"shard 'model-00001-of-00002\.safetensors' is missing"):
        read_safetensors(index)


def test_index_may_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(ProfileError, match="outside its folder"):
        read_safetensors(index)


def test_profile_holds_the_bytes_of_its_file(tmp_path: Path) -> None:
    arrays = _llama()
    for name in arrays:
        if "norm" in name:
            arrays[name] = arrays[name].astype(np.float32)
    model = import_safetensors(_checkpoint(tmp_path, arrays), "m")
    assert model.held_weight_bytes == sum(array.nbytes for array in arrays.values())
    assert model.weight_formats["attention"] == "fp16"
    assert model.weight_formats["vector"] == "fp32"
    formats = Formats(parts={part: parse_format(name) for part, name in model.weight_formats.items()})
    assert weight_bytes(model, formats) == model.held_weight_bytes


def test_quantised_parts_are_exact_mixtures(tmp_path: Path) -> None:
    arrays = _llama()
    for name in [name for name in arrays if "mlp" in name]:
        rows, columns = arrays[name].shape
        arrays[name] = np.zeros((rows, columns), np.int8)
        arrays[f"{name}_scale"] = np.zeros((rows, 1), np.float16)
    model = import_safetensors(_checkpoint(tmp_path, arrays), "m")
    size = sum(array.nbytes for name, array in arrays.items() if "mlp" in name)
    assert model.weight_formats["mlp"] == f"mixed-{size}/{parameters(model)['mlp']}:int8"


def test_other_towers_count_as_held_only(tmp_path: Path) -> None:
    arrays = _llama() | {"vision_tower.patch.weight": np.zeros((10, 10), np.float16)}
    model = import_safetensors(_checkpoint(tmp_path, arrays), "m")
    assert model.held_weight_bytes == sum(array.nbytes for array in arrays.values())
    assert any("200 bytes of the file belong to no part" in note for note in model.notes)


def test_missing_config_says_what_is_missing(tmp_path: Path) -> None:
    save_file(_llama(), tmp_path / "m.safetensors")
    with pytest.raises(ProfileError, match=r"config\.json is missing"):
        import_safetensors(tmp_path / "m.safetensors", "m")


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": _entry()}, b"", "truncated"),
        ({"a": _entry()}, bytes(9), "1 bytes after the last tensor"),
        ({"a": _entry(), "b": _entry(offsets=(4, 12))}, bytes(12), "overlap"),
        ({"a": _entry(offsets=(4, 12))}, bytes(12), "hole"),
        ({"a": _entry(offsets=(8, 0))}, bytes(8), "in -8 bytes"),
        ({"a": _entry(shape=(3,))}, bytes(8), "3 elements of F32 in 8 bytes"),
        ({"a": _entry(shape=(-2,))}, bytes(8), "has a size of -2"),
        ({"a": _entry(shape=(2**40, 2**40))}, bytes(8), "more than"),
        ({"a": _entry(shape=(2.0,))}, bytes(8), "no usable shape"),
        ({"a": _entry(dtype="F7")}, bytes(8), "unknown dtype 'F7'"),
        ({"a": 1}, b"", "entry"),
        (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{}}', bytes(8), "stands twice"),
        (b'{"a":' + b"[" * 100_000, b"", "entry"),
        (b'{"a":{"dtype":"' + b"x" * 10_000, b"", "does not end, or is too long"),
        (b'{"a', b"", "does not end"),
        (b"[]", b"", "missing"),
        (b"\xff\xff", b"", "UTF-8"),
        (b"{} {}", b"", "more text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_header_is_one_clear_error(header: bytes | dict[str, Any], data: bytes, message: str) -> None:
    with pytest.raises(ProfileError, match=message) as caught:
        _parse(header, data)
    assert caught.value.where == "m.safetensors"


@pytest.mark.parametrize(("length", "message"), [(10**6, "ends inside its header"), (10**12, "the format allows")])
def test_header_length_is_checked_before_anything_is_read(length: int, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        _parse(b"{}", length=length)
