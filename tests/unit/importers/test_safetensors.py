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
from kvcalc.importers.hugging_face import import_config
from kvcalc.importers.safetensors import import_safetensors, read_header, read_safetensors
from kvcalc.importers.tensor_checks import check_tensors
from kvcalc.importers.tensor_parts import with_stored_parts

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


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float16)


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
    assert table.total_bytes == 67


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


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../secret.safetensors", "outside its folder"),
        ("", "outside its folder"),
        ("x" * 300, "is missing"),  # longer than any file's name
        ("\ud800", "is missing"),  # not to be written in any encoding
    ],
)
def test_index_names_files_of_its_own_folder(tmp_path: Path, name: str, says: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ProfileError, match=says):
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


def test_towers_are_counted_as_stored(tmp_path: Path) -> None:
    arrays = _llama() | {
        "vision_tower.patch.weight": np.zeros((10, 10), np.float16),
        "audio_tower.conv.weight": np.zeros((3, 3), np.float32),
    }
    model = import_safetensors(_checkpoint(tmp_path, arrays), "m")
    assert {tower.part: tower.parameters for tower in model.towers} == {"vision": 100, "audio": 9}
    assert (model.weight_formats["vision"], model.weight_formats["audio"]) == ("fp16", "fp32")
    assert model.held_weight_bytes == sum(array.nbytes for array in arrays.values())


def test_missing_config_says_what_is_missing(tmp_path: Path) -> None:
    save_file(_llama(), tmp_path / "m.safetensors")
    with pytest.raises(ProfileError, match=r"config\.json is missing"):
        import_safetensors(tmp_path / "m.safetensors", "m")


_K = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 4}, "has 2 layers, by its tensors' names; the config implies 4"),
        ({"num_hidden_layers": 1}, "has 2 layers, by its tensors' names; the config implies 1"),
        (
            {"num_key_value_heads": 4},
            r"0.self_attn.k_proj.weight' has the shape \[8, 16\]; the config implies \[16, 16\]",
        ),
        ({"num_attention_heads": 8, "head_dim": 4}, r"the config implies \[16, 32\] \(attention.output of layer 0\)"),
        ({"intermediate_size": 48}, r"_proj.weight' has the shape \[(24, 16|16, 24)\]; the config implies"),
        ({"vocab_size": 64}, r"embed_tokens.weight' has the shape \[32, 16\]; the config implies \[64, 16\]"),
    ],
)
def test_config_that_contradicts_its_file_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = _checkpoint(tmp_path, _llama(), _CONFIG | changes)
    with pytest.raises(ProfileError, match=message) as caught:
        import_safetensors(path, "m")
    assert caught.value.where == str(path)
    assert "config.json" in caught.value.hint


@pytest.mark.parametrize(
    ("removed", "added", "message"),
    [
        ("lm_head", {}, "no output head"),
        ("layers.0", {}, "no tensor of layer 0"),
        ("", {"model.layers.7.mlp.up_proj.weight": _zeros(24, 16)}, "has 8 layers"),
        ("", {"lm_head.weight": _zeros(32, 8)}, r"lm_head.weight' has the shape \[32, 8\]"),
        ("k_proj", {_K: _zeros(8, 8)}, r"layers.1.self_attn.k_proj.weight' has the shape \[8, 8\]"),
    ],
)
def test_tensors_that_contradict_their_config_are_refused(
    tmp_path: Path, removed: str, added: dict[str, np.ndarray], message: str
) -> None:
    kept = {name: array for name, array in _llama().items() if not removed or removed not in name}
    with pytest.raises(ProfileError, match=message):
        import_safetensors(_checkpoint(tmp_path, kept | added), "m")


def test_experts_are_counted(tmp_path: Path) -> None:
    config = _CONFIG | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    arrays = {name: array for name, array in _llama().items() if ".mlp." not in name}
    for layer in range(2):
        block = f"model.layers.{layer}.block_sparse_moe"
        arrays[f"{block}.gate.weight"] = _zeros(4, 16)
        for expert in range(4):
            sides = {"w1": (24, 16), "w2": (16, 24), "w3": (24, 16)}
            arrays |= {f"{block}.experts.{expert}.{name}.weight": _zeros(*shape) for name, shape in sides.items()}
    assert not any("elements" in note for note in import_safetensors(_checkpoint(tmp_path, arrays, config), "m").notes)
    with pytest.raises(ProfileError, match="has 4 experts in layer 0, by its tensors' names; the config implies 8"):
        import_safetensors(_checkpoint(tmp_path, arrays, config | {"num_local_experts": 8}), "m")


