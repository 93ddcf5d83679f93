"""The placement that llama.cpp's --fit chooses, from the bytes that the engine itself measured for each placement tried.

Only placements that the engine tried have bytes: any other step of the search fails.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from kvcalc.engines.llama_cpp.fitting import FitQuestion, Use, fitted

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
