"""Each rule of vLLM that changed with a release changes with that one, and with no other from 0.5 to 0.35."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from kvcalc import api
from kvcalc.core.units import GIB
from kvcalc.core.workload import Formats, Parallel
from kvcalc.engines.logs import StartUp
from kvcalc.engines.vllm import VllmOptions, capacity, default_utilization, layout, memory_to_start
from kvcalc.engines.vllm.budget import activation_peak, graph_memory, outside_memory
from kvcalc.engines.vllm.defaults import batch_defaults, passes_because, passes_in_flight
from kvcalc.engines.vllm.padding import expert_kernel
from kvcalc.plan.reconcile.setups import base_setups

if TYPE_CHECKING:
    from collections.abc import Callable

RELEASES = [f"0.{minor}" for minor in range(5, 36)]
DENSE, WINDOWED, CHUNKED = "llama3.1-8b", "gemma-3-27b", "llama4-scout"
MIXTURE, HYBRID, LATENT_HYBRID = "gpt-oss-20b", "jamba-1.5-mini", "kimi-linear-48b-a3b"


def _layout(model: str, version: str, *, tensor: int = 1) -> Any:
    return layout(api.load_model(model), Formats(), VllmOptions(max_model_len=32768, version=version), tensor=tensor)


def _to_start(model: str, version: str, *, pipeline: int = 1) -> int:
    options = VllmOptions(max_model_len=4096, version=version)
    return memory_to_start(api.load_model(model), Formats(), options, pipeline=pipeline)


def _tokens(version: str) -> int:
    # the same layout for every version, so that the printed tokens alone change
    return capacity(_layout(WINDOWED, "0.20"), kv_memory_bytes=40 * GIB, version=version).kv_tokens


def _peak(version: str, end: str) -> int:
    peak = activation_peak(
        api.load_model(DENSE), Formats(), tokens=2048, sequences=512, parallel=Parallel(), version=version
    )
    return int(getattr(peak, end))


def _outside(version: str, end: str, tensor: int) -> int:
    outside = outside_memory(api.load_model(DENSE), parallel=Parallel(tensor=tensor), version=version)
    return int(getattr(outside, end))


def _linked(version: str, end: str) -> int:
    return _outside(version, end, 2) - _outside(version, end, 1)


def _graphs(version: str, end: str, *, rocm: bool = False) -> int:
    graphs = graph_memory(api.load_model(DENSE), sequences=256, parallel=Parallel(), version=version, rocm=rocm)
    return int(getattr(graphs, end))


def _setups(version: str, model: str = DENSE, **options: Any) -> list[Any]:
    start_up = StartUp(engine="vllm", line=1, version=version, options={"max_model_len": 32768, **options})
    return base_setups(start_up, api.load_model(model))


CHANGES: dict[str, tuple[Callable[[str], object], list[str]]] = {
    "share of the memory": (default_utilization, ["0.25"]),
    "tokens printed by concurrency": (_tokens, ["0.21"]),
    "a null block to start": (lambda version: _to_start(DENSE, version), ["0.30"]),
    "all layers asked of a rank": (
        lambda version: _to_start(DENSE, version, pipeline=2) > 0.75 * _to_start(DENSE, version),
        ["0.14", "0.16"],
    ),
    "groups of windows": (lambda version: _layout(WINDOWED, version).needed_blocks, ["0.10"]),
    "states kept for prefixes": (lambda version: _layout(HYBRID, version).needed_blocks, ["0.13"]),
    "blocks of latent attention beside states": (
        lambda version: _layout(LATENT_HYBRID, version, tensor=2).block_size,
        ["0.12"],
    ),
    "passes in flight": (lambda version: passes_in_flight(api.load_model(DENSE), version=version), ["0.26"]),
    "passes in flight of a mixture in stages": (
        lambda version: passes_in_flight(api.load_model(MIXTURE), version=version, pipeline=4),
        ["0.26", "0.29"],
    ),
    "why so many passes": (lambda version: passes_because(version, "gpu", None), ["0.26"]),
    "pass on the largest cards": (
        lambda version: batch_defaults(api.load_hardware("b200"), version=version).max_num_batched_tokens,
        ["0.28"],
    ),
    "pass on large cards": (lambda version: batch_defaults(api.load_hardware("h200"), version=version), []),
    "least copies of the logits": (lambda version: _peak(version, "least"), ["0.8", "0.17", "0.25"]),
    "most copies of the logits": (lambda version: _peak(version, "most"), ["0.17"]),
    "least outside PyTorch": (lambda version: _outside(version, "least", 1), ["0.18"]),
    "most outside PyTorch": (lambda version: _outside(version, "most", 1), ["0.8", "0.18", "0.20"]),
    "least of the links": (lambda version: _linked(version, "least"), ["0.18"]),
    "most of the links": (lambda version: _linked(version, "most"), []),
    "least of the graphs": (lambda version: _graphs(version, "least"), ["0.20", "0.25"]),
    "most of the graphs": (lambda version: _graphs(version, "most"), ["0.20"]),
    "least of the graphs on ROCm": (lambda version: _graphs(version, "least", rocm=True), []),
    "kernel of experts on Blackwell": (lambda version: expert_kernel("blackwell", version), ["0.33"]),
    "kernel of experts on Hopper": (lambda version: expert_kernel("hopper", version), []),
    "first engine": (lambda version: _setups(version)[0].first_engine, ["0.8"]),
    "print rule of a log": (lambda version: [each.by_concurrency for each in _setups(version)], ["0.21"]),
    "null block of a log": (lambda version: _setups(version)[0].null_block, ["0.30"]),
    "all layers of a log": (lambda version: _setups(version)[0].checks_all_layers, ["0.14", "0.16"]),
    "chunks that a log may hold in full": (
        lambda version: any("chunked layers held in full" in each.assumed for each in _setups(version, CHUNKED)),
        ["0.8", "0.19"],
    ),
    "states that a log may keep for prefixes": (lambda version: len(_setups(version, HYBRID)), ["0.13"]),
}


@pytest.mark.parametrize("rule", CHANGES)
def test_a_rule_changes_with_its_release_and_no_other(rule: str) -> None:
    value, releases = CHANGES[rule]
    values = {release: value(release) for release in RELEASES}
    assert [now for before, now in pairwise(RELEASES) if values[before] != values[now]] == releases
