"""Explaining an accelerator's ridge points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.reports.common import ExplainedStep
from kvcalc.cost.roofline import ridge_flop_per_byte
from kvcalc.plan.explain.text import profile_source

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile

__all__ = ["explain_roofline"]


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
