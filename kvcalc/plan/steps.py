"""One pass on its hardware: what decode, prefill and roofline share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.reports.speed import PartCost
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.roofline import intensity_flop_per_byte, step_time

if TYPE_CHECKING:
    from kvcalc.core.cost_types import StepCost, StepTime
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.workload import Routing, TokenGroup
    from kvcalc.plan.deployment import Deployment

__all__ = ["TimedStep", "hardware_notes", "part_costs", "required_hardware", "timed_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A pass: what it costs, the least time it takes, and its arithmetic intensity."""

    cost: StepCost
    time: StepTime
    intensity_flop_per_byte: float


def required_hardware(deployment: Deployment) -> HardwareProfile:
    """Return the accelerator.

    Raises:
        InputError: the deployment has none.
    """
    if deployment.hardware is None:
        raise InputError("a speed needs an accelerator", hint="give --gpu, for example --gpu h100-sxm")
    return deployment.hardware


def timed_step(deployment: Deployment, group: TokenGroup, *, routing: Routing = "expected") -> TimedStep:
    """Return cost and time of a pass over one group of sequences."""
    hardware = required_hardware(deployment)
    cost = forward_cost(deployment.model, (group,), deployment.formats, parallel=deployment.parallel, routing=routing)
    intensity = intensity_flop_per_byte(flop=cost.flop, moved_bytes=cost.compulsory_bytes)
    return TimedStep(cost=cost, time=step_time(cost, hardware), intensity_flop_per_byte=intensity)


def part_costs(cost: StepCost) -> tuple[PartCost, ...]:
    """Return FLOP and compulsory bytes by part of the model, over all ranks."""
    return tuple(
        PartCost(part=part, flop=cost.total("flop", part=part), moved_bytes=cost.total("compulsory_bytes", part=part))
        for part in cost.parts
        if part != "interconnect"
    )


def hardware_notes(deployment: Deployment) -> tuple[str, ...]:
    """Return what a reader should know of the hardware's numbers."""
    hardware = required_hardware(deployment)
    notes = list(hardware.notes)
    if hardware.memory_bytes is None:
        notes.append(f"{hardware.name}: memory is the label's; what the driver leaves is not known")
    if deployment.parallel.gpus > 1 and hardware.link(deployment.parallel.gpus) is None:
        notes.append(f"{hardware.name}: no link is known, so collectives are not in these times")
    return tuple(notes)
