"""One question, all commands: fits, reserved bytes and capacity are those of one engine's start, whoever is asked.

A sample of the grid runs everywhere; with ``KVCALC_GRID=all`` the whole of it does.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import product
from typing import TypeVar

import pytest

import kvcalc
from kvcalc.api import compare, side, solve
from kvcalc.core.errors import InputError, UnsupportedError

T = TypeVar("T")

MODELS = (
    "llama2-7b", "llama2-70b", "llama3.1-8b", "llama3.1-70b", "llama3.2-1b", "llama4-scout", "mistral-7b", "mixtral-8x7b",
    "qwen2.5-0.5b", "qwen2.5-7b", "qwen2.5-72b", "qwen3-0.6b", "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "qwen3-next-80b-a3b",
    "gemma-2-9b", "gemma-2-27b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b", "gemma-3n-e2b", "gpt-oss-20b", "gpt-oss-120b",
    "deepseek-v2-lite", "deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "glm-4.5-air", "kimi-k2", "minimax-m2.7",
    "phi-3.5-moe", "phi-4", "olmo-2-7b", "starcoder2-15b", "exaone-3.5-7.8b", "falcon-7b", "falcon-40b", "bloom-7b1",
    "opt-6.7b", "gpt2", "mamba-2.8b", "jamba-1.5-mini", "bamba-9b", "rwkv-4-7b", "recurrentgemma-2b", "whisper-small",
    "t5-base", "command-r7b", "smollm2-135m", "nemotron-h-8b",
)  # fmt: skip
CARDS = (
    "h100-sxm", "h200", "b200", "a100-80gb", "l40s", "l4", "rtx-4090", "rtx-3060", "mi300x", "m3-max-40", "t4", "dgx-spark"
)  # fmt: skip
ENGINES = ("vllm", "sglang", "llama.cpp", "ideal")
QUESTIONS = ((2048, 1), (2048, 16), (8192, 4), (1024, 300))
KNOWN = set(kvcalc.api.profile_names("model"))
GRID = list(product(MODELS, CARDS, ENGINES))
SAMPLE = GRID if os.environ.get("KVCALC_GRID") == "all" else random.Random(16).sample(GRID, 120)  # noqa: S311


def test_the_grid_is_of_the_catalogue() -> None:
    assert set(MODELS) <= KNOWN
    assert (len(MODELS), len(CARDS), len(ENGINES)) == (51, 12, 4)


def _asked(ask: Callable[[], T]) -> tuple[str, T | None]:
    """Return the words of a refusal, or the answer."""
    try:
        return "", ask()
    except (UnsupportedError, InputError) as refusal:
        return str(refusal), None


@pytest.mark.parametrize(("model", "card", "engine"), SAMPLE)
def test_all_commands_agree(model: str, card: str, engine: str) -> None:
    context, batch = QUESTIONS[(len(model) + len(card) + len(engine)) % len(QUESTIONS)]
    deployment = kvcalc.deployment(model, gpu=card, engine=engine)
    context = min(context, deployment.model.context_limit or context)
    refusal, fit = _asked(lambda: kvcalc.fit(deployment, context=context, batch=batch))
    refused, size = _asked(lambda: kvcalc.size(deployment, context=context, batch=batch))
    assert refused == refusal
    if fit is None or size is None:
        return
    row = kvcalc.decode(deployment, batches=[batch], contexts=[context]).rows[0]
    assert row.fits == fit.fits
    assert kvcalc.prefill(deployment, batches=[batch], prompts=[context]).rows[0].fits == fit.fits
    point = kvcalc.roofline(card, [deployment], batches=[batch], contexts=[context]).points[0]
    assert point.fits == fit.fits
    reserved = size.reserved
    assert reserved is not None
    assert (reserved.total_bytes, reserved.engine) == (fit.reserved_kv_bytes, fit.engine)
    both = compare([side("one", deployment, context=context, batch=batch), side("two", deployment, context=1)])
    rows = {each.quantity: each for each in both.rows}
    assert rows["decode.fits"].values[0] == fit.fits
    assert rows["fit.max_batch"].values[0] == fit.max_batch
    assert fit.fits == (batch <= fit.max_batch)
    if fit.max_batch < 2**20:
        found = solve(deployment, "batch", context=context).rows[0]
        assert (found.answer or 0) == fit.max_batch
        assert found.fits == (fit.max_batch > 0)
