"""Explaining ridge points, and the times of a pass: memory, compute and links, overlapped or one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.cost_types import OpCost
from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.sums import added
from kvcalc.core.traced import digits, larger, named, term_of
from kvcalc.cost.roofline import op_seconds, ridge_flop_per_byte, stage_seconds
from kvcalc.plan.explain.named import named_hardware, named_link, named_op
from kvcalc.plan.explain.text import profile_source
from kvcalc.plan.steps import required_hardware

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.core.cost_types import StepCost
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.steps import TimedStep

__all__ = ["explain_roofline", "time_steps"]

# Sums over the operators of a stage by what they are called, and the fields of an operator that are summed.
_SUMS = {
    "weights": "weight_bytes",
    "cache read": "kv_read_bytes",
    "cache written": "kv_write_bytes",
    "logits": "io_bytes",
    "link_bytes": "link_bytes",
}


def time_steps(deployment: Deployment, step: TimedStep) -> Iterator[ExplainedStep]:
    """Return the steps from FLOP and bytes to times."""
    hardware = required_hardware(deployment)
    cost, time = step.cost, step.time
    link = hardware.link(cost.exchange_gpus)
    stages = [stage_seconds(_summed(ops), named_hardware(hardware), named_link(link)) for ops in cost.stages]
    compute, memory, wire = map(term_of, stages[time.slowest_stage])
    sources = _Sources(hardware, cost)
    suffix = _place(deployment)
    yield _step("memory_s", f"{memory.formula}{suffix}", memory.expression, time.memory_s, sources.bandwidth)
    peaks = sources.peaks(cost.stages[time.slowest_stage])
    yield _step("compute_s", f"{compute.formula}{suffix}", compute.expression, time.compute_s, peaks)
    if link is not None:
        yield _step("link_s", f"{wire.formula}{suffix}", wire.expression, time.link_s, sources.link)
    yield ExplainedStep(
        quantity="intensity_flop_per_byte",
        formula="flop / bytes moved (weights, cache read and written, logits)",
        expression=f"{digits(cost.flop)} / {digits(cost.compulsory_bytes)}",
        value=step.intensity_flop_per_byte,
        unit="FLOP/B",
    )
    largest = f"max({digits(time.memory_s)}, {digits(time.compute_s)}, {digits(time.link_s)})"
    yield _step("ideal_s", "max(memory_s, compute_s, link_s)", largest, time.ideal_s)
    if len(cost.stages) > 1:
        in_turn = term_of(added(larger(*stage) for stage in stages)).expression
        yield _step("latency_s", "sum over the stages of max(memory_s, compute_s, link_s)", in_turn, time.latency_s)
    formula = "sum over the operators of max(flop / peak, (bytes + activation_bytes) / bandwidth)"
    if link is not None:
        formula += " + collective_bytes / link's rate + collective_steps x latency"
    alone = [op_seconds(named_op(op), named_hardware(hardware), named_link(link)) for op in cost.ops]
    used = dict.fromkeys((*sources.peaks(cost.ops), *sources.bandwidth, *sources.link))
    yield _step("serial_s", formula, term_of(added(alone)).expression, time.serial_s, tuple(used))


def _step(quantity: str, formula: str, expression: str, value: float, sources: tuple[str, ...] = ()) -> ExplainedStep:
    return ExplainedStep(
        quantity=quantity, formula=formula, expression=expression, value=value, unit="s", sources=sources
    )


def _place(deployment: Deployment) -> str:
    if deployment.parallel.pipeline > 1:
        return ", of one GPU of the slowest stage"
    return ", of one GPU" if deployment.parallel.gpus > 1 else ""


def _summed(ops: Sequence[OpCost]) -> list[OpCost]:
    """Return a stage as an operator of all its bytes, and one of its FLOP in each arithmetic format."""
    sums = {field: named(added(getattr(op, field) for op in ops), name) for name, field in _SUMS.items()}
    flop: dict[str, float] = {}
    for op in ops:
        flop[op.unit] = flop.get(op.unit, 0) + op.flop
    by_unit = [OpCost(name=unit, part="", unit=unit, flop=named(size, f"{unit} FLOP")) for unit, size in flop.items()]
    return [OpCost(name="bytes", part="", unit=ops[0].unit, **{name: size for name, size in sums.items() if size})] + [
        op for op in by_unit if op.flop
    ]


class _Sources:
    """Sources of an accelerator's rates.

    Args:
        hardware: the accelerator.
        cost: the pass, which decides over which link is exchanged.
    """

    def __init__(self, hardware: HardwareProfile, cost: StepCost) -> None:
        self._hardware = hardware
        self.bandwidth = profile_source(hardware, "memory_bandwidth_bytes_per_s")
        name = hardware.link_name(cost.exchange_gpus)
        self.link = () if name is None else profile_source(hardware, f"links.{name}")

    def peaks(self, ops: Sequence[OpCost]) -> tuple[str, ...]:
        """Return the sources of the peaks that operators run at."""
        names = dict.fromkeys(self._hardware.peak_name(op.unit) for op in ops if op.flop)
        sources_of = (profile_source(self._hardware, f"peak_flop_per_s.{name}") for name in names)
        return tuple(dict.fromkeys(source for sources in sources_of for source in sources))


def explain_roofline(hardware: HardwareProfile) -> tuple[ExplainedStep, ...]:
    """Return the steps behind an accelerator's ridge points."""
    bandwidth = hardware.memory_bandwidth_bytes_per_s
    return tuple(
        ExplainedStep(
            quantity=f"ridge point, {unit}",
            formula="peak / bandwidth",
            expression=f"{peak!r} / {bandwidth!r}",
            value=ridge_flop_per_byte(peak, bandwidth),
            unit="FLOP/B",
            sources=(
                *profile_source(hardware, f"peak_flop_per_s.{unit}"),
                *profile_source(hardware, "memory_bandwidth_bytes_per_s"),
            ),
        )
        for unit, peak in hardware.peak_flop_per_s.items()
    )
