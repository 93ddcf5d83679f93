"""The explanation of every model type that is known, as arithmetic: evaluated, it gives the number that the report has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kvcalc
from kvcalc.core.formats import parse_format
from kvcalc.core.model import Full
from kvcalc.core.traced import term_of
from kvcalc.core.workload import Formats
from kvcalc.cost.cache import entry_bytes
from kvcalc.cost.sharding import splits_evenly
from kvcalc.importers.hugging_face import import_config
from kvcalc.plan.explain.named import named_formats

TYPES = Path(__file__).parents[2] / "conformance" / "transformers_types.json"
CASES: dict[str, Any] = json.loads(TYPES.read_text(encoding="utf-8"))
FIGURES = ("flop", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "ideal_s", "serial_s")


def _check(question: str, deployment: kvcalc.Deployment, report: Any, *, batch: int, context: int) -> None:
    for step in kvcalc.explain(question, deployment, batch=batch, context=context):
        value = eval(step.expression, {"__builtins__": {"max": max, "min": min}})  # noqa: S307  our own output
        assert value == pytest.approx(step.value, rel=1e-9), step
        if step.quantity in FIGURES and hasattr(report, step.quantity):
            assert step.value == getattr(report, step.quantity), step


@pytest.mark.slow
@pytest.mark.parametrize("spread", [{}, {"tensor_parallel": 2, "pipeline_parallel": 2}], ids=["one", "four"])
@pytest.mark.parametrize("name", CASES)
def test_a_step_and_a_prompt_of_every_type_are_explained(name: str, spread: dict[str, int]) -> None:
    model, _ = import_config(CASES[name]["config"], name=name)
    if not splits_evenly(model, spread.get("tensor_parallel", 1)):
        spread = {"tensor_parallel": 1, "pipeline_parallel": 2}
    deployment = kvcalc.deployment(model, gpu="h200", **spread)
    decode = kvcalc.decode(deployment, batches=[3], contexts=[100]).rows[0]
    _check("decode", deployment, decode, batch=3, context=100)
    prefill = kvcalc.prefill(deployment, batches=[3], prompts=[100]).rows[0]
    _check("prefill", deployment, prefill, batch=3, context=100)


@pytest.mark.parametrize("name", ["phi-2", "flan-t5-base", "whisper-base"])
def test_a_bias_of_the_head_and_an_encoder_are_explained(name: str) -> None:
    deployment = kvcalc.deployment(name, gpu="h200")
    report = kvcalc.prefill(deployment, batches=[2], prompts=[50]).rows[0]
    _check("prefill", deployment, report, batch=2, context=50)
    _check("decode", deployment, kvcalc.decode(deployment, batches=[2], contexts=[50]).rows[0], batch=2, context=50)


@pytest.mark.parametrize("tensor", [1, 2, 8])
@pytest.mark.parametrize("value", ["bf16", "fp8", "q8_0", "q4_0", "int8_per_token_head"])
@pytest.mark.parametrize("key", ["bf16", "fp8", "q8_0", "int8_per_token_head"])
def test_an_entry_with_keys_and_values_in_formats_of_their_own_is_explained(key: str, value: str, tensor: int) -> None:
    formats = Formats(key=parse_format(key), value=parse_format(value))
    for mixer in (Full(heads=8, kv_heads=4, head_dim=64, value_head_dim=32), Full(heads=8, kv_heads=4, head_dim=96)):
        expression = term_of(entry_bytes(mixer, named_formats(formats), tensor=tensor)).expression
        assert eval(expression, {"__builtins__": {}}) == entry_bytes(mixer, formats, tensor=tensor)  # noqa: S307
