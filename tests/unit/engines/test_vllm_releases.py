"""What vLLM's releases do differently: the tokens they print, their defaults, and how a version is read."""

from __future__ import annotations

import pytest

from kvcalc.core.errors import InputError
from kvcalc.core.model import Block, Full, ModelProfile, Sliding
from kvcalc.core.workload import Formats
from kvcalc.engines.vllm import Layout, VllmOptions, capacity, default_utilization, layout
from kvcalc.engines.vllm.releases import printed_tokens, release_of

GIB = 2**30
FULL = Full(heads=32, kv_heads=8, head_dim=128)
SLIDING = Sliding(heads=32, kv_heads=8, head_dim=128, window=1024)


@pytest.fixture
def windowed() -> Layout:
    """Six groups of one layer: the two rules print different tokens."""
    model = ModelProfile(
        name="made up",
        architecture="llama",
        hidden_size=4096,
        context_limit=None,
        blocks=tuple(Block(mixers=(mixer,)) for mixer in (*[SLIDING] * 5, FULL)),
        embeddings=(),
        head=None,
    )
    return layout(model, Formats(), VllmOptions(max_model_len=8192, max_num_batched_tokens=2048))


def test_the_two_rules(windowed: Layout) -> None:
    # a request takes 5 x (ceil((1023 + 4096) / 16) + 1) + 512 blocks
    assert (len(windowed.groups), windowed.needed_blocks) == (6, 5 * 321 + 512)
    assert printed_tokens(windowed, 10_000, by_concurrency=False) == 10_000 // 6 * 16
    assert printed_tokens(windowed, 10_000, by_concurrency=True) == int(10_000 / 2117 * 8192)


@pytest.mark.parametrize(
    ("version", "by_concurrency"),
    [("0.19.0", False), ("0.20.1rc1", False), ("0.21.0", True), ("0.22.0", True), ("0.23.1", True), ("0.32", True)],
)
def test_the_rule_of_a_version(windowed: Layout, version: str, by_concurrency: bool) -> None:  # noqa: FBT001
    held = capacity(windowed, kv_memory_bytes=GIB, version=version)
    assert held.kv_tokens == printed_tokens(windowed, held.num_blocks, by_concurrency=by_concurrency)


@pytest.mark.parametrize(("version", "share"), [("0.19", 0.9), ("0.24.1", 0.9), ("0.25.0", 0.92), (None, 0.92)])
def test_the_default_utilization_of_a_version(version: str | None, share: float) -> None:
    assert default_utilization(version) == share


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.20.1rc1.dev16+g7a1", (0, 20)),
        ("0.9.2.dev139+g5a52f389d", (0, 9)),
        ("v0.6.5", (0, 6)),
        ("0.1.dev19754+g3a0", None),
        ("unknown", None),
        ("0." + "9" * 99, None),
        (None, None),
    ],
)
def test_releases(version: str | None, release: tuple[int, int] | None) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize("version", ["", "latest", "1", "0.x"])
def test_what_is_no_version(windowed: Layout, version: str) -> None:
    with pytest.raises(InputError, match="not a version of vLLM"):
        capacity(windowed, kv_memory_bytes=GIB, version=version)
