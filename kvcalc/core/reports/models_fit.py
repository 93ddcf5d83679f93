"""Models of the catalogue that a machine runs: the answer of ``kvcalc models fit``."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcalc.core.figures import figure
from kvcalc.core.reports.common import Report

__all__ = ["ModelsFitReport", "RunnableModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnableModel:
    """A model, and the largest quantization of it that the machine holds.

    Args:
        model: its name.
        parameters: its parameters.
        weights: the recipe of its file.
        total_bytes: bytes of the file's tensors.
        stands: ``devices``, ``devices and host`` or ``host``.
        tokens_per_s: decoded tokens a second of one sequence at most; none where a device's rates are not known.
    """

    model: str
    parameters: int
    weights: str
    total_bytes: int = field(metadata=figure("file"))
    stands: str
    tokens_per_s: float | None = field(metadata=figure("tokens/s at most", "higher"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelsFitReport(Report):
    """Models that a machine runs: those on its devices alone first, the largest first.

    Args:
        devices: the devices.
        host_memory_bytes: the host's memory; none where it is not known.
        context: tokens of one sequence, whose cache is counted.
        rows: the models.
        too_large_models: models of which no quantization fits.
        unknown_models: models whose files are not known.
        notes: what a user should know.
    """

    schema: str = "kvcalc.models_fit/1"
    devices: tuple[str, ...]
    host_memory_bytes: int | None
    context: int
    rows: tuple[RunnableModel, ...]
    too_large_models: int
    unknown_models: int
    notes: tuple[str, ...] = ()
