"""VLLM: what it is asked, what it should make of the memory of its cache, and whether it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcalc.core.reports.measure import LoopCheck
from kvcalc.engines.logs import read_log
from kvcalc.engines.vllm import VllmOptions, capacity, layout
from kvcalc.measure.engines.start import Start, same_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.engines.vllm import Capacity, Layout
    from kvcalc.measure.crosscheck import Questions
    from kvcalc.measure.library import Device
    from kvcalc.plan.deployment import Deployment

__all__ = ["Prediction", "predicted", "printed_checks", "start"]

_BATCHED_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The engine's use of the memory that its cache is given, predicted.

    Args:
        options: what it is started with.
        kv_memory_bytes: the memory, half a block more than whole blocks.
        layout: how it is cut into blocks.
        capacity: what they hold.
    """

    options: VllmOptions
    kv_memory_bytes: int
    layout: Layout
    capacity: Capacity

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole blocks, which the engine allocates."""
        return self.capacity.num_blocks * self.layout.bytes_per_block


def predicted(deployment: Deployment, *, batch: int, tokens: int, device: str) -> Prediction:
    """Predict vLLM's cache for so many sequences and half a block.

    Args:
        deployment: model and formats.
        batch: sequences.
        tokens: of each, at the end.
        device: ``cpu`` or ``cuda``.
    """
    options = VllmOptions(
        max_model_len=tokens,
        max_num_batched_tokens=max(_BATCHED_TOKENS, batch),
        max_in_flight_batches=1,
        platform="cpu" if device == "cpu" else "gpu",
    )
    placed = layout(deployment.model, deployment.formats, options)
    memory = (1 + batch * placed.needed_blocks) * placed.bytes_per_block + placed.bytes_per_block // 2
    return Prediction(
        options=options, kv_memory_bytes=memory, layout=placed, capacity=capacity(placed, kv_memory_bytes=memory)
    )


def start(deployment: Deployment, asked: Questions, device: Device, *, tokens: int) -> Start:
    """Return vLLM's start for a model.

    Args:
        deployment: model and formats.
        asked: batches and rounds.
        device: where it runs.
        tokens: of each sequence, at the end.
    """
    prediction = predicted(deployment, batch=max(asked.batches), tokens=tokens, device=device.kind)

    def checks(results: Mapping[str, Any], log: str) -> list[LoopCheck]:
        return printed_checks(deployment.model.name, prediction, results, log)

    return Start(
        deployment=deployment,
        kv_bytes=prediction.kv_bytes,
        asked={
            "max_model_len": prediction.options.max_model_len,
            "max_num_seqs": max(asked.batches),
            "max_num_batched_tokens": prediction.options.max_num_batched_tokens,
            "kv_memory_bytes": prediction.kv_memory_bytes,
        },
        checks=checks,
    )


def printed_checks(name: str, prediction: Prediction, results: Mapping[str, Any], log: str) -> list[LoopCheck]:
    """Return whether the engine's blocks and the numbers of its log are the predicted ones.

    Args:
        name: the model.
        prediction: what was computed from the memory given.
        results: what the engine's process told.
        log: what it printed.
    """
    start_ups = [start_up for start_up in read_log(log) if start_up.engine == "vllm"]
    shown = {
        quantity: number.value
        for start_up in start_ups[-1:]
        for quantity in ("kv_cache_tokens", "max_concurrency")
        if (number := start_up.first(quantity)) is not None
    }
    placed, capacity = prediction.layout, prediction.capacity
    pairs = [
        ("tokens of a block", placed.block_size, results["block_size"]),
        ("blocks", capacity.num_blocks, results["num_blocks"]),
        ("tokens printed as its cache", capacity.kv_tokens, _whole(shown.get("kv_cache_tokens"))),
        ("requests at once printed", round(capacity.max_concurrency, 2), shown.get("max_concurrency")),
    ]
    return same_numbers(f"{name} in vLLM", pairs)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
