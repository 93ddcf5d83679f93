"""Arguments of another kind in the Python functions: one line of ours, never an error from within."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kvcalc


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: kvcalc.deployment(None), "a model is a name, a file or a profile, not NoneType"),
        (lambda: kvcalc.deployment("llama3.1-8b", gpu=3), "an accelerator is a name"),
        (lambda: kvcalc.deployment("llama3.1-8b", engine=3), "engine takes one text"),
        (lambda: kvcalc.deployment("llama3.1-8b", settings=3), "path=value"),
        (lambda: kvcalc.deployment("llama3.1-8b", engine="vllm", options={"block_size": 16}), "a kvcalc.EngineOptions"),
        (lambda: kvcalc.deployment("llama3.1-8b", gpu="h200", price_per_hour_usd="a"), "price must be a number"),
        (lambda: kvcalc.deployment("llama3.1-8b", gpu="h200", power_share="a"), "power-share must be a number"),
        (lambda: kvcalc.EngineOptions(block_size="16"), "block-size takes a whole number, not '16'"),
        (lambda: kvcalc.EngineOptions(max_num_seqs=True), "max-num-seqs takes a whole number"),
        (lambda: kvcalc.size("llama3.1-8b", engine=3), "engine takes one text"),
        (lambda: kvcalc.size("llama3.1-8b", engine="vllm", options={}), "a kvcalc.EngineOptions, not dict"),
        (lambda: kvcalc.fit("llama3.1-8b", kv_memory_bytes=[1]), "no unit"),
        (lambda: kvcalc.fit("llama3.1-8b", kv_memory_bytes="20"), "no unit"),
        (lambda: kvcalc.fit("llama3.1-8b", options=3, kv_memory_bytes=2**30), "a kvcalc.EngineOptions, not int"),
        (lambda: kvcalc.compare(3), "the sides are a list"),
        (lambda: kvcalc.speculate(kvcalc.deployment("llama3.1-8b", gpu="h200"), gamma=3), "there is no argument gamma"),
    ],
)
def test_a_wrong_kind_is_named(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(kvcalc.InputError) as refused:
        call()
    assert said in str(refused.value)


def test_memory_may_be_a_text_with_its_unit() -> None:
    given = [kvcalc.fit("llama3.1-8b", kv_memory_bytes=size, engine="vllm") for size in (20 * 2**30, "20GiB")]
    assert given[0].kv_capacity_tokens == given[1].kv_capacity_tokens > 0
