"""The gate: what beats its bound, and the causes that are computed."""

from dataclasses import replace

import pytest

from kvcalc import api
from kvcalc.evidence.cases import Unusable
from kvcalc.evidence.gate import bound_s, judge
from kvcalc.evidence.kernels import kernel_case
from kvcalc.evidence.passes import case_of
from kvcalc.evidence.record import Record


def record(**changed):
    told = {
        "id": "x",
        "phase": "decode",
        "value": 100.0,
        "unit": "tok/s",
        "hardware": "H100 SXM",
        "model": "llama3.1-8b",
        "engine": "vllm",
        "weights": "bf16",
        "kv": "bf16",
        "batch": 1,
        "prompt_tokens": 1000,
        "output_tokens": 0,
    }
    return Record(**told | changed)


def judged(**changed):
    return judge(case_of(record(**changed)))


def just_above(share, **changed):
    """A record whose speed is that share of its bound."""
    case = case_of(record(**changed))
    tokens = case.passes[0].cost.tokens
    return case_of(record(**changed, value=tokens / bound_s(case) * share))


def test_the_bound_is_that_of_the_calculator():
    row = api.decode(api.deployment("llama3.1-8b", gpu="h100-sxm"), batches=[4], contexts=[1001]).rows[0]
    assert judged(batch=4).bound_s == row.ideal_s


def test_a_prefill_is_that_of_the_calculator():
    row = api.prefill(api.deployment("llama3.1-8b", gpu="h100-sxm"), prompts=[1000]).rows[0]
    assert judged(phase="prefill").bound_s == row.ideal_s


def test_a_speed_below_the_bound_holds_and_one_above_does_not():
    assert not judge(just_above(0.99)).beaten
    verdict = judge(just_above(1.05))
    assert verdict.beaten
    assert not verdict.cause


def test_tokens_that_share_experts_may_beat_the_expected_bound():
    mixture = {"model": "mixtral-8x7b", "devices": 2, "tensor": 2, "batch": 8}
    assert "share experts" in judge(just_above(1.5, **mixture)).cause
    assert judge(just_above(30, **mixture)).cause == ""


def test_a_cache_that_was_not_printed_may_have_8_bits():
    many = {"batch": 64, "prompt_tokens": 4000}
    assert "KV-cache format" in judge(just_above(1.2, kv=None, **many)).cause
    assert judge(just_above(1.2, **many)).cause == ""


def test_what_stays_in_the_last_level_cache_is_not_read_again():
    gemm = Record(id="g", phase="gemm", value=1.0, unit="ms", hardware="NVIDIA L40S", weights="bf16",
                  shape={"m": 1, "n": 4096, "k": 4096})  # fmt: skip
    case = kernel_case(gemm)
    moved = case.passes[0].cost.compulsory_bytes
    assert moved < case.hardware.last_level_cache_bytes
    fast = replace(case, measured_s=bound_s(case) / 2)
    assert "last-level cache" in judge(fast).cause
    large = kernel_case(replace(gemm, shape={"m": 1, "n": 65536, "k": 65536}))
    assert judge(replace(large, measured_s=bound_s(large) / 1.5)).cause == ""


def test_weights_may_be_multiplied_in_their_own_format():
    gemm = Record(id="g", phase="gemm", value=1.0, unit="ms", hardware="H100 SXM", weights="int8_wo",
                  shape={"m": 8192, "n": 8192, "k": 8192})  # fmt: skip
    case = kernel_case(gemm)
    assert "narrower format" in judge(replace(case, measured_s=bound_s(case) / 1.5)).cause
    assert judge(replace(case, measured_s=bound_s(case) / 2.5)).cause == ""


def test_a_name_that_may_mean_several_is_held_against_the_fastest():
    any_h100, sxm, nvl = (judged(hardware=name).bound_s for name in ("H100", "H100 SXM", "H100 NVL"))
    assert any_h100 == min(sxm, nvl)


def test_layers_split_over_gpus_add_no_bandwidth_for_one_sequence():
    llama = {"engine": "llama.cpp (CUDA)", "model": "llama2-7b", "weights": "f16"}
    alone, two = judged(**llama).bound_s, judged(**llama, devices=2).bound_s
    assert two == pytest.approx(alone, rel=0.01)
    assert judged(devices=2).bound_s < 0.6 * judged().bound_s


