"""Explaining a placement: the bytes of each device and the host, and the time of a decode step, place by place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.sums import added
from kvcalc.core.traced import digits
from kvcalc.cost.roofline import stage_seconds, stages_time
from kvcalc.plan.explain.text import ASKED, profile_source, total

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvcalc.core.cost_types import PlacedStage
    from kvcalc.core.reports.local import LocalReport, PlaceBytes
    from kvcalc.plan.local.setup import LocalSetup
    from kvcalc.plan.local.speed import Course

__all__ = ["explain_places", "explain_speed"]

_ENGINE = "llama.cpp commit 0c1e57098bba"
_SOURCES = {
    "weight_bytes": f"{_ENGINE}: llama_model_loader::create_tensor, by the placement",
    "repacked_bytes": f"{_ENGINE}: ggml_repack_get_optimal_repack_type",
    "context_bytes": f"{_ENGINE}: llama_kv_cache, by the placement",
    "compute_bytes": f"{_ENGINE}: a replay of llama_context::sched_reserve",
}


def explain_places(report: LocalReport) -> tuple[ExplainedStep, ...]:
    """Return the sums of bytes on each device and the host, and what is free there.

    Args:
        report: the placement's report.
    """
    return tuple(step for row in (*report.devices, report.host) for step in _place_steps(row))


def _place_steps(row: PlaceBytes) -> Iterator[ExplainedStep]:
    sizes = {name: getattr(row, name) for name in _SOURCES if getattr(row, name)}
    yield ExplainedStep(
        quantity=f"{row.name}.reserved_bytes",
        formula=total(name.removesuffix("_bytes") for name in sizes),
        expression=total(digits(size) for size in sizes.values()),
        value=row.reserved_bytes,
        unit="B",
        sources=tuple(_SOURCES[name] for name in sizes),
    )
    if row.memory_bytes is None:
        return
    yield ExplainedStep(
        quantity=f"{row.name}.left_bytes",
        formula="memory - other programs - the runtime's own - reserved",
        expression=f"{digits(row.memory_bytes)} - {digits(row.used_bytes)} - {digits(row.overhead_bytes)}"
        f" - {digits(row.reserved_bytes)}",
        value=row.memory_bytes - row.used_bytes - row.overhead_bytes - row.reserved_bytes,
        unit="B",
        sources=(ASKED,),
    )


def explain_speed(setup: LocalSetup, course: Course) -> tuple[ExplainedStep, ...]:
    """Return the least time of a decode step: a sum over the places that a token passes, each at its own rates.

    Args:
        setup: the machine.
        course: what a step of the placed model runs through.
    """
    stages = [stage for stage in course.decode if max(stage_seconds(stage.ops, stage.hardware, stage.link))]
    steps = [step for stage in stages for step in _stage_steps(setup, stage)]
    spent = [max(stage_seconds(stage.ops, stage.hardware, stage.link)) for stage in stages]
    ideal_s = stages_time(course.decode).latency_s
    steps.append(
        ExplainedStep(
            quantity="decode_ideal_s",
            formula="the sum over places, one after another",
            expression=total(map(digits, spent)),
            value=ideal_s,
            unit="s",
        )
    )
    steps.append(
        ExplainedStep(
            quantity="tokens_per_s",
            formula="1 / decode_ideal_s",
            expression=f"1 / {digits(ideal_s)}",
            value=1 / ideal_s,
            unit="tokens/s",
        )
    )
    return tuple(steps)


def _stage_steps(setup: LocalSetup, stage: PlacedStage) -> Iterator[ExplainedStep]:
    """Yield the time that a place takes: its bytes over its bandwidth, its FLOP over its peaks, or what it is sent."""
    compute_s, memory_s, link_s = stage_seconds(stage.ops, stage.hardware, stage.link)
    name = setup.host.name if stage.place is None else setup.devices[stage.place].name
    if link_s >= max(compute_s, memory_s) and stage.link is not None:
        sent = added(op.link_bytes for op in stage.ops)
        yield _seconds(
            f"{name}.link_s",
            "bytes that cross to the host / rate of the link",
            f"{digits(sent)} / {digits(stage.link.bytes_per_s)}",
            link_s,
            (stage.link.name,),
        )
    elif memory_s >= compute_s:
        fields = ("weight_bytes", "kv_read_bytes", "kv_write_bytes", "io_bytes")
        sums = [added(getattr(op, field) for op in stage.ops) for field in fields]
        rate = stage.hardware.memory_bandwidth_bytes_per_s
        yield _seconds(
            f"{name}.memory_s",
            "(weights + cache read + cache written + logits) / bandwidth",
            f"({total(map(digits, sums))}) / {digits(rate)}",
            memory_s,
            profile_source(stage.hardware, "memory_bandwidth_bytes_per_s"),
        )
    else:
        by_unit = _flop_by_unit(stage)
        yield _seconds(
            f"{name}.compute_s",
            "the sum over formats of FLOP / peak",
            total(f"{digits(flop)} / {digits(stage.hardware.peak(unit))}" for unit, flop in by_unit.items()),
            compute_s,
            _peak_sources(stage, by_unit),
        )


def _peak_sources(stage: PlacedStage, units: Iterable[str]) -> tuple[str, ...]:
    paths = (f"peak_flop_per_s.{stage.hardware.peak_name(unit)}" for unit in units)
    return tuple(dict.fromkeys(each for path in paths for each in profile_source(stage.hardware, path)))


def _flop_by_unit(stage: PlacedStage) -> dict[str, float]:
    flop: dict[str, float] = {}
    for op in stage.ops:
        if op.flop:
            flop[op.unit] = flop.get(op.unit, 0.0) + op.flop
    return flop


def _seconds(quantity: str, formula: str, expression: str, value: float, sources: Sequence[str]) -> ExplainedStep:
    return ExplainedStep(
        quantity=quantity, formula=formula, expression=expression, value=value, unit="s", sources=tuple(sources)
    )
