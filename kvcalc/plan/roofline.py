"""Models below an accelerator's ceilings, and the batch at which more stops helping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.ranges import check_combinations
from kvcalc.core.reports.roofline import PlateauRow, RooflinePoint, RooflineReport
from kvcalc.core.workload import decode_step, prefill_pass
from kvcalc.cost.roofline import ridge_flop_per_byte
from kvcalc.plan.contexts import check_context, default_context
from kvcalc.plan.room import fit_reason
from kvcalc.plan.steps import hardware_notes, timed_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.workload import TokenGroup
    from kvcalc.plan.deployment import Deployment

__all__ = ["plateau_row", "roofline_report"]

# Batches are searched up to here; at such a batch a step is its limit for every model there is.
_MAX_BATCH = 2**40
# Sequences enough that every expert is read whatever the next ones choose.
_MANY = 1_000_000


def roofline_report(
    hardware: HardwareProfile,
    deployments: Sequence[Deployment] = (),
    *,
    gpus: int = 1,
    batches: Sequence[int] = (1,),
    contexts: Sequence[int] | None = None,
) -> RooflineReport:
    """Return an accelerator's ceilings and ridge points, and the points of models on them.

    Args:
        hardware: the accelerator.
        deployments: models on it.
        gpus: how many of it work together; ceilings are their sum.
        batches: sequences of each point.
        contexts: tokens attended in decode, prompt tokens in prefill.

    Raises:
        InputError: a batch or context below one, or too many points.
    """
    check_combinations("points of model, batch and context", deployments, batches, contexts or (0,))
    points: list[RooflinePoint] = []
    plateaus: list[PlateauRow] = []
    notes: dict[str, None] = {}
    for deployment in deployments:
        lengths = (default_context(deployment.model, deployment.engine),) if contexts is None else tuple(contexts)
        for context in lengths:
            notes |= dict.fromkeys(check_context(deployment.model, context))
            for batch in batches:
                points.append(_point(deployment, "decode", batch, context, decode_step(batch=batch, context=context)))
                points.append(_point(deployment, "prefill", batch, context, prefill_pass(batch=batch, prompt=context)))
            plateaus.append(plateau_row(deployment, context=context))
        notes |= dict.fromkeys((*deployment.all_notes, *hardware_notes(deployment)))
    peaks = {unit: gpus * rate for unit, rate in hardware.peak_flop_per_s.items()}
    return RooflineReport(
        gpu=hardware.name,
        gpus=gpus,
        memory_bandwidth_bytes_per_s=gpus * hardware.memory_bandwidth_bytes_per_s,
        peak_flop_per_s=peaks,
        ridge_flop_per_byte={
            unit: ridge_flop_per_byte(rate, hardware.memory_bandwidth_bytes_per_s)
            for unit, rate in hardware.peak_flop_per_s.items()
        },
        points=tuple(points),
        plateaus=tuple(plateaus),
        notes=tuple(notes),
    )


def _point(deployment: Deployment, phase: str, batch: int, context: int, group: TokenGroup) -> RooflinePoint:
    step = timed_step(deployment, group)
    return RooflinePoint(
        model=deployment.model.name,
        phase=phase,
        batch=batch,
        context=context,
        intensity_flop_per_byte=step.intensity_flop_per_byte,
        attainable_flop_per_s=step.cost.flop / step.time.ideal_s,
        limiter=step.time.limiter,
        fits=not fit_reason(deployment, context=context, batch=batch),
    )


def plateau_row(deployment: Deployment, *, context: int) -> PlateauRow:
    """Return the intensity that decode levels off at as the batch grows, and the batches that matter on the way.

    With every weight read once for the whole batch, what a further sequence adds is its FLOP, its cache and its logits:
    their quotient is the plateau.
    """

    def step(batch: int) -> tuple[float, str]:
        timed = timed_step(deployment, decode_step(batch=batch, context=context))
        return timed.intensity_flop_per_byte, timed.time.limiter

    plateau = _marginal_intensity(deployment, context)
    return PlateauRow(
        model=deployment.model.name,
        context=context,
        plateau_flop_per_byte=plateau,
        half_batch=_smallest(lambda batch: step(batch)[0] >= plateau / 2) or _MAX_BATCH,
        compute_bound_batch=_smallest(lambda batch: step(batch)[1] == "compute"),
    )


def _marginal_intensity(deployment: Deployment, context: int) -> float:
    """FLOP over bytes of one more sequence where all weights (and experts) are read already."""
    many = _MANY * deployment.parallel.data
    one, two = (timed_step(deployment, decode_step(batch=count, context=context)).cost for count in (many, 2 * many))
    return (two.flop - one.flop) / (two.compulsory_bytes - one.compulsory_bytes)


def _smallest(reached: Callable[[int], bool]) -> int | None:
    """Return the smallest batch from which on something holds; it must hold for every larger one."""
    if not reached(_MAX_BATCH):
        return None
    low, high = 0, 1
    while not reached(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
