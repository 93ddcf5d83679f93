"""Prompts through the real loop: the time of a prefill beside its bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from kvcalc.core.workload import prefill_pass
from kvcalc.measure.clock import in_turn, recorded
from kvcalc.plan.steps import timed_step

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.measure.decoder import Decoder
    from kvcalc.plan.deployment import Deployment

__all__ = ["MeasuredPrefill", "measured_prefill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrefill:
    """A prefill of whole prompts in one pass.

    Args:
        model: its name.
        layers: layers that were built.
        format: of weights, cache and activations.
        kernels: the variant of the loop's kernels.
        batch: sequences.
        prompt: tokens of each.
        bound_s: the least time.
        limiter: what limits it.
        measured_s: of the fastest repetition.
        samples_s: all of them.
        ratio: measured over bound.
        in_graph: whether it was replayed from a graph.
        flop_per_s: rate that was reached.
    """

    model: str
    layers: int
    format: str
    kernels: str
    batch: int
    prompt: int
    bound_s: float
    limiter: str
    measured_s: float
    samples_s: tuple[float, ...]
    ratio: float
    in_graph: bool
    flop_per_s: float


def measured_prefill(
    deployment: Deployment, decoder: Decoder, hardware: HardwareProfile, *, batch: int, prompt: int, rounds: int = 5
) -> MeasuredPrefill:
    """Time a prefill of random prompts; on a GPU as a replay, since the host may be slower than a short prompt.

    Args:
        deployment: model and formats.
        decoder: the model with its weights and kernels.
        hardware: ceilings of the bound.
        batch: sequences.
        prompt: tokens of each.
        rounds: repetitions.
    """
    device = decoder.device
    cache = decoder.new_cache(batch=batch, capacity=prompt)
    tokens = torch.randint(0, decoder.vocabulary, (batch, prompt), generator=torch.Generator().manual_seed(prompt))
    tokens = tokens.to(device.kind)
    restore = cache.snapshot(rings=True)
    call, in_graph = recorded(lambda: decoder.forward(tokens, cache), device, reset=restore)
    timing = in_turn([call], rounds=rounds, device=device, reset=restore)[0]
    timed = timed_step(replace(deployment, hardware=hardware), prefill_pass(batch=batch, prompt=prompt))
    return MeasuredPrefill(
        model=deployment.model.name,
        layers=len(decoder.layers),
        format=deployment.formats.weights.name,
        kernels=decoder.kernels.name,
        batch=batch,
        prompt=prompt,
        bound_s=timed.time.ideal_s,
        limiter=timed.time.limiter,
        measured_s=timing.least_s,
        samples_s=timing.samples_s,
        ratio=timing.least_s / timed.time.ideal_s,
        in_graph=in_graph,
        flop_per_s=timed.cost.flop / timing.least_s,
    )
