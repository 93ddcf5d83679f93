"""The placement that llama.cpp's --fit chooses, from the bytes that the engine itself measured for each placement tried.

Only placements that the engine tried have bytes: any other step of the search fails.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import kvcalc
from kvcalc.core.model import Mixture
from kvcalc.engines.llama_cpp import LlamaCppOptions
from kvcalc.engines.llama_cpp.fitting import FitQuestion, Use, fitted
from kvcalc.engines.llama_cpp.weights import model_weights
from kvcalc.plan.local.memory import local_memory
from kvcalc.plan.local.setup import LocalDevice, LocalSetup
from kvcalc.plan.local.trials import Trials

TRUTH = os.environ.get("KVCALC_TRUTH")

CASES = json.loads((Path(__file__).parent / "llama_cpp_fit.json").read_text(encoding="utf-8"))["cases"]
NAMES = ("D0", "D1", "D2")


def _asked(case):
    memories = tuple(case["devices_bytes"])
    return FitQuestion(
        layers=case["layers"],
        has_experts=case["experts"],
        trained_context=case["trained_context"],
        free_bytes=memories,
        context=case["context"],
        margin_bytes=(case["margin_bytes"],) * len(memories),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['file']}-{len(case['devices_bytes'])}")
def test_the_engine_ends_with_the_same_options(case):
    def measure(trial):
        key = hashlib.sha256(trial.flags(NAMES).encode()).hexdigest()[:12]
        return [Use(*use) for use in case["measured"][key]]

    assert fitted(_asked(case), measure).flags(NAMES) == case["fit"]


def test_cases_cover_every_kind_of_end():
    ends = " ".join(case["fit"] for case in CASES)
    for pattern in (r"ffn_(gate|up|gate_up|down).*=D", r"ffn_(gate|gate_up|down).*=CPU", r"ffn_down.*=D1", "exps=CPU"):
        assert pattern in ends
    assert {len(case["devices_bytes"]) for case in CASES} == {1, 2, 3}


def _truth():
    path = Path(TRUTH) / "llamacpp" if TRUTH else None
    if path is None:
        return []
    return [json.loads(line) for line in (path / "fit.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.skipif(not TRUTH, reason="KVCALC_TRUTH is not set")
def test_with_our_own_bytes_the_engines_choice_is_reproduced():
    """Nine of ten at least: bytes of weights, context and compute buffers are all in it."""
    cases = _truth()
    whole, quick = ([_chosen_by_ours(case, quick=quick) for case in cases] for quick in (False, True))
    assert sum(ours == case["fit"] for ours, case in zip(whole, cases, strict=True)) / len(cases) >= 0.9
    # buffers that are replayed only where they decide lead to the same end
    assert quick == whole


def _chosen_by_ours(case, *, quick):
    model = kvcalc.load_model(Path(TRUTH) / "llamacpp" / "headers" / f"{case['file']}.gguf").text_only()
    asked = dict(zip(case["args"][::2], case["args"][1::2], strict=True))
    options = LlamaCppOptions(
        context=4096,
        cache_type_k=asked.get("-ctk", "f16"),
        cache_type_v=asked.get("-ctv", "f16"),
        flash_attn=asked.get("-fa", "auto"),
    )
    memories = tuple(case["devices_bytes"])
    devices = tuple(LocalDevice(name="device", memory_bytes=memory) for memory in memories)
    setup = LocalSetup(
        model=model, weights=model_weights(model, None), format="", file="", context=options, devices=devices
    )

    def exact(trial):
        return local_memory(replace(setup, context=replace(options, context=trial.context)), trial.options)

    def measure(trial):
        memory = exact(trial)
        return [Use(memory.weights[index], memory.total(index)) for index in range(len(memories))]

    question = FitQuestion(
        layers=model.layers,
        has_experts=any(isinstance(block.mlp, Mixture) for block in model.block_counts),
        trained_context=model.context_limit,
        free_bytes=memories,
        context=None if "-c" not in asked else int(asked["-c"]),
        margin_bytes=(int(asked.get("-fitt", 1024)) * 2**20,) * len(memories),
    )
    found = fitted(question, Trials(setup, question, exact).used if quick else measure)
    return found.flags([f"RPC0[127.0.0.1:5005{port}]" for port in (2, 3, 4)])
