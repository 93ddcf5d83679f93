"""One pass on its hardware: what decode, prefill and roofline share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.model import Part
from kvcalc.core.records import dataclass
from kvcalc.core.reports.speed import PartCost, PrefillRow
from kvcalc.core.units import bytes_text, rate_text
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.roofline import intensity_flop_per_byte, step_time
from kvcalc.plan.contexts import check_context
from kvcalc.plan.economics import cost_fields
from kvcalc.plan.estimates import estimate_fields, estimated_with
from kvcalc.plan.formats import format_names
from kvcalc.plan.rank_memory import memory_needed
from kvcalc.plan.room import fit_reason, unmodelled_notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.cost_types import StepCost, StepTime
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.speed import DecodeRow
    from kvcalc.core.workload import Routing, TokenGroup
    from kvcalc.plan.deployment import Deployment

__all__ = [
    "TimedStep",
    "cache_notes",
    "check_timed",
    "first_misfit",
    "hardware_notes",
    "link_notes",
    "pipeline_notes",
    "report_fields",
    "required_hardware",
    "row_fields",
    "timed_step",
]


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
        UnsupportedError: a deployment whose speed is not described.
    """
    check_timed(deployment)
    if deployment.hardware is None:
        raise InputError("a speed needs an accelerator", hint="give --gpu, for example --gpu h100-sxm")
    return deployment.hardware


def check_timed(deployment: Deployment) -> None:
    """Refuse a deployment whose memory alone is described: with decode context parallelism ranks read other shares.

    Raises:
        UnsupportedError: it is one.
    """
    if deployment.options.decode_context_parallel > 1:
        raise UnsupportedError(
            "the speed with decode context parallelism is not modelled",
            hint="leave out --dcp, or ask size or fit for the memory",
            parameter="decode-context-parallel",
        )


def timed_step(deployment: Deployment, group: TokenGroup, *, routing: Routing = "expected") -> TimedStep:
    """Return cost and time of a pass over one group of sequences."""
    hardware = required_hardware(deployment)
    cost = forward_cost(deployment.model, (group,), deployment.formats, parallel=deployment.parallel, routing=routing)
    intensity = intensity_flop_per_byte(flop=cost.flop, moved_bytes=cost.compulsory_bytes)
    return TimedStep(cost=cost, time=step_time(cost, hardware), intensity_flop_per_byte=intensity)


def _part_costs(cost: StepCost) -> tuple[PartCost, ...]:
    """Return FLOP and compulsory bytes by part of the model, over all ranks."""
    return tuple(
        PartCost(part=part, flop=cost.total("flop", part=part), moved_bytes=cost.total("compulsory_bytes", part=part))
        for part in cost.parts
        if part != "interconnect"
    )


def report_fields(
    deployment: Deployment, lengths: Sequence[int], *, what: str, calibration: Calibration | None = None
) -> dict[str, Any]:
    """Return the common fields of reports on passes: names, memory, formats and notes.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        lengths: tokens of each row, for a note where they exceed the model's limit.
        what: what they are, for the note.
        calibration: what estimates are made with.
    """
    model, hardware = deployment.model, required_hardware(deployment)
    beyond = dict.fromkeys(note for tokens in lengths for note in check_context(model, tokens, what=what))
    return {
        "model": model.name,
        "gpu": hardware.name,
        "gpus": deployment.parallel.gpus,
        "memory_bytes": deployment.memory_bytes,
        "engine": deployment.served_by,
        "formats": format_names(deployment.formats),
        "price_per_hour_usd": hardware.price_per_hour_usd,
        "power_w": deployment.power_w,
        "notes": (
            *beyond,
            *deployment.notes,
            *unmodelled_notes(deployment, context=lengths[0]),
            *pipeline_notes(deployment),
            *hardware_notes(deployment),
            *model.notes,
        ),
        "calibration": estimated_with(calibration),
    }


