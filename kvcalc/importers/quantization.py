"""What a config's ``quantization_config`` says of the formats of weights, activations and cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Shape

__all__ = ["CheckpointFormats", "weight_formats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormats:
    """Formats a checkpoint declares.

    Args:
        parts: format by part of the model, for the parts that differ from its dtype.
        kv: format of the cache, where it declares one.
        activations: format the quantised matrices are multiplied in, where it is not the dtype.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    kv: str | None = None
    activations: str | None = None


def weight_formats(top: Config, text: Config, shape: Shape, *, dtype: str) -> CheckpointFormats:
    """Return the formats that the config declares."""
    return CheckpointFormats()
