"""Quantisation recipes of llama.cpp, held against what its own tool prints: bytes of all tensors, and tensors of each type.

`llama_cpp_recipes.json` holds, by catalogue name and recipe, the bytes and the tensors of each quantised type that
``llama-quantize --dry-run`` of llama.cpp 0c1e57098bba gives files that its converter made of the class's tensors. Where
``KVCALC_TRUTH`` names a folder with the full ground truth, all of its models are held against it, from their configs, and the
rule alone against the tensors of real headers.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvcalc
from kvcalc.engines.llama_cpp.quantised import quantised_file
from kvcalc.engines.llama_cpp.recipes import Geometry, GgufTensor, tensor_bytes, tensor_types
from kvcalc.importers.checkpoint import Tensor, TensorTable
from kvcalc.importers.gguf import parse_header
from kvcalc.importers.gguf_families import gguf_profile
from kvcalc.importers.hugging_face import import_config, read_config_file

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("llama_cpp_recipes.json").read_text(encoding="utf-8"))
FULL = Path(os.environ["KVCALC_TRUTH"]) if os.environ.get("KVCALC_TRUTH") else None
TRUTH: dict[str, Any] = {}
if FULL is not None:
    lines = (FULL / "llamacpp" / "recipes.jsonl").read_text(encoding="utf-8").splitlines()
    TRUTH = {case["model"]: case["recipes"] for case in map(json.loads, lines)}
_NAMES = {"fp16": "f16", "fp32": "f32"}


@pytest.mark.parametrize("model", CASES)
def test_a_recipe_of_a_catalogue_model_is_exact(model: str) -> None:
    for recipe, (tensor_bytes_, types) in CASES[model].items():
        weights = kvcalc.size(kvcalc.deployment(model, weights=recipe.upper(), engine="llama.cpp")).weights
        assert weights.total_bytes == tensor_bytes_, recipe
        file = quantised_file(kvcalc.load_model(model).text_only(), recipe)
        assert {_NAMES.get(kind, kind): count for kind, count in file.types.items() if kind != "fp32"} == types, recipe


# The files behind these were written without a vocabulary, so that their converter left the token table out.
_NO_TABLE = ("gemma3_text", "gemma4_text")


def _as_converted(model: kvcalc.ModelProfile) -> kvcalc.ModelProfile:
    if model.architecture in _NO_TABLE:
        return replace(model, embeddings=(replace(model.embeddings[0], rows=0), *model.embeddings[1:]))
    if model.architecture == "falcon_mamba" and model.head is not None:  # its two tables of zeros were taken for one
        return replace(model, head=replace(model.head, tied=True))
    return model


@pytest.mark.skipif(FULL is None, reason="KVCALC_TRUTH is not set")
@pytest.mark.parametrize("name", TRUTH)
def test_a_recipe_of_a_config_is_exact(name: str) -> None:
    assert FULL is not None
    model = import_config(read_config_file(FULL / "configs" / f"{name}.json"), name=name)[0]
    for recipe, case in TRUTH[name].items():
        file = quantised_file(_as_converted(model), recipe.lower())
        assert file.total_bytes == case["tensor_bytes"], recipe


@pytest.mark.skipif(FULL is None, reason="KVCALC_TRUTH is not set")
@pytest.mark.parametrize("name", TRUTH)
def test_the_rule_gives_each_tensor_of_a_header_its_type(name: str) -> None:
    assert FULL is not None
    path = FULL / "llamacpp" / "headers" / f"{name}.Q4_K_M.gguf"
    if not path.exists():
        pytest.skip("no header of this model")
    header = parse_header(path.read_bytes(), 2**50, where=name)
    tensors = [GgufTensor(key, tensor.shape, "other") for key, tensor in header.tensors.items()]
    geometry = _geometry(header.metadata)
    for recipe, case in TRUTH[name].items():
        types = tensor_types(recipe, geometry, tensors)
        assert Counter(_NAMES.get(kind, kind) for kind in types.values()) == case["types"], recipe
        assert sum(tensor_bytes(tensor, types[tensor.name]) for tensor in tensors) == case["tensor_bytes"], recipe


@pytest.mark.skipif(FULL is None, reason="KVCALC_TRUTH is not set")
def test_headers_alone_are_read_with_the_bytes_of_their_files() -> None:
    assert FULL is not None
    paths = sorted((FULL / "llamacpp" / "headers").glob("*.gguf"))
    assert paths
    for path in paths:
        name = path.name.removesuffix(".Q4_K_M.gguf")
        if name != "_default__hy_v3":  # an architecture that files are not read of
            assert kvcalc.load_model(path).held_weight_bytes == TRUTH[name]["Q4_K_M"]["tensor_bytes"], name


def _geometry(metadata: Any) -> Geometry:
    architecture = metadata["general.architecture"]

    def first(key: str, default: int) -> int:
        value = metadata.get(f"{architecture}.{key}", default)
        return int(value[0] if isinstance(value, list) else value)

    heads = first("attention.head_count", 0)
    shared, layers = first("attention.head_count_kv", heads), first("block_count", 0)
    return Geometry(
        architecture=architecture,
        layers=layers,
        group=heads // shared if shared else 0,
        experts=first("expert_count", 0),
        seventy=layers == 80 and architecture in ("llama", "qwen2") and heads != shared,
    )


@pytest.mark.skipif(FULL is None, reason="KVCALC_TRUTH is not set")
@pytest.mark.parametrize("name", TRUTH)
def test_a_recipe_of_a_file_in_16_bits_is_exact(name: str) -> None:
    assert FULL is not None
    path = FULL / "llamacpp" / "headers" / f"{name}.Q4_K_M.gguf"
    if not path.exists() or name == "_default__hy_v3":
        pytest.skip("no header of this model, or of an architecture that files are not read of")
    header = parse_header(path.read_bytes(), 2**50, where=f"{name}.gguf")
    plain = {
        key: tensor if tensor.dtype == "fp32" else Tensor("fp16", tensor.shape, 2 * tensor.elements)
        for key, tensor in header.tensors.items()
    }
    model = gguf_profile(header.metadata, TensorTable(f"{name}.gguf", plain), name=name)
    for recipe, case in TRUTH[name].items():
        assert quantised_file(model, recipe.lower()).total_bytes == case["tensor_bytes"], recipe
