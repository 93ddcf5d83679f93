"""The roofline: from bytes and FLOP to the least time, and where the ridge lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.cost_types import PlacedStage, StepTime
from kvcalc.core.sums import added
from kvcalc.core.traced import larger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.cost_types import OpCost, StepCost
    from kvcalc.core.hardware import HardwareProfile, Link

__all__ = ["intensity_flop_per_byte", "op_seconds", "ridge_flop_per_byte", "stage_seconds", "stages_time", "step_time"]


def intensity_flop_per_byte(*, flop: float, moved_bytes: float) -> float:
    """Return the arithmetic intensity: FLOP for each byte that crosses the memory.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785.

    >>> intensity_flop_per_byte(flop=200, moved_bytes=100)
    2.0
    """
    return flop / moved_bytes if moved_bytes else float("inf")


def ridge_flop_per_byte(peak_flop_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """Return the intensity from which on the peak, not the bandwidth, is the limit.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785 (ridge point = peak / bandwidth).

    >>> round(ridge_flop_per_byte(989.4e12, 3.35e12))
    295
    """
    return peak_flop_per_s / bandwidth_bytes_per_s


def op_seconds(
    op: OpCost, hardware: HardwareProfile, link: Link | None, *, larger: Callable[[float, float], Any] = larger
) -> float:
    """Return the least time of one operator on its own: max(FLOP / peak, bytes / bandwidth), plus its collective.

    Args:
        op: the operator; its fields may be columns of numbers, for as many steps at once.
        hardware: the accelerator.
        link: what its collectives cross.
        larger: the larger of two numbers; of two columns where the fields are columns.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785; collectives as steps * latency + bytes /
    rate, Thakur et al. 2005, doi 10.1177/1094342005051521.
    """
    alone: float = larger(op.flop / hardware.peak(op.unit), op.moved_bytes / hardware.memory_bandwidth_bytes_per_s)
    if link is None:
        return alone
    return alone + op.collective_bytes / link.bytes_per_s + op.collective_steps * (link.latency_s or 0)


def step_time(cost: StepCost, hardware: HardwareProfile) -> StepTime:
    """Return the least time of a pass on alike accelerators: everything overlapped, and operator after operator.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785; as `stages_time`.
    """
    link = hardware.link(cost.exchange_gpus)
    return stages_time([PlacedStage(ops=stage, hardware=hardware, link=link) for stage in cost.stages])


def stages_time(stages: Sequence[PlacedStage]) -> StepTime:
    """Return the least time of a pass through stages, each with its own hardware.

    ``ideal_s`` = max(sum FLOP / peak, sum compulsory bytes / bandwidth, sum least link bytes / link rate), over the
    slowest stage; ``latency_s`` = the sum of these over the stages, all of which a token passes; ``serial_s`` = the sum
    over operators of `op_seconds`, over all stages.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785 (the larger of both times); Austin et al.
    2025, How to Scale Your Model, jax-ml.github.io/scaling-book/roofline (lower bound = max, upper bound = sum).

    >>> from kvcalc.core.cost_types import OpCost
    >>> from kvcalc.core.hardware import HardwareProfile
    >>> fast, slow = (HardwareProfile(name="x", title="x", vendor="x", memory_label_bytes=1e9, peak_flop_per_s={"bf16":
    ...     1e14}, memory_bandwidth_bytes_per_s=rate) for rate in (1e12, 1e11))
    >>> read = (OpCost(name="op", part="mlp", weight_bytes=5e9),)
    >>> time = stages_time([PlacedStage(ops=read, hardware=fast), PlacedStage(ops=read, hardware=slow)])
    >>> time.ideal_s, time.latency_s
    (0.05, 0.055)
    """
    times = [stage_seconds(stage.ops, stage.hardware, stage.link) for stage in stages]
    slowest = max(range(len(times)), key=lambda index: max(times[index]))
    compute, memory, wire = times[slowest]
    ideal = max(compute, memory, wire)
    totals = {"memory": memory, "compute": compute, "interconnect": wire}
    return StepTime(
        ideal_s=ideal,
        latency_s=added(max(stage) for stage in times),
        serial_s=added(op_seconds(op, stage.hardware, stage.link) for stage in stages for op in stage.ops),
        compute_s=compute,
        memory_s=memory,
        link_s=wire,
        limiter=max(totals, key=totals.__getitem__),
        slowest_stage=slowest,
        shares={name: seconds / ideal for name, seconds in totals.items()},
    )


def stage_seconds(ops: Sequence[OpCost], hardware: HardwareProfile, link: Link | None) -> tuple[float, float, float]:
    """Return the least times of a stage by compute, memory and link, each as if it were alone; columns give columns.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785 (the two terms of the roofline), and the
    link's least bytes over its rate.
    """
    compute = added(op.flop / hardware.peak(op.unit) for op in ops)
    memory = added(op.compulsory_bytes for op in ops) / hardware.memory_bandwidth_bytes_per_s
    wire = added(op.link_bytes for op in ops) / link.bytes_per_s if link is not None else 0.0
    return compute, memory, wire
