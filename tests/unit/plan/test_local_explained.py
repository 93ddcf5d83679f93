"""``--explain`` with devices: each step's arithmetic gives its value, and the last ones are the report's own figures."""

from __future__ import annotations

import pytest

from kvcalc.questions.fit import Fit
from kvcalc.questions.size import Size

ASKED = [
    (Fit, {"model": "qwen3-30b-a3b", "weights": "q4_k_m", "devices": ["rtx-4070"], "host": "ddr5-5600x2"}),
    (Fit, {"model": "llama3.1-8b", "weights": "q4_0", "devices": ["rtx-3060", "12GiB"], "gpu_layers": "20"}),
    (Fit, {"model": "llama3.1-8b", "weights": "q4_0", "devices": ["m2-max-38"], "ctx_size": "8192"}),
    (Size, {"model": "llama3.1-8b", "weights": "q4_k_m", "devices": ["6GiB", "4GiB"]}),
    (Fit, {"model": "llama3.1-8b", "gpu": "rtx-4090"}),
]


@pytest.mark.parametrize(("question", "asked"), ASKED)
def test_each_step_can_be_evaluated(question, asked):
    answer = question(**asked).answer()
    steps = answer.explained()
    assert len(steps) > 3
    for step in steps:
        worked = eval(step.expression, {"__builtins__": {"min": min, "max": max}})  # noqa: S307  our own arithmetic
        assert worked == pytest.approx(step.value, rel=1e-9), step.quantity


def test_places_and_speed_are_those_of_the_report():
    question, asked = ASKED[0]
    answer = question(**asked).answer()
    values = {step.quantity: step.value for step in answer.explained()}
    (card,) = answer.report.devices
    assert values["rtx-4070.reserved_bytes"] == card.reserved_bytes
    assert values["host.reserved_bytes"] == answer.report.host.reserved_bytes
    assert values["tokens_per_s"] == pytest.approx(answer.report.tokens_per_s)


def test_without_rates_the_bytes_alone_are_explained():
    answer = Fit(model="llama3.1-8b", weights="q4_0", devices=["12GiB"]).answer()
    assert answer.report.speed is None
    assert {step.unit for step in answer.explained()} == {"B"}