@pytest.mark.parametrize("name", ["model.safetensors", "adapter_model.safetensors"])
def test_adapters_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(_CONFIG))
    stem = "base_model.model.model.layers.0.self_attn.q_proj"
    save_file({f"{stem}.lora_A.weight": _zeros(8, 16), f"{stem}.lora_B.weight": _zeros(16, 8)}, tmp_path / name)
    with pytest.raises(ProfileError, match=r"holds an adapter .* named like 'base_model\S+lora_A\.weight'"):
        import_safetensors(tmp_path / name, "m")
    save_file({"prompt_embeddings": _zeros(8, 16)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ProfileError, match="holds an adapter"):
        import_safetensors(tmp_path / "adapter_model.safetensors", "m")


def test_adapters_beside_a_models_own_weights_count_as_held_only(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.q_proj.lora_A.speech.weight": _zeros(10, 16)}
    model = import_safetensors(_checkpoint(tmp_path, _llama() | extra), "m")
    assert any("320 bytes of the file are not loaded" in note for note in model.notes)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, ("eh_proj.weight", "self_attn.q_proj.weight")),
        ({"num_nextn_predict_layers": 1}, ("self_attn.q_proj.weight",)),
    ],
)
def test_prediction_layers_may_follow_the_models_own(
    tmp_path: Path, config: dict[str, Any], names: tuple[str, ...]
) -> None:
    extra = {f"model.layers.2.{name}": _zeros(16, 16) for name in names}
    path = _checkpoint(tmp_path, _llama() | extra)
    profile, _ = import_config(_CONFIG, name="m")
    checked, _ = check_tensors(read_safetensors(path), profile, _CONFIG | config)
    assert checked.layers == 2
    stored = with_stored_parts(read_safetensors(path), profile)
    assert f"{len(names) * 512} bytes of the file are not loaded" in stored.notes[-1]
    assert stored.held_weight_bytes == sum(array.nbytes for array in _llama().values())


def test_text_model_of_a_multimodal_checkpoint_is_checked_whatever_leads_to_it(tmp_path: Path) -> None:
    for place, root in enumerate(("language_model.model.", "model.language_model.", "")):
        folder = tmp_path / str(place)
        folder.mkdir()
        arrays = {name.replace("model.", root): array for name, array in _llama().items()}
        arrays["vision_tower.layers.9.self_attn.k_proj.weight"] = _zeros(3, 3)
        assert import_safetensors(_checkpoint(folder, arrays), "m").layers == 2
        arrays[f"{root}layers.2.mlp.up_proj.weight"] = _zeros(24, 16)
        with pytest.raises(ProfileError, match="has 3 layers"):
            import_safetensors(_checkpoint(folder, arrays), "m")


def test_bare_model_has_no_head(tmp_path: Path) -> None:
    arrays = {name: array for name, array in _llama(np.float32).items() if "lm_head" not in name}
    model = import_safetensors(_checkpoint(tmp_path, arrays, _CONFIG | {"architectures": ["LlamaModel"]}), "m")
    assert model.head is None
    assert any("no output head" in note for note in model.notes)
    formats = Formats(parts={part: parse_format(name) for part, name in model.weight_formats.items()})
    assert weight_bytes(model, formats) == model.held_weight_bytes


@pytest.mark.parametrize("suffix", ["qweight", "weight_packed", "weight"])
def test_packed_weights_are_not_compared(tmp_path: Path, suffix: str) -> None:
    arrays: dict[str, np.ndarray] = {}
    for name, array in _llama().items():
        if ".self_attn." in name or ".mlp." in name:
            stem = name.removesuffix("weight")
            rows, columns = array.shape
            arrays[stem + suffix] = np.zeros((rows, columns // 8), np.int32)
            arrays[f"{stem}weight_scale"] = _zeros(rows, 1)
        else:
            arrays[name] = array
    model = import_safetensors(_checkpoint(tmp_path, arrays), "m")
    assert model.held_weight_bytes == sum(array.nbytes for array in arrays.values())
    assert any("packed or not named as usual" in note for note in model.notes)
    with pytest.raises(ProfileError, match="implies 3"):
        import_safetensors(_checkpoint(tmp_path, arrays, _CONFIG | {"num_hidden_layers": 3}), "m")


def test_unknown_names_are_noted_and_never_refused(tmp_path: Path) -> None:
    arrays = {f"net.{place}": array for place, array in enumerate(_llama().values())}
    notes = import_safetensors(_checkpoint(tmp_path, arrays), "m").notes
    assert any("were not checked against the config" in note for note in notes)
    assert any("belongs to no part that is known" in note for note in notes)
    arrays = _llama() | {"model.layers.0.mlp.extra_gate.weight": _zeros(24, 16)}
    notes = import_safetensors(_checkpoint(tmp_path, arrays), "m").notes
    assert "by their names 2688 elements are of mlp; the config implies 2304" in notes


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


def test_metadata_that_repeats_is_refused_at_once() -> None:
    """Checked at the end of the header, a hostile one of 100 MB took ten seconds."""
    with pytest.raises(ProfileError, match=r"twice \(at character 3\d of"):
        _parse(b'{"__metadata__":{},"__metadata__":{},' + b'"__metadata__":{}' * 1000)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({f"key{number}": {} for number in range(200)}, "more than metadata and a weight_map"),
        ({"weight_map": {f"tensor{number}": f"shard{number}" for number in range(10_002)}}, "more than 10000 shards"),
    ],
)
def test_index_that_no_checkpoint_has_is_refused(tmp_path: Path, index: dict[str, Any], message: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    with pytest.raises(ProfileError, match=message):
        read_safetensors(path)


def test_file_with_less_than_the_weights_is_refused(tmp_path: Path) -> None:
    """A file without a model beside a config: its bytes are not those of the model."""
    path = _checkpoint(tmp_path, {"other.weight": _zeros(4, 4)})
    with pytest.raises(ProfileError, match="tensors of 32 bytes are not the weights"):
        import_safetensors(path, "m")