def row_fields(
    deployment: Deployment, step: TimedStep, *, batch: int, tokens: int, calibration: Calibration | None = None
) -> dict[str, Any]:
    """Return the common fields of rows of passes, for a batch of sequences that hold that many tokens after it."""
    cost, time = step.cost, step.time
    tokens_per_s = cost.tokens / time.ideal_s
    needed = memory_needed(deployment, tokens=tokens, batch=batch)
    return {
        "batch": batch,
        "flop": cost.flop,
        "weight_bytes": cost.total("weight_bytes"),
        "kv_write_bytes": cost.total("kv_write_bytes"),
        "intensity_flop_per_byte": step.intensity_flop_per_byte,
        "ideal_s": time.ideal_s,
        "serial_s": time.serial_s,
        "tokens_per_s": tokens_per_s,
        "limiter": time.limiter,
        "shares": time.shares,
        "fits": not fit_reason(deployment, context=tokens, batch=batch),
        "memory_needed_bytes": needed,
        "parts": _part_costs(cost),
        **cost_fields(deployment, tokens_per_s),
        **estimate_fields(cost, required_hardware(deployment), calibration),
    }


def first_misfit(deployment: Deployment, rows: Sequence[DecodeRow] | Sequence[PrefillRow]) -> str:
    """Say why the first row that does not fit does not; nothing where all fit."""
    over = next((row for row in rows if not row.fits), None)
    if over is None:
        return ""
    tokens = over.prompt if isinstance(over, PrefillRow) else over.context
    return fit_reason(deployment, context=tokens, batch=over.batch)


def hardware_notes(deployment: Deployment) -> tuple[str, ...]:
    """Return notes on the hardware's numbers."""
    hardware = required_hardware(deployment)
    notes = list(hardware.notes)
    notes += [hardware.memory_note] if hardware.memory_note else []
    notes += [note for unit in _units(deployment) if (note := _widened_note(hardware, unit))]
    notes += link_notes(deployment)
    return tuple(notes)


def _widened_note(hardware: HardwareProfile, unit: str) -> str:
    """Say that a format is multiplied in another one; nothing where it is not."""
    name = hardware.peak_name(unit)
    if name.removesuffix("_acc16") == unit:
        return ""
    why = "has no faster" if unit in hardware.peak_flop_per_s else "has no"
    return f"{hardware.name} {why} {unit} peak: it is taken to run as {name}"


def link_notes(deployment: Deployment) -> tuple[str, ...]:
    """Say over which link more accelerators exchange than one domain joins, or that none is known."""
    hardware, parallel = deployment.hardware, deployment.parallel
    if hardware is None or parallel.gpus == 1:
        return ()
    inside = hardware.links.get("scale_up")
    joined = inside.gpus if inside is not None else None
    link = hardware.link(max(2, parallel.exchange_gpus))
    if link is None:
        beyond = f" beyond {joined} GPUs" if joined else ""
        return (f"{hardware.name}: no link is known{beyond}, so collectives are not in these times",)
    if inside is None or joined is None or parallel.gpus <= joined:
        return ()
    more = f"{parallel.gpus} GPUs are more than the {joined} that {inside.name} joins"
    if parallel.exchange_gpus <= joined:
        return (f"{more}: stages pass on between them",)
    return (f"{more}: they exchange over {link.name}, {rate_text(link.bytes_per_s)} per GPU at most",)


def _units(deployment: Deployment) -> list[str]:
    """Arithmetic formats that the model's multiplications run in."""
    formats = deployment.formats
    return sorted({formats.hidden.unit, *(formats.multiplied_as(part) for part in get_args(Part))})


def cache_notes(deployment: Deployment, rows: Sequence[DecodeRow]) -> tuple[str, ...]:
    """Return a warning where a step's whole traffic fits into the last-level cache, which can beat the memory bound."""
    cache = required_hardware(deployment).last_level_cache_bytes
    moved = [row.weight_bytes + row.kv_read_bytes + row.kv_write_bytes for row in rows]
    if cache is None or not moved or min(moved) / deployment.parallel.gpus >= cache:
        return ()
    size = bytes_text(cache)
    return (
        f"a step moves less than the last-level cache of {size} holds: data that stays there can beat the memory bound",
    )


def pipeline_notes(deployment: Deployment) -> tuple[str, ...]:
    """Note the meaning of the figures where a model is cut into pipeline stages."""
    stages = deployment.parallel.pipeline
    if stages == 1:
        return ()
    slowest = f"{stages} pipeline stages: the ideal step is that of the slowest stage, with as many batches in flight"
    return (f"{slowest}; one sequence passes all of them",)
