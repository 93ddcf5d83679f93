"""Side by side: the same quantities of several deployments, or of several accelerators alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.figures import figure_at
from kvcalc.core.hardware import HardwareProfile
from kvcalc.core.reports.compare import ComparedSide, CompareReport, CompareRow
from kvcalc.cost.roofline import ridge_flop_per_byte
from kvcalc.plan.contexts import default_context
from kvcalc.plan.decode import decode_row
from kvcalc.plan.deployment import started
from kvcalc.plan.fit import fit_report
from kvcalc.plan.prefill import prefill_row
from kvcalc.plan.size import size_report
from kvcalc.plan.steps import hardware_notes

if TYPE_CHECKING:
    from kvcalc.core.calibration import Calibration
    from kvcalc.core.reports.compare import CompareValue
    from kvcalc.plan.deployment import Deployment

__all__ = ["Side", "compare_report"]

# What is compared, in this order; labels and better ends are declared beside the reports' fields.
_QUANTITIES = (
    "size.weights.parameters",
    "size.weights.active_parameters",
    "size.weights.total_bytes",
    "size.kv.bytes_per_token",
    "size.kv.bytes_per_sequence",
    "size.kv.total_bytes",
    "decode.memory_needed_bytes",
    "decode.fits",
    "fit.max_batch",
    "fit.max_context",
    "decode.tokens_per_s",
    "decode.tokens_per_s_per_sequence",
    "decode.tokens_per_s_per_gib",
    "decode.ideal_s",
    "decode.estimate_s",
    "decode.estimate_tokens_per_s",
    "decode.limiter",
    "decode.intensity_flop_per_byte",
    "prefill.ideal_s",
    "prefill.estimate_s",
    "prefill.limiter",
    "decode.joules_per_token",
    "decode.usd_per_million_tokens",
)
# Quantities of a deployment in memory: those of one that does not fit are no best.
# Quantities of a side with a calibration.
_ESTIMATED = ("decode.estimate_s", "decode.estimate_tokens_per_s", "prefill.estimate_s")
_IN_MEMORY = ("decode.", "prefill.", "fit.")
# Why a side does not fit: said of the side, no quantity to compare.
_MISFIT = "fit.reason"
_BY_FORMAT = ("gpu.peak", "gpu.ridge")
_MAX_SIDES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of what is compared.

    Args:
        label: what tells it from the others.
        subject: a model as it is run, or an accelerator alone.
        context: tokens attended, and tokens of the prompt; 4,096 or the model's limit where left out.
        batch: sequences.
        calibration: what its times are estimated with beside the bounds; none for the bounds alone.
        notes: on the calibration.
    """

    label: str
    subject: Deployment | HardwareProfile
    context: int | None = None
    batch: int = 1
    calibration: Calibration | None = None
    notes: tuple[str, ...] = ()


def compare_report(sides: Sequence[Side], *, engine: str | None = None) -> CompareReport:
    """Return the quantities of several sides, with differences and ratios to the first, and the best of each.

    Args:
        sides: what is compared, the first as the measure of the others.
        engine: whose memory model says what fits; each side's own where left out.

    Raises:
        InputError: fewer than two sides, or accelerators among models.
    """
    if isinstance(sides, str) or not isinstance(sides, Sequence):
        raise InputError(f"the sides are a list, not {type(sides).__name__} {sides!r:.60}")
    if not 1 < len(sides) <= _MAX_SIDES:
        hint = f"name from two to {_MAX_SIDES} models, accelerators, formats or deployments"
        raise InputError("there is nothing to compare it with" if len(sides) == 1
                         else f"{len(sides)} sides cannot be compared", hint=hint)  # fmt: skip
    alone = [isinstance(side.subject, HardwareProfile) for side in sides]
    if any(alone) != all(alone):
        raise InputError(
            "accelerators cannot be compared with models", hint="give the models a --gpu, or leave them out"
        )
    notes: dict[str, None] = {}
    quantities = [_quantities(side, engine, notes) for side in sides]
    fits = [values.get("decode.fits") is not False for values in quantities]
    names = list(dict.fromkeys(name for values in quantities for name in values if name != _MISFIT))
    known = [name for name in _QUANTITIES if name in names]
    own = [name for name in names if name not in _QUANTITIES]  # an accelerator's
    return CompareReport(
        sides=tuple(_shown(side, str(values.pop(_MISFIT, ""))) for side, values in zip(sides, quantities, strict=True)),
        rows=tuple(_row(name, [values.get(name) for values in quantities], fits) for name in (*known, *own)),
        notes=tuple(notes),
    )


