"""Explaining the times of a pass: memory, compute and links, everything overlapped or one operator after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.traced import digits
from kvcalc.plan.explain.text import factor, profile_source, total
from kvcalc.plan.steps import required_hardware

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.core.cost_types import OpCost, StepCost
    from kvcalc.core.hardware import HardwareProfile, Link
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.steps import TimedStep

__all__ = ["time_steps"]

_MOVED = {
    "weights": "weight_bytes",
    "cache read": "kv_read_bytes",
    "cache written": "kv_write_bytes",
    "logits": "io_bytes",
}


def time_steps(deployment: Deployment, step: TimedStep) -> Iterator[ExplainedStep]:
    """Return the steps from FLOP and bytes to times."""
    hardware = required_hardware(deployment)
    cost, time = step.cost, step.time
    link = hardware.link(cost.exchange_gpus)
    slowest = cost.stages[time.slowest_stage]
    yield _memory_step(slowest, hardware, time.memory_s, _place(deployment))
    yield _compute_step(slowest, hardware, time.compute_s, _place(deployment))
    if link is not None:
        yield _link_step(slowest, link, time.link_s, _link_source(hardware, cost))
    yield ExplainedStep(
        quantity="intensity_flop_per_byte",
        formula="flop / bytes moved (weights, cache read and written, logits)",
        expression=f"{digits(cost.flop)} / {digits(cost.compulsory_bytes)}",
        value=step.intensity_flop_per_byte,
        unit="FLOP/B",
    )
    yield ExplainedStep(
        quantity="ideal_s",
        formula="max(memory_s, compute_s, link_s)",
        expression=f"max({digits(time.memory_s)}, {digits(time.compute_s)}, {digits(time.link_s)})",
        value=time.ideal_s,
        unit="s",
    )
    if len(cost.stages) > 1:
        yield ExplainedStep(
            quantity="latency_s",
            formula="sum over the stages of max(memory_s, compute_s, link_s)",
            expression=total(_stage_text(ops, hardware, link) for ops in cost.stages),
            value=time.latency_s,
            unit="s",
        )
    yield _serial_step(cost, hardware, link, time.serial_s)


def _place(deployment: Deployment) -> str:
    if deployment.parallel.pipeline > 1:
        return ", of one GPU of the slowest stage"
    return ", of one GPU" if deployment.parallel.gpus > 1 else ""


def _memory_text(ops: Sequence[OpCost], hardware: HardwareProfile) -> str:
    moved = (sum(getattr(op, name) for op in ops) for name in _MOVED.values())
    return f"({total(digits(size) for size in moved)}) / {digits(hardware.memory_bandwidth_bytes_per_s)}"


def _memory_step(ops: Sequence[OpCost], hardware: HardwareProfile, value: float, place: str) -> ExplainedStep:
    return ExplainedStep(
        quantity="memory_s",
        formula=f"({' + '.join(_MOVED)}) / bandwidth{place}",
        expression=_memory_text(ops, hardware),
        value=value,
        unit="s",
        sources=profile_source(hardware, "memory_bandwidth_bytes_per_s"),
    )


def _flop_by_unit(ops: Sequence[OpCost]) -> dict[str, float]:
    flop: dict[str, float] = {}
    for op in ops:
        if op.flop:
            flop[op.unit] = flop.get(op.unit, 0) + op.flop
    return flop


def _compute_text(ops: Sequence[OpCost], hardware: HardwareProfile) -> str:
    return total(f"{digits(flop)} / {digits(hardware.peak(unit))}" for unit, flop in _flop_by_unit(ops).items())


def _compute_step(ops: Sequence[OpCost], hardware: HardwareProfile, value: float, place: str) -> ExplainedStep:
    units = list(_flop_by_unit(ops))
    named = (f"{unit} (peak_flop_per_s.{hardware.peak_name(unit)})" for unit in units)
    return ExplainedStep(
        quantity="compute_s",
        formula=f"sum of FLOP / peak, by format: {', '.join(named)}{place}",
        expression=_compute_text(ops, hardware),
        value=value,
        unit="s",
        sources=_peak_sources(units, hardware),
    )


def _peak_sources(units: Sequence[str], hardware: HardwareProfile) -> tuple[str, ...]:
    found = (profile_source(hardware, f"peak_flop_per_s.{hardware.peak_name(unit)}") for unit in units)
    return tuple(dict.fromkeys(source for sources in found for source in sources))


def _link_text(ops: Sequence[OpCost], link: Link) -> str:
    moved = total(digits(op.link_bytes) for op in ops if op.link_bytes)
    return f"{factor(moved)} / {digits(link.bytes_per_s)}"


def _link_step(ops: Sequence[OpCost], link: Link, value: float, sources: tuple[str, ...]) -> ExplainedStep:
    return ExplainedStep(
        quantity="link_s",
        formula=f"sum of link_bytes / rate of {link.name}",
        expression=_link_text(ops, link),
        value=value,
        unit="s",
        sources=sources,
    )


def _link_source(hardware: HardwareProfile, cost: StepCost) -> tuple[str, ...]:
    name = hardware.link_name(cost.exchange_gpus)
    return () if name is None else profile_source(hardware, f"links.{name}")


def _stage_text(ops: Sequence[OpCost], hardware: HardwareProfile, link: Link | None) -> str:
    wire = "0" if link is None else _link_text(ops, link)
    return f"max({_memory_text(ops, hardware)}, {_compute_text(ops, hardware)}, {wire})"


def _serial_step(cost: StepCost, hardware: HardwareProfile, link: Link | None, value: float) -> ExplainedStep:
    formula = "sum over the operators of max(flop / peak, (bytes + activation_bytes) / bandwidth)"
    sources = (
        *_peak_sources(list(_flop_by_unit(cost.ops)), hardware),
        *profile_source(hardware, "memory_bandwidth_bytes_per_s"),
    )
    if link is not None:
        formula += " + collective_bytes / link's rate + collective_steps x latency"
        sources += _link_source(hardware, cost)
    return ExplainedStep(
        quantity="serial_s",
        formula=formula,
        expression=total(term for op in cost.ops for term in _alone(op, hardware, link)),
        value=value,
        unit="s",
        sources=tuple(dict.fromkeys(sources)),
    )


def _alone(op: OpCost, hardware: HardwareProfile, link: Link | None) -> Iterator[str]:
    """Return the time of an operator on its own."""
    memory = f"{digits(op.moved_bytes)} / {digits(hardware.memory_bandwidth_bytes_per_s)}"
    compute = f"{digits(op.flop)} / {digits(hardware.peak(op.unit))}"
    if op.flop and op.moved_bytes:
        yield f"max({compute}, {memory})"
    elif op.flop or op.moved_bytes:
        yield compute if op.flop else memory
    if link is not None and op.collective_bytes:
        yield f"{digits(op.collective_bytes)} / {digits(link.bytes_per_s)}"
        if link.latency_s:
            yield f"{op.collective_steps} * {digits(link.latency_s)}"
