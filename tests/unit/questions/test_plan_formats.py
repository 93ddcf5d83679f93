"""A plan's times are those of the multiplications that its printed command runs, in every format."""

from itertools import pairwise

import pytest

from kvcalc.engines.commands import start_command
from kvcalc.plan.weight_words import WORDS
from kvcalc.questions import ask
from kvcalc.questions.planning import priced_cards, variants_of
from kvcalc.sources import load_model

# The narrow floats that the tensor cores of each card multiply (the makers' data sheets).
UNITS = {"a100-80gb": (), "h100-sxm": ("fp8",), "b200": ("fp8", "fp4"), "mi300x": ("fp8",)}
# What kinds of checkpoints multiply in, where the card can. Source: llm-compressor's schemes; vLLM's ``quantization``.
MULTIPLIED = {
    "bitnet": "int8", "fp8": "fp8", "fp8-block": "fp8", "fp8-dynamic": "fp8", "mxfp4-w4a4": "fp4", "mxfp8-w8a8": "fp8",
    "nvfp4": "fp4", "w4a8": "int8", "w4afp8": "fp8", "w8a8": "int8",
}  # fmt: skip
FORMATS = ("bf16", "fp16", "fp32", "fp8_e4m3", "fp8_block128", "mxfp8", "fp8,head=fp8", "bf16,mlp=fp8", "int8", "mxfp4")


def variant(engine, card, weights, model="llama3.1-8b"):
    made, _ = variants_of(
        load_model(model), priced_cards([card], {}, nodes_of=None), engines=(engine,), weights=(weights,),
        kv_dtypes=(None,), options={}, calibration=None, drafting=None,
    )  # fmt: skip
    return made[0]


def command(made):
    """Return the command of a deployment as a plan prints it."""
    placed = made.deployment
    return start_command(
        placed.served_by, placed.model, placed.formats, placed.parallel, placed.options, weights=placed.asked.weights
    )


def multiplied(words, card, weights):
    """Return the unit that a command multiplies in: what it quantises or casts to, else what its checkpoint is for."""
    told = dict(pairwise(words))
    unit = told.get("--quantization") or MULTIPLIED.get(weights) or ("fp8" if "fp8" in weights else "")
    if unit in UNITS[card] or unit == "int8":
        return unit
    return {"float16": "fp16", "float32": "fp32"}.get(told.get("--dtype", ""), "bf16")


@pytest.mark.parametrize("card", UNITS)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_plan_multiplies_as_its_command_does(engine, card):
    for weights in (*WORDS, *FORMATS):
        made = variant(engine, card, weights)
        unit = made.deployment.formats.activations.unit
        assert unit == multiplied(command(made), card, weights), weights


@pytest.mark.parametrize(
    ("model", "card", "unit"),
    [
        ("qwen3-32b-fp8", "h100-sxm", "fp8"),
        ("qwen3-32b-fp8", "a100-80gb", "bf16"),
        ("deepseek-v3", "h200", "fp8"),
        ("gpt-oss-120b", "b200", "bf16"),
    ],
)
def test_a_checkpoint_of_narrow_floats_is_multiplied_as_the_card_can(model, card, unit):
    assert variant("vllm", card, None, model).deployment.formats.activations.unit == unit


def test_a_format_that_the_engine_makes_is_planned_as_the_same_checkpoint():
    """``--quantization fp8`` and a checkpoint of llm-compressor's FP8_DYNAMIC run the same kernels."""
    made, stored = (variant("vllm", "h100-sxm", weights) for weights in ("fp8", "fp8-dynamic"))
    runs = [each.timer(each.deployment).line(256, 256, (256, 256 * 1024), (0, 256), ()) for each in (made, stored)]
    assert runs[0] == runs[1]


def test_the_format_is_in_the_answer_and_said():
    report = ask("plan", {
        "model": "llama3.1-8b", "gpu": "h100-sxm", "prompt": "512", "output_tokens": "100", "rate": "5",
        "slo": "tpot_p95=50ms", "confirm": "1", "weights": "fp8",
    })  # fmt: skip
    first = report.options[0]
    assert "--quantization fp8" in first.command
    assert first.activations == "fp8"
    assert any("activations in fp8 on h100-sxm" in note for note in report.notes)