def _shown(side: Side, misfit: str) -> ComparedSide:
    subject = side.subject
    if isinstance(subject, HardwareProfile):
        return ComparedSide(label=side.label, model="", gpu=subject.name, gpus=1, batch=side.batch, context=0)
    return ComparedSide(
        label=side.label,
        model=subject.model.name,
        gpu="" if subject.hardware is None else subject.hardware.name,
        gpus=subject.parallel.gpus,
        batch=side.batch,
        context=_context(side, subject),
        misfit=misfit,
    )


def _context(side: Side, deployment: Deployment) -> int:
    return default_context(deployment.model, deployment.engine) if side.context is None else side.context


def _row(quantity: str, values: Sequence[CompareValue], fits: Sequence[bool]) -> CompareRow:
    declared = figure_at(quantity)
    label, better = (quantity, "") if declared is None else (declared.label, declared.better)
    if quantity.startswith(_BY_FORMAT):
        label = f"{label} {quantity.rpartition('.')[2]}"
    counted = [_number(value) for value in values]
    first = counted[0]
    shown = [
        value if fit or not quantity.startswith(_IN_MEMORY) else None for value, fit in zip(counted, fits, strict=True)
    ]
    candidates = [value for value in shown if value is not None]
    best: tuple[int, ...] = ()
    if better and candidates and len(set(counted)) > 1:
        end = min(candidates) if better == "lower" else max(candidates)
        best = tuple(index for index, value in enumerate(shown) if value == end)
    return CompareRow(
        quantity=quantity,
        label=label,
        better=better,
        values=tuple(values),
        differences=tuple(None if value is None or first is None else value - first for value in counted),
        ratios=tuple(None if value is None or not first else value / first for value in counted),
        best=best,
    )


def _number(value: CompareValue) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _quantities(side: Side, engine: str | None, notes: dict[str, None]) -> dict[str, CompareValue]:
    """Return a side's quantities, and add to the notes for the reader."""
    subject = side.subject
    if isinstance(subject, HardwareProfile):
        return _hardware(subject)
    context = _context(side, subject)
    subject = started(subject, engine or subject.served_by)
    sizes = size_report(subject, context=context, batch=side.batch)
    notes |= dict.fromkeys(sizes.notes)
    quantities: dict[str, CompareValue] = {
        "size.weights.parameters": sizes.weights.parameters,
        "size.weights.active_parameters": sizes.weights.active_parameters,
        "size.weights.total_bytes": sizes.weights.total_bytes,
        "size.kv.bytes_per_token": sizes.kv.bytes_per_token,
        "size.kv.bytes_per_sequence": sizes.kv.bytes_per_sequence,
        "size.kv.total_bytes": sizes.kv.total_bytes,
    }
    if subject.hardware is None:
        return quantities
    notes |= dict.fromkeys((*hardware_notes(subject), *side.notes))
    return quantities | _speeds(subject, context, side) | _room(subject, context, side.batch, notes)


def _speeds(deployment: Deployment, context: int, side: Side) -> dict[str, CompareValue]:
    step = decode_row(deployment, batch=side.batch, context=context, calibration=side.calibration)
    first = prefill_row(deployment, batch=1, prompt=context, calibration=side.calibration)
    rows = {"decode": step, "prefill": first}
    wanted = [name for name in _QUANTITIES if name.partition(".")[0] in rows]
    shown = [name for name in wanted if name not in _ESTIMATED or side.calibration is not None]
    return {name: getattr(rows[name.partition(".")[0]], name.partition(".")[2]) for name in shown}


def _room(deployment: Deployment, context: int, batch: int, notes: dict[str, None]) -> dict[str, CompareValue]:
    try:
        report = fit_report(deployment, context=context, batch=batch)
    except UnsupportedError as error:
        notes[f"{deployment.served_by}: {error.message}"] = None
        return {}
    notes |= dict.fromkeys(note for note in (report.assumed, *report.notes) if note)
    return {"fit.max_batch": report.max_batch, "fit.max_context": report.max_context, _MISFIT: report.reason}


def _hardware(hardware: HardwareProfile) -> dict[str, CompareValue]:
    bandwidth = hardware.memory_bandwidth_bytes_per_s
    return {
        "gpu.memory_bytes": hardware.usable_memory_bytes,
        "gpu.memory_bandwidth_bytes_per_s": bandwidth,
        "gpu.board_power_w": hardware.board_power_w,
        "gpu.price_per_hour_usd": hardware.price_per_hour_usd,
        **{f"gpu.peak_flop_per_s.{unit}": peak for unit, peak in hardware.peak_flop_per_s.items()},
        **{
            f"gpu.ridge_flop_per_byte.{unit}": ridge_flop_per_byte(peak, bandwidth)
            for unit, peak in hardware.peak_flop_per_s.items()
        },
    }
