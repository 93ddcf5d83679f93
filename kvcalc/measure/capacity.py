"""The largest batch that a card holds: predicted, then tried, with one that cannot fit beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvcalc.core.search import largest
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import weight_bytes
from kvcalc.measure.decoder import decode_one_token
from kvcalc.measure.scale import run_bytes

if TYPE_CHECKING:
    from kvcalc.measure.decoder import Decoder
    from kvcalc.plan.deployment import Deployment

__all__ = ["MeasuredCapacity", "measured_capacity"]

_MAX_BATCH = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCapacity:
    """Batches on either side of what a card holds.

    Args:
        model: its name.
        format: of weights, cache and activations.
        context: tokens of each sequence.
        free_bytes: memory before the weights were loaded.
        predicted_batch: the largest that fits with all that a step needs.
        predicted_bytes: what that takes.
        peak_bytes: the most that was allocated when it ran, where the allocator tells.
        reserved_bytes: what the allocator then held of the card, rounded up and kept for later included.
        used_bytes: what the card then had in use in all, contexts and other programs included.
        fits: whether it ran.
        beyond_batch: the least whose weights and cache alone are more than the memory.
        beyond_fails: whether it found no room.
    """

    model: str
    format: str
    context: int
    free_bytes: int
    predicted_batch: int
    predicted_bytes: int
    peak_bytes: int | None
    reserved_bytes: int | None
    used_bytes: int | None
    fits: bool
    beyond_batch: int
    beyond_fails: bool


def measured_capacity(
    deployment: Deployment, decoder: Decoder, *, context: int, free_bytes: int, tries_beyond: bool = True
) -> MeasuredCapacity:
    """Run a step of the largest batch that should fit, and allocate the least that cannot.

    Args:
        deployment: model and formats.
        decoder: the model with its weights.
        context: tokens of each sequence.
        free_bytes: memory before the weights were loaded.
        tries_beyond: whether more than fits is asked for; a CPU's system would end the process.
    """
    model, formats = deployment.model, deployment.formats
    cache_size = cache_bytes(model, context, formats)
    weights, each = weight_bytes(model, formats), cache_size.growing + cache_size.state
    predicted = largest(lambda batch: run_bytes(model, formats, batch=batch, context=context) <= free_bytes, _MAX_BATCH)
    beyond = int((free_bytes - weights) // each) + 1
    decoder.device.peak_bytes(reset=True)
    fits = predicted > 0 and _runs(decoder, predicted, context)
    peak, reserved, used = (
        decoder.device.peak_bytes(), decoder.device.reserved_bytes(), decoder.device.used_bytes()
    )  # fmt: skip
    decoder.device.release()
    return MeasuredCapacity(
        model=model.name,
        format=formats.weights.name,
        context=context,
        free_bytes=free_bytes,
        predicted_batch=predicted,
        predicted_bytes=run_bytes(model, formats, batch=predicted, context=context),
        peak_bytes=peak,
        reserved_bytes=reserved,
        used_bytes=used,
        fits=fits,
        beyond_batch=beyond,
        beyond_fails=not (tries_beyond and _holds(decoder, beyond, context)),
    )


def _runs(decoder: Decoder, batch: int, context: int) -> bool:
    """Whether a step of so many sequences finds room."""
    try:
        cache = decoder.new_cache(batch=batch, capacity=context)
        cache.fill(decoder.make)
        decode_one_token(decoder, torch.zeros(batch, dtype=torch.long, device=decoder.device.kind), cache)
        decoder.device.wait()
    except torch.OutOfMemoryError:
        return False
    return True


def _holds(decoder: Decoder, batch: int, context: int) -> bool:
    """Whether a cache of so many sequences finds room."""
    try:
        decoder.new_cache(batch=batch, capacity=context)
    except torch.OutOfMemoryError:
        return False
    return True
