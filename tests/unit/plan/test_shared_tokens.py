"""Decode context parallelism: what a rank caches is divided, speeds are refused, and searches keep to what starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import kvcalc
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.units import ceil_div
from kvcalc.engines.options import EngineOptions

if TYPE_CHECKING:
    from kvcalc.plan.deployment import Deployment

RANKS = 8
# 61 layers of a latent of 512 and a rope key of 64, in bf16
TOKEN_BYTES = 61 * (512 + 64) * 2


def _shared(**more: Any) -> Deployment:
    options = EngineOptions(decode_context_parallel=RANKS)
    return kvcalc.deployment("deepseek-v3", gpu="h200", tensor_parallel=8, engine="vllm", options=options, **more)


@pytest.mark.parametrize("context", [16_384, 16_385])
def test_a_rank_caches_its_share_of_the_tokens(context: int) -> None:
    held = ceil_div(context, RANKS) * TOKEN_BYTES
    assert kvcalc.fit(_shared(), context=context, batch=3).logical_kv_bytes == 3 * held
    assert kvcalc.size(_shared(), context=context, batch=3).per_gpu.kv_bytes == 3 * held


ASKED: dict[str, dict[str, Any]] = {
    "decode": {},
    "prefill": {},
    "roofline": {"model": ("deepseek-v3",)},
    "compare": {"specs": ("deepseek-v3", "deepseek-r1"), "model": None, "tensor_parallel": "8"},
    "solve": {"batch": "?", "context": 16_384},
    "speculate": {"method": "ngram", "acceptance": "0.5"},
    "simulate": {"rate": "1", "prompt": "100", "output_tokens": 10, "step_times": "20ms"},
}


@pytest.mark.parametrize("question", ASKED)
def test_a_speed_is_refused(question: str) -> None:
    common: dict[str, Any] = {"model": "deepseek-v3", "gpu": "h200", "tensor_parallel": 8, "engine": "vllm"}
    asked = common | ASKED[question]
    asked = {name: value for name, value in asked.items() if value is not None}
    with pytest.raises(UnsupportedError, match="the speed with decode context parallelism is not modelled"):
        kvcalc.ask(question, asked | {"decode_context_parallel": RANKS})
    kvcalc.ask(question, asked | {"decode_context_parallel": 1})


def test_the_fewest_gpus_are_among_those_that_can_share_the_tokens() -> None:
    report = kvcalc.fit(_shared(), context=16_384)
    assert report.fits
    assert report.smallest is not None
    assert report.smallest.tensor % RANKS == 0
    assert report.min_gpus == RANKS
