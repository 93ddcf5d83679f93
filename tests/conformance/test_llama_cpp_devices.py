"""Bytes of weights and context on each device and the host, held against what llama.cpp itself computes.

`llama_cpp_memory.json` holds, by catalogue name, cases of options, GiB of each device, and the bytes of weights, context and
compute buffers of each device and last of the host, as ``llama-fit-params`` of llama.cpp 0c1e57098bba prints them for Q4_K_M
files (devices over RPC that pad rows as CUDA does). Where ``KVCALC_TRUTH`` names a folder with the full ground truth, all
1,101 cases of its 69 models are held against it, from the headers of their files and from their configs.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kvcalc
from kvcalc.engines.llama_cpp import LlamaCppOptions, layout
from kvcalc.engines.llama_cpp.backends import MEMORY
from kvcalc.engines.llama_cpp.devices import place_context
from kvcalc.engines.llama_cpp.placement import PlacementOptions, place
from kvcalc.engines.llama_cpp.weights import all_layers, model_weights, place_weights
from kvcalc.importers.gguf import import_gguf
from kvcalc.importers.hugging_face import import_config, read_config_file

GIB = 2**30
SLIM: dict[str, Any] = json.loads(Path(__file__).with_name("llama_cpp_memory.json").read_text(encoding="utf-8"))
FULL = Path(os.environ["KVCALC_TRUTH"]) if os.environ.get("KVCALC_TRUTH") else None
CASES: dict[str, list[Any]] = {}
if FULL is not None:
    for line in (FULL / "llamacpp" / "memory.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        memory = list(case["memory"].values())
        CASES.setdefault(case["file"], []).append([" ".join(case["args"]), case["devices_bytes"], memory])
full_only = pytest.mark.skipif(FULL is None, reason="KVCALC_TRUTH is not set")

PLACES: dict[str, tuple[str, Any]] = {
    "-ngl": ("gpu_layers", int),
    "-ts": ("tensor_split", lambda text: tuple(map(float, text.split(",")))),
    "-sm": ("split_mode", str),
    "-ncmoe": ("n_cpu_moe", int),
}
CONTEXTS: dict[str, tuple[str, Any]] = {
    "-c": ("context", int), "-ctk": ("cache_type_k", str), "-ctv": ("cache_type_v", str), "-fa": ("flash_attn", str),
    "-ub": ("ubatch", int), "-b": ("batch", int), "-np": ("parallel", int),
}  # fmt: skip


def options_of(arguments: str) -> tuple[PlacementOptions, LlamaCppOptions]:
    words = iter(arguments.split())
    placed: dict[str, Any] = {}
    context: dict[str, Any] = {}
    for word in words:
        if word in PLACES:
            name, read = PLACES[word]
            placed[name] = read(next(words))
        elif word in CONTEXTS:
            name, read = CONTEXTS[word]
            context[name] = read(next(words))
        else:
            placed |= {"-cmoe": {"cpu_moe": True}, "-nkvo": {"kv_offload": False}}.get(word, {})
            context |= {"--swa-full": {"swa_full": True}}.get(word, {})
    return PlacementOptions(**placed), LlamaCppOptions(**context)


def bytes_of(model: kvcalc.ModelProfile, recipe: str | None, arguments: str, memories: list[int]) -> list[list[int]]:
    """Weights and context of each device that llama.cpp uses, and last of the host."""
    asked, context = options_of(arguments)
    placement = place(asked, layers=all_layers(model), free_bytes=memories)
    backends = [MEMORY] * len(memories)
    weights = place_weights(model, model_weights(model, recipe), placement, backends).by_place
    kept = place_context(layout(model, context), placement, backends)
    return [[weights[home], kept[home]] for home in (*placement.used, None)]


def wrong(model: kvcalc.ModelProfile, recipe: str | None, cases: list[Any]) -> list[str]:
    return [
        arguments
        for arguments, memories, truth in cases
        if bytes_of(model, recipe, arguments, memories) != [each[:2] for each in truth]
    ]


@pytest.mark.parametrize("name", SLIM)
def test_weights_and_context_of_a_catalogue_model_are_exact_on_every_device(name: str) -> None:
    cases = [[arguments, [size * GIB for size in gib], truth] for arguments, gib, truth in SLIM[name]]
    assert len(cases) >= 12
    assert wrong(kvcalc.load_model(name).text_only(), "q4_k_m", cases) == []


ASKED = {
    "-c": "ctx_size", "-ngl": "gpu_layers", "-ts": "tensor_split", "-sm": "split_mode", "-ncmoe": "n_cpu_moe",
    "-ctk": "cache_type_k", "-ctv": "cache_type_v", "-fa": "flash_attn", "-ub": "ubatch", "-b": "batch_size",
    "-np": "parallel",
}  # fmt: skip
FLAGS = {"-cmoe": ("cpu_moe", True), "-nkvo": ("kv_offload", False), "--swa-full": ("swa_full", True)}


def asked_of(arguments: str) -> dict[str, Any]:
    """The same options, as parameters of the question."""
    words = iter(arguments.split())
    return dict((ASKED[word], next(words)) if word in ASKED else FLAGS[word] for word in words)


@pytest.mark.parametrize("name", ["yi-34b", "gpt-oss-120b", "falcon-h1-0.5b"])
def test_the_question_gives_the_bytes_of_every_device(name: str) -> None:
    for arguments, gib, truth in SLIM[name]:
        given = {"model": name, "weights": "q4_k_m", "device": [f"{size}GiB" for size in gib]} | asked_of(arguments)
        report = kvcalc.ask("fit", given)
        used = [0] if "-sm none" in arguments else range(len(gib))
        places = [*(report.devices[index] for index in used), report.host]
        assert [[each.weight_bytes, each.context_bytes] for each in places] == [each[:2] for each in truth], arguments


@full_only
def test_what_llama_cpp_refuses_is_refused() -> None:
    assert FULL is not None
    lines = (FULL / "llamacpp" / "refused.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    for case in map(json.loads, lines):
        model = str(FULL / "llamacpp" / "headers" / f"{case['file']}.gguf")
        given = asked_of(" ".join(case["args"]))
        devices = [f"{size}B" for size in case["devices_bytes"]]
        with pytest.raises(kvcalc.InputError, match="whose blocks are 32"):
            kvcalc.ask("fit", {"model": model, "device": devices} | given)


@full_only
def test_all_cases_are_there() -> None:
    assert (sum(map(len, CASES.values())), len(CASES)) == (1101, 69)


@full_only
@pytest.mark.parametrize("file", CASES)
def test_weights_and_context_of_a_header_are_exact_on_every_device(file: str) -> None:
    assert FULL is not None
    model = import_gguf(FULL / "llamacpp" / "headers" / f"{file}.gguf", file)
    assert wrong(model, None, CASES[file]) == []


@cache
def config_of(file: str) -> kvcalc.ModelProfile:
    assert FULL is not None
    name = file.removesuffix(".Q4_K_M")
    model = import_config(read_config_file(FULL / "configs" / f"{name}.json"), name=name)[0].text_only()
    if model.architecture == "falcon_mamba" and model.head is not None:
        # the file was made of tables of zeros, which its converter took for one
        return replace(model, head=replace(model.head, tied=True))
    return model


@full_only
@pytest.mark.parametrize("file", CASES)
def test_weights_and_context_of_a_config_by_recipe_are_exact_on_every_device(file: str) -> None:
    assert wrong(config_of(file), "q4_k_m", CASES[file]) == []