def test_the_cache_of_each_stage_is_small_against_its_weights():
    pipelined = {"engine": "llama.cpp", "model": "llama2-70b", "weights": "f16", "devices": 2}
    assert judge(just_above(1.03, **pipelined)).cause == ""
    assert "last-level cache" in judge(just_above(1.0005, **pipelined)).cause


def test_the_time_of_a_request_is_that_of_its_passes():
    request = {"phase": "end_to_end", "unit": "s", "value": 10.0, "output_tokens": 101, "batch": 8}
    case = case_of(record(**request))
    first, steps = case.passes
    assert (steps.times, case.measured_s, case.bound_only != "") == (100, 10.0, True)
    assert bound_s(case) > 100 * judged(batch=1, prompt_tokens=1000).bound_s
    assert first.cost.tokens == 1000


def test_weights_of_a_deployment_may_be_multiplied_in_their_own_format():
    prompt = {"phase": "prefill", "weights": "w4a16", "prompt_tokens": 8000}
    assert "narrower format" in judge(just_above(1.5, **prompt)).cause
    assert judge(just_above(2.5, **prompt)).cause == ""


def test_weights_that_were_not_printed_may_have_8_bits():
    assert "weight format" in judge(just_above(1.5, weights=None)).cause
    assert judge(just_above(1.5)).cause == ""


@pytest.mark.parametrize("model", ["Qwen/Qwen3-32B-FP8", "RedHatAI/Qwen3-32B-FP8-dynamic"])
def test_a_checkpoint_says_its_format_in_its_name(model):
    told = judged(model=model, weights=None).bound_s
    assert told < 0.7 * judged(model="Qwen/Qwen3-32B").bound_s


def test_a_rate_that_counts_prompts():
    whole = {"phase": "end_to_end", "output_tokens": 100, "batch": 8}
    output = case_of(record(**whole)).measured_s
    both = case_of(record(**whole, unit="tok/s (input + output)")).measured_s
    assert both == pytest.approx(11 * output)


def test_waiting_sequences_do_not_decode():
    served = {"unit": "ms per token", "value": 10.0, "batch": 32, "output_tokens": 100}
    busy, waiting = judged(**served, ttft_s=0.0), judged(**served, ttft_s=3.0)
    assert waiting.bound_s < busy.bound_s


def test_more_sequences_than_the_memory_holds_do_not_decode_at_once():
    case = case_of(record(batch=4096, prompt_tokens=8000, unit="ms per token", value=50.0))
    assert case.passes[0].cost.tokens < 100
    assert any("the memory holds" in told for told in case.assumed)


def test_a_load_that_was_not_printed_is_as_many_as_fit():
    case = case_of(record(phase="end_to_end", batch=None, output_tokens=100))
    assert case.timing == "mixed"
    assert case.bound_only
    slower = replace(case, timing="alone")
    assert bound_s(case) < bound_s(slower)


@pytest.mark.parametrize(
    ("changed", "status", "told"),
    [
        ({"model": "no such model"}, "no profile", "model"),
        ({"hardware": "an abacus"}, "no profile", "accelerator"),
        ({"engine": "llama.cpp (CPU, -ngl 0)", "weights": "q4_0"}, "no profile", "CPU"),
        ({"weights": "q9_z"}, "excluded", "not known"),
        ({"weights": None, "engine": "llama.cpp"}, "excluded", "not printed"),
        ({"unit": "requests/s"}, "excluded", "neither a time"),
        ({"batch": None}, "excluded", "at once"),
        ({"phase": "training"}, "excluded", "phase"),
        ({"phase": "prefill", "prompt_tokens": None}, "excluded", "prompt"),
        ({"devices": 64, "tensor": 64}, "excluded", "heads"),
        ({"kv": "q99"}, "excluded", "format"),
        ({"id": "nim-001", "phase": "prefill", "source": "https://docs.nvidia.com/nim/x"}, "excluded", "queueing"),
        ({"note": "EAGLE-3 drafts"}, "excluded", "drafted tokens"),
        ({"engine": "vllm (speculative decoding)"}, "excluded", "drafted tokens"),
    ],
)
def test_what_cannot_be_held_against_a_prediction_says_why(changed, status, told):
    case = case_of(record(**changed))
    assert isinstance(case, Unusable)
    assert case.status == status
    assert told in case.reason


def test_a_suspect_kernel_is_left_out_by_name():
    kernel = Record(id="a", phase="attention", value=1.0, unit="ms", hardware="l40s", note="suspect; torch_flow")
    assert isinstance(kernel_case(kernel), Unusable)
