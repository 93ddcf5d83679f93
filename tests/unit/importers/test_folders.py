"""Folders as models: their weights where these are complete, else their config; and what lint reads of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from kvcalc import api
from kvcalc.core.errors import ProfileError

if TYPE_CHECKING:
    from pathlib import Path

_CONFIG = {"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
           "num_key_value_heads": 2, "intermediate_size": 24, "tie_word_embeddings": True}  # fmt: skip
_BLOCK = {"self_attn.q_proj": (16, 16), "self_attn.k_proj": (8, 16), "self_attn.v_proj": (8, 16),
          "self_attn.o_proj": (16, 16), "mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16), "mlp.down_proj": (16, 24),
          "input_layernorm": (16,), "post_attention_layernorm": (16,)}  # fmt: skip
_ARRAYS = {"model.embed_tokens.weight": np.zeros((32, 16), np.float32), "model.norm.weight": np.zeros(16, np.float32)} | {
    f"model.layers.{layer}.{name}.weight": np.zeros(shape, np.float32)
    for layer in range(2) for name, shape in _BLOCK.items()
}  # fmt: skip
_BYTES = sum(array.nbytes for array in _ARRAYS.values())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "My-Model").mkdir()
    (tmp_path / "My-Model" / "config.json").write_text(json.dumps(_CONFIG))
    return tmp_path / "My-Model"


def _notes(folder: Path) -> str:
    return "\n".join(api.load_model(folder).notes)


def test_complete_file_gives_its_own_bytes(folder: Path) -> None:
    assert api.load_model(folder).held_weight_bytes is None
    assert "weight bytes" not in _notes(folder)
    save_file(_ARRAYS, folder / "model.safetensors")
    save_file({"prompt": np.zeros(8)}, folder / "adapter_model.safetensors")
    save_file({"other": np.zeros(8)}, folder / "consolidated.safetensors")
    model = api.load_model(str(folder))
    assert (model.held_weight_bytes, model.name, model.weight_formats["attention"]) == (_BYTES, "my-model", "fp32")
    assert api.load_model(folder / "config.json").held_weight_bytes is None


def test_sole_file_of_any_name_is_the_model(folder: Path) -> None:
    save_file(_ARRAYS, folder / "weights.safetensors")
    assert api.load_model(folder).held_weight_bytes == _BYTES


def test_files_that_are_not_the_models_for_certain_are_named(folder: Path) -> None:
    save_file(_ARRAYS, folder / "one.safetensors")
    save_file(_ARRAYS, folder / "two.safetensors")
    assert api.load_model(folder).held_weight_bytes is None
    assert "one.safetensors, two.safetensors not read, as none is the config's for certain" in _notes(folder)


@pytest.mark.parametrize("gone", ["missing", "pointer"])
@pytest.mark.parametrize("indexed", ["index", "shards alone"])
def test_missing_shard_is_named_and_the_config_read(folder: Path, indexed: str, gone: str) -> None:
    paths = [folder / f"model-0000{place}-of-00002.safetensors" for place in (1, 2)]
    files = {name: paths[place % 2].name for place, name in enumerate(_ARRAYS)}
    for path in paths:
        save_file({name: array for name, array in _ARRAYS.items() if files[name] == path.name}, path)
    if indexed == "index":
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert api.load_model(folder).held_weight_bytes == _BYTES
    assert api.load_model(folder).name == "my-model"
    paths[1].unlink()
    if gone == "pointer":
        paths[1].write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    model = api.load_model(folder)
    assert (model.held_weight_bytes, model.layers) == (None, 2)
    assert "model-00002-of-00002.safetensors is missing: weight bytes are parameters x" in _notes(folder)


def test_many_missing_shards_are_counted(folder: Path) -> None:
    files = {f"t{place}": f"model-{place:05d}-of-00009.safetensors" for place in range(1, 10)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert "00003-of-00009.safetensors and 6 more are missing" in _notes(folder)


def test_broken_weights_are_an_error_and_not_passed_over(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x00" * 5)
    with pytest.raises(ProfileError, match="not a safetensors file"):
        api.load_model(folder)


def test_gguf_files_are_read_where_they_are_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    model = api.load_model("llama2-70b")
    monkeypatch.setattr("kvcalc.importers.gguf.import_gguf", lambda path, _: read.append(path.name) or model)
    with pytest.raises(ProfileError, match=r"no config\.json and no \.gguf file"):
        api.load_model(tmp_path)
    (tmp_path / "m-Q4-00002-of-00002.gguf").touch()
    with pytest.raises(ProfileError, match="without its first part: m-Q4-00002"):
        api.load_model(tmp_path)
    (tmp_path / "m-Q4-00001-of-00002.gguf").touch()
    (tmp_path / "mmproj-m.gguf").touch()
    api.load_model(tmp_path)
    assert read == ["m-Q4-00001-of-00002.gguf"]
    (tmp_path / "m-Q8.gguf").touch()
    with pytest.raises(ProfileError, match=r"several models: m-Q4-00001-of-00002\.gguf, m-Q8\.gguf") as caught:
        api.load_model(tmp_path)
    assert caught.value.hint == "give one of the files"


def test_lint_of_weights_is_that_of_the_config_beside_them(folder: Path) -> None:
    wanted = [use.key for use in api.lint_config(folder / "config.json")]
    for source in (folder, folder / "model.safetensors", folder / "model.safetensors.index.json"):
        if source != folder:
            source.touch()
        assert [use.key for use in api.lint_config(source)] == wanted


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", r"no config\.json in the folder"),
        ("model.safetensors", r"no config\.json beside the file"),
        ("m.gguf", r"a \.gguf file describes itself; only the keys of a config\.json can be linted"),
        ("m.yaml", "this is a profile"),
    ],
)
def test_lint_without_a_config_says_what_it_reads(tmp_path: Path, name: str, message: str) -> None:
    if name:
        with pytest.raises(ProfileError, match="no such file"):
            api.lint_config(tmp_path / name)
        (tmp_path / name).touch()
    with pytest.raises(ProfileError, match=message):
        api.lint_config(tmp_path / name)
