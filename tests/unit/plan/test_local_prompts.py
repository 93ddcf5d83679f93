"""The speed of a placement: devices that overlap, sequences that share a step, and estimates of prompts."""

from __future__ import annotations

import pytest

import kvcalc

# llama-7b in fp16 on eight A100 80GB PCIe with a batch of 8192, prompts of 512, 1024 and 2048 tokens.
# https://github.com/ggml-org/llama.cpp/pull/6017
EIGHT_CARDS = (8381.22, 13312.63, 14723.17)
A100 = ["a100-80gb-pcie"]


def _speed(**asked):
    return kvcalc.ask("fit", {"model": "llama-7b", "weights": "f16", "ctx_size": "4096", **asked}).speed


def test_devices_that_overlap_are_bound_by_the_slowest_of_them():
    one, eight = _speed(devices=A100), _speed(devices=A100 * 8)
    assert (one.overlapping_micro_batches, eight.overlapping_micro_batches) == (1, 4)
    assert eight.prefill_tokens_per_s > 4 * one.prefill_tokens_per_s
    assert eight.prefill_tokens_per_s > max(EIGHT_CARDS)
    # as many micro-batches as fill the devices in part: less than eight times as fast
    assert one.prefill_estimated_tokens_per_s < eight.prefill_estimated_tokens_per_s
    assert eight.prefill_estimated_tokens_per_s < 8 * one.prefill_estimated_tokens_per_s


@pytest.mark.parametrize("placed", [{"gpu_layers": "20"}, {"kv_offload": False}, {"batch_size": "512"}])
def test_a_prompt_passes_one_device_after_another_where_llama_cpp_does_not_overlap_them(placed):
    assert _speed(devices=A100 * 2, **placed).overlapping_micro_batches == 1


def test_sequences_share_the_weights_of_a_step():
    speed = _speed(devices=A100, parallel="4")
    assert speed.sequences == 4
    assert 2 * speed.tokens_per_s < speed.all_tokens_per_s < 4 * speed.tokens_per_s


def test_prompts_are_estimated_below_their_bound_where_no_weight_crosses_to_a_device():
    speed = _speed(devices=["rtx-4090"])
    low, high = speed.prefill_estimate_low_tokens_per_s, speed.prefill_estimate_high_tokens_per_s
    assert low < speed.prefill_estimated_tokens_per_s < high <= speed.prefill_tokens_per_s
    assert _speed(devices=["rtx-4090"], gpu_layers="20").prefill_estimated_tokens_per_s is None
