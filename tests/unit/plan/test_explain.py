"""An explanation is arithmetic: evaluated, it gives the number it explains."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvcalc
from kvcalc.api import profile_names
from kvcalc.core.model import Block, Full, Indexer, Latent, Mixture, ModelProfile

TOTALS = (
    "flop",
    "weight_bytes",
    "kv_read_bytes",
    "kv_write_bytes",
    "intensity_flop_per_byte",
    "ideal_s",
    "serial_s",
    "tokens_per_s",
    "tokens_per_s_per_sequence",
    "tokens_per_s_per_gib",
    "memory_needed_bytes",
)
# One of each kind of layer: full, sliding, chunked, shared, cross, latent, compressed, state; mixtures.
KINDS = (
    "llama3.1-8b",
    "gemma-3-27b",
    "llama4-maverick",
    "gemma-3n-e2b",
    "bart-base",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "glm-5.2",
    "bamba-9b",
    "gpt-oss-20b",
    "kimi-k3",
)


def evaluated(step):
    return eval(step.expression, {"__builtins__": {"max": max, "min": min}})  # noqa: S307  our own output


def check(steps):
    """Evaluate every expression; return the values by quantity, each of which stands once."""
    for step in steps:
        assert evaluated(step) == pytest.approx(step.value, rel=1e-9), step
        assert "forward_cost" not in step.formula, step
    found = {step.quantity: step.value for step in steps}
    assert len(found) == len(steps)
    return found


def check_pass(question, deployment, *, batch, context):
    """Check the explanation of a decode step or a prefill against the row of its report."""
    found = check(kvcalc.explain(question, deployment, batch=batch, context=context))
    lengths = {"contexts" if question == "decode" else "prompts": [context]}
    row = getattr(kvcalc, question)(deployment, batches=[batch], **lengths).rows[0]
    for name in TOTALS:
        if hasattr(row, name):
            assert found[name] == getattr(row, name), name
    spread = getattr(row, "experts", None)
    if spread is not None:
        assert (found["experts.best_s"], found["experts.worst_s"]) == (spread.best_s, spread.worst_s)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", profile_names("model"))
def test_every_expression_gives_its_value(name):
    deployment = kvcalc.deployment(name, gpu="h200")
    context = min(3000, deployment.model.context_limit or 3000)
    size = kvcalc.size(deployment, context=context, batch=7)
    steps = kvcalc.explain("size", deployment, context=context, batch=7)
    found = {step.quantity: step.value for step in steps}
    for step in steps:
        assert evaluated(step) == pytest.approx(step.value, rel=1e-12), step
    assert found["kv.bytes_per_sequence"] == size.kv.bytes_per_sequence
    assert found["kv.total_bytes"] == size.kv.total_bytes
    assert found["kv.bytes_per_token"] == size.kv.bytes_per_token
    assert found["per_gpu.kv_bytes"] == size.per_gpu.kv_bytes
    assert found["per_gpu.weight_bytes"] == size.per_gpu.weight_bytes
    assert found["weights.parameters"] == size.weights.parameters
    assert found["weights.active_parameters"] == size.weights.active_parameters
    assert found["weights.total_bytes"] == size.weights.total_bytes
    assert {part: found[f"weights.parts.{part}"] for part in size.weights.parts} == size.weights.parts
    check_pass("decode", deployment, batch=7, context=context)
    check_pass("prefill", deployment, batch=7, context=context)


@pytest.mark.parametrize(
    ("name", "kv", "expression"),
    [("llama3.1-8b", "bf16", "2 * 32 * 8 * 128 * 2"), ("llama3.1-8b", "q8_0", "2 * 32 * 8 * 128 * 34 / 32"),
     ("llama-3.3-nemotron-super-49b", "bf16", "2 * 49 * 8 * 128 * 2")],
)  # fmt: skip
def test_a_token_of_equal_layers_is_the_formula_that_is_quoted(name, kv, expression):
    deployment = kvcalc.deployment(name, kv_dtype=kv)
    step = next(each for each in kvcalc.explain("size", deployment) if each.quantity == "kv.bytes_per_token")
    assert step.formula.startswith("2 (key and value) x layers x kv_heads x head_dim x ")
    assert step.expression == expression
    assert evaluated(step) == step.value == kvcalc.size(deployment).kv.bytes_per_token


@pytest.mark.slow
@pytest.mark.parametrize("context", [1, 2, 127, 128, 129, 8192, 8193, 40000])
@pytest.mark.parametrize("name", KINDS)
def test_windows_chunks_and_indices_are_explained_on_both_sides_of_their_knees(name, context):
    deployment = kvcalc.deployment(name, gpu="h200")
    check_pass("decode", deployment, batch=1, context=context)
    check_pass("prefill", deployment, batch=2, context=context)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spread",
    [
        {"tensor_parallel": 4},
        {"pipeline_parallel": 3, "tensor_parallel": 2},
        {"data_parallel": 4},
        {"data_parallel": 4, "tensor_parallel": 2, "expert_parallel": 8},
        {"tensor_parallel": 4, "expert_parallel": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", KINDS)
def test_spread_models_are_explained_for_one_gpu_and_summed_over_all(name, spread):
    deployment = kvcalc.deployment(name, gpu="h200", **spread)
    check_pass("decode", deployment, batch=7, context=3000)
    check_pass("prefill", deployment, batch=7, context=3000)
    found = check(kvcalc.explain("size", deployment, batch=7, context=3000))
    each = kvcalc.size(deployment, batch=7, context=3000).per_gpu
    assert (found["per_gpu.kv_bytes"], found["per_gpu.weight_bytes"]) == (each.kv_bytes, each.weight_bytes)


@pytest.mark.parametrize("kv_dtype", ["fp8", "q8_0", "q4_0", "int4-g64", "int8_per_token_head", "int4_per_token_head"])
def test_cache_formats_are_explained_with_their_scales(kv_dtype):
    deployment = kvcalc.deployment("llama3.1-8b", kv_dtype=kv_dtype)
    for step in kvcalc.explain("size", deployment, context=100):
        assert evaluated(step) == step.value


@pytest.mark.parametrize("kv_dtype", ["fp8", "q8_0", "int8_per_token_head"])
@pytest.mark.parametrize("name", KINDS)
def test_a_pass_reads_the_cache_in_its_format(name, kv_dtype):
    deployment = kvcalc.deployment(name, gpu="h200", kv_dtype=kv_dtype, tensor_parallel=2)
    check(kvcalc.explain("size", deployment, context=3000, batch=7))
    check_pass("decode", deployment, batch=7, context=3000)
    check_pass("prefill", deployment, batch=7, context=3000)


@pytest.mark.parametrize("weights", ["fp8", "mxfp4", "q4_k", "bf16,experts=mxfp4,head=q6_k"])
def test_weight_formats_are_explained_a_byte_begun_included(weights):
    for name in ("mixtral-8x7b", "bamba-9b"):
        deployment = kvcalc.deployment(name, gpu="h200", weights=weights)
        check(kvcalc.explain("size", deployment))
        check_pass("decode", deployment, batch=3, context=500)


def own_model(mixers, **mixture):
    mlp = Mixture(**{"experts": 7, "experts_per_token": 3, "width": 24} | mixture)
    layer = Block(name="only", mixers=mixers, mlp=mlp, vector_parameters=9)
    return ModelProfile(
        name="own",
        architecture="own",
        hidden_size=16,
        context_limit=None,
        blocks=(layer,) * 3,
        embeddings=(),
        head=None,
    )


@pytest.mark.parametrize(
    "mixture",
    [
        {},
        {"zero_experts": 4},
        {"zero_experts": 4, "expert_bias": True, "gated": False},
        {"experts_per_token": 7},
        {"inputs": 8, "router": False},
        {"shared_width": 8, "shared_gate": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [{}, {"tensor_parallel": 2}, {"data_parallel": 4, "expert_parallel": 4}], ids=str)
def test_mixtures_are_explained_with_experts_that_do_nothing(mixture, spread):
    model = own_model((Full(heads=4, kv_heads=2, head_dim=4),), **mixture)
    deployment = kvcalc.deployment(model, gpu="h200", **spread)
    found = check(kvcalc.explain("size", deployment, context=50, batch=2))
    assert found["weights.active_parameters"] == kvcalc.size(deployment, context=50).weights.active_parameters
    for batch in (1, 2, 7):
        check_pass("decode", deployment, batch=batch, context=50)
        check_pass("prefill", deployment, batch=batch, context=50)


@pytest.mark.parametrize(
    "index", [{}, {"stored": False}, {"pool": 4}, {"stored_dim": 12}, {"matrix_parameters": 77}], ids=str
)
@pytest.mark.parametrize("context", [3, 8, 50])
def test_indices_are_explained(index, context):
    indexer = Indexer(heads=2, head_dim=6, top_k=8, **index)
    full = Full(heads=4, kv_heads=2, head_dim=4, indexer=indexer)
    latent = Latent(heads=4, kv_lora_rank=8, rope_dim=2, nope_dim=4, value_head_dim=4, indexer=indexer)
    deployment = kvcalc.deployment(own_model((full, latent, full)), gpu="h200", kv_dtype="q8_0")
    check_pass("decode", deployment, batch=2, context=context)
    found = check_pass("prefill", deployment, batch=2, context=context)
    assert found["full.flop"] == found["full#2.flop"]


def test_sums_are_those_of_the_operators_listed():
    steps = {step.quantity: step for step in kvcalc.explain("decode", kvcalc.deployment("llama2-7b", gpu="h100"))}
    for name in ("flop", "weight_bytes", "kv_read_bytes", "kv_write_bytes"):
        listed = sum(step.value for quantity, step in steps.items() if quantity.endswith(f".{name}"))
        assert steps[name].value == listed
    assert steps["attention.query.flop"].expression == "32 * 2 * 1 * (4096 * 32 * 128)"
    assert steps["attention.query.weight_bytes"].expression == "32 * (4096 * 32 * 128) * 2"
    assert steps["full.flop"].expression == "32 * 1 * 2 * 4096 * 32 * (128 + 128)"
    assert steps["full.kv_read_bytes"].expression == "32 * 1 * 4096 * (32 * 128 * 2 + 32 * 128 * 2)"
    assert steps["full.flop"].formula == "layers x batch x 2 x context x heads x (head_dim + value_head_dim)"


def test_experts_are_explained_by_the_number_expected_to_be_touched():
    steps = kvcalc.explain("decode", kvcalc.deployment("mixtral-8x7b", gpu="h100"), batch=4, context=100)
    found = {step.quantity: step.expression for step in steps}
    assert found["experts.flop"] == "32 * 2 * 4 * 2 * 3 * 4096 * 14336"
    assert found["experts.weight_bytes"] == "32 * 8 * (1 - (1 - 2 / 8) ** 4) * 3 * 4096 * 14336 * 2"


def test_a_mixed_exact_format_is_spelled_as_a_ratio_rounded_up():
    steps = kvcalc.explain("decode", kvcalc.deployment("deepseek-v3", gpu="h200"))
    found = next(step for step in steps if step.quantity == "moe.attention.latent.weight_bytes")
    assert "// 11413422080" in found.expression
    assert "mixed-11416215392/11413422080:fp8" in found.formula


def test_times_name_the_peak_that_is_used():
    hardware = replace(kvcalc.load_hardware("h200"), peak_flop_per_s={"fp16": 1e15, "fp16_acc16": 2e15})
    steps = kvcalc.explain("decode", kvcalc.deployment("llama2-7b", gpu=hardware))
    found = {step.quantity: step for step in steps}
    assert "peak_flop_per_s.fp16_acc16" in found["compute_s"].formula
    assert all(found[name].sources for name in ("memory_s", "compute_s", "serial_s"))


def test_every_operator_names_the_source_of_its_sizes_and_what_was_asked_for():
    for step in kvcalc.explain("prefill", kvcalc.deployment("gemma-3-27b", gpu="h200"), batch=2):
        if step.quantity.partition(".")[2] in ("flop", "weight_bytes", "query.flop", "kv_write_bytes"):
            assert step.sources[0].startswith("model_config https://"), step
        if step.quantity.endswith(".flop"):
            assert "asked for" in step.sources


def test_every_step_of_a_size_names_a_source():
    for step in kvcalc.explain("size", kvcalc.deployment("gemma-3-27b")):
        assert step.sources


def test_ridge_points_cite_peak_and_bandwidth():
    hardware = kvcalc.load_hardware("h100-sxm")
    for step in kvcalc.explain("roofline", hardware):
        assert evaluated(step) == step.value
        assert len(step.sources) == 2
