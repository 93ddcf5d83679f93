"""Choices: deployments side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.core.hardware import HardwareProfile
from kvcalc.sources import load_hardware

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.reports.compare import CompareReport
    from kvcalc.plan.compare import Side
    from kvcalc.plan.deployment import Deployment

__all__ = ["compare", "side"]


def side(
    label: str, subject: Deployment | HardwareProfile | str | Path, *, context: int | None = None, batch: int = 1
) -> Side:
    """Return one side of a comparison.

    Args:
        label: what tells it from the others.
        subject: a model as it is run, or an accelerator (a profile, name or file) alone.
        context: tokens attended, and tokens of the prompt; 4,096 or the model's limit where left out.
        batch: sequences.
    """
    from kvcalc.plan.compare import Side

    compared = load_hardware(subject) if isinstance(subject, str | Path | HardwareProfile) else subject
    return Side(label=label, subject=compared, context=context, batch=batch)


def compare(sides: Sequence[Side], *, engine: str = "vllm") -> CompareReport:
    """Return the quantities of several sides, with differences and ratios to the first, and the best of each.

    Args:
        sides: what is compared, as `side` makes them; the first is the measure of the others.
        engine: whose memory model says how many sequences fit.

    Raises:
        InputError: fewer than two sides, or accelerators alone among models.
    """
    from kvcalc.plan.compare import compare_report

    return compare_report(sides, engine=engine)
