"""The estimate: the roofline of each operator at the rates reached, plus what passes, layers and calls take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.cost_types import StepEstimate
from kvcalc.cost.roofline import step_time

if TYPE_CHECKING:
    from kvcalc.core.calibration import Calibration
    from kvcalc.core.cost_types import OpCost, StepCost
    from kvcalc.core.hardware import HardwareProfile, Link

__all__ = ["estimate_time", "reached_seconds"]


def reached_seconds(op: OpCost, hardware: HardwareProfile, link: Link | None, calibration: Calibration) -> float:
    """Return the time of one operator at the rates that were reached.

    calls * call_s + max(FLOP / (flop_share * peak), moved bytes / (bandwidth_share * bandwidth)), and for a collective
    calls * collective_s + bytes / (link_share * rate).

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785 (reached ceilings below the peaks);
    Hockney 1994, doi 10.1016/S0167-8191(06)80021-9 (a start-up time plus bytes over an asymptotic rate).
    """
    if op.collective_steps:
        if link is None:
            return 0.0
        return op.calls * calibration.collective_s + op.collective_bytes / (calibration.link_share * link.bytes_per_s)
    reach = calibration.reach_of(op)
    compute = op.flop / (reach.flop_share * hardware.peak(op.unit))
    memory = op.moved_bytes / (reach.bandwidth_share * hardware.memory_bandwidth_bytes_per_s)
    return op.calls * reach.call_s + max(compute, memory)


def estimate_time(cost: StepCost, hardware: HardwareProfile, calibration: Calibration) -> StepEstimate:
    """Return how long a pass takes, from first to last stage, with the interval that held four of five measurements.

    step_s + layers * layer_s + the sum over operators of `reached_seconds`, and never less than the bound.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785 (operators at the ceilings they reach);
    this project's definition of the constant terms, docs/estimates.md.
    """
    link = hardware.link(cost.gpus)
    bound = step_time(cost, hardware)
    spread = calibration.compute_interval if bound.limiter == "compute" else calibration.memory_interval
    constant = calibration.step_s + cost.layers * calibration.layer_s
    reached = constant + sum(reached_seconds(op, hardware, link, calibration) for op in cost.ops)
    estimate, low, high = (max(bound.latency_s, reached * factor) for factor in (1, spread.low, spread.high))
    return StepEstimate(estimate_s=estimate, low_s=low, high_s=high)
