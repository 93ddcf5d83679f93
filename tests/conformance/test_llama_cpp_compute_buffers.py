"""Compute buffers of each device and the host, held against what llama.cpp itself reserves.

The cases are those of `test_llama_cpp_devices.py`: the third figure of each device and of the host. `llama_cpp_compute.json`
holds five cases each of 22 further models, of architectures that are not among these: options, GiB of each device, and compute
buffers of each device and last of the host, computed in the same way on headers that were written by hand for Q4_K_M files.
`llama_cpp_compute_settings.json` holds settings that those lack, of catalogue models: options, the most outputs where they were
asked for, GiB and buffers likewise. `-kvu` and the outputs were set in the tool's context; with `--no-repack` matrices of the
host stay as they are, as with CUDA.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvcalc
from kvcalc.engines.llama_cpp.backends import MEMORY
from kvcalc.engines.llama_cpp.compute import ComputeBytes, compute_bytes
from kvcalc.engines.llama_cpp.placement import place
from kvcalc.engines.llama_cpp.weights import all_layers, model_weights
from kvcalc.importers.gguf import import_gguf

from .test_llama_cpp_devices import CASES, FULL, GIB, SLIM, config_of, full_only, options_of

FURTHER: dict[str, Any] = json.loads(Path(__file__).with_name("llama_cpp_compute.json").read_text(encoding="utf-8"))
SETTINGS: dict[str, Any] = json.loads(
    Path(__file__).with_name("llama_cpp_compute_settings.json").read_text(encoding="utf-8")
)
# Files of models that see have the name of those that do not: their graph is taken for the former's, and said to be.
AMBIGUOUS = ("zai-org__GLM-4.5V.Q4_K_M",)


def compute_of(model: kvcalc.ModelProfile, recipe: str | None, arguments: str, memories: list[int]) -> ComputeBytes:
    asked, context = options_of(arguments)
    placement = place(asked, layers=all_layers(model), free_bytes=memories)
    weights = model_weights(model, recipe)
    return compute_bytes(model, placement, context, weights=weights, backends=[MEMORY] * len(memories))


def wrong(model: kvcalc.ModelProfile, recipe: str | None, cases: list[Any]) -> set[str]:
    """Options of the cases that are not equal to the byte on every device and the host."""
    found = set()
    for arguments, memories, truth in cases:
        answer = compute_of(model, recipe, arguments, memories)
        used = [size for size, given in zip(answer.devices, _used(arguments, memories), strict=True) if given]
        if [*used, answer.host] != [each[2] for each in truth]:
            found.add(arguments)
    return found


def _used(arguments: str, memories: list[int]) -> list[bool]:
    alone = "-sm none" in arguments
    return [not alone or device == 0 for device in range(len(memories))]


@pytest.mark.parametrize("name", SLIM)
def test_compute_buffers_of_a_catalogue_model_are_exact_on_every_device(name: str) -> None:
    cases = [[arguments, [size * GIB for size in gib], truth] for arguments, gib, truth in SLIM[name][::3]]
    assert len(cases) >= 4
    assert wrong(kvcalc.load_model(name).text_only(), "q4_k_m", cases) == set()


@pytest.mark.parametrize("name", SETTINGS)
def test_compute_buffers_of_other_settings_are_exact_on_every_device(name: str) -> None:
    model = kvcalc.load_model(name).text_only()
    weights = model_weights(model, "q4_k_m")
    for arguments, outputs, gib, truth in SETTINGS[name]:
        asked, context = options_of(arguments)
        asked = replace(asked, op_offload="--no-op-offload" not in arguments)
        context = replace(context, kv_unified="-kvu" in arguments)
        placement = place(asked, layers=all_layers(model), free_bytes=[size * GIB for size in gib])
        backends = [replace(MEMORY, pins_host="--no-repack" in arguments)] * len(gib)
        answer = compute_bytes(model, placement, context, weights=weights, backends=backends, outputs=outputs)
        assert [*answer.devices, answer.host] == truth, arguments


@pytest.mark.parametrize("name", FURTHER)
def test_compute_buffers_of_further_architectures_are_exact_on_every_device(name: str) -> None:
    cases = [
        [args, [size * GIB for size in gib], [[0, 0, each] for each in truth]] for args, gib, truth in FURTHER[name]
    ]
    assert len(cases) == 5
    assert wrong(kvcalc.load_model(name).text_only(), "q4_k_m", cases) == set()


@full_only
@pytest.mark.parametrize("file", CASES)
def test_compute_buffers_of_a_header_are_exact_on_every_device(file: str) -> None:
    assert FULL is not None
    model = import_gguf(FULL / "llamacpp" / "headers" / f"{file}.gguf", file)
    assert wrong(model, None, CASES[file]) == set()
    assert compute_of(model, None, *CASES[file][0][:2]).exact is (file not in AMBIGUOUS)


@full_only
@pytest.mark.parametrize("file", CASES)
def test_compute_buffers_of_a_config_by_recipe_are_exact_on_every_device(file: str) -> None:
    assert wrong(config_of(file), "q4_k_m", CASES[file]) == set()
