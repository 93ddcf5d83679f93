"""Models and accelerators of the catalogue: the answers of ``kvcalc models`` and ``kvcalc gpus``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from kvcalc.core.figures import figure
from kvcalc.core.reports.common import Report

__all__ = [
    "GpuEntry",
    "GpusReport",
    "ModelEntry",
    "ModelsFitReport",
    "ModelsReport",
    "QuantRow",
    "QuantsReport",
    "RunnableModel",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One model.

    Args:
        name: its catalogue name.
        architecture: its architecture.
        parameters: of the whole model.
        active_parameters: those of the text model that a token is multiplied with.
        kv_bytes_per_token: what the next token adds to a sequence of 4,096 tokens, in the model's own cache format.
        context_limit: longest sequence it was made for; none where it has no limit.
    """

    name: str = field(metadata=figure("model"))
    architecture: str = field(metadata=figure("architecture", rank=2))
    parameters: int = field(metadata=figure("parameters"))
    active_parameters: int = field(metadata=figure("active parameters", column="active", rank=1))
    kv_bytes_per_token: int = field(metadata=figure("KV per token", column="KV/token"))
    context_limit: int | None = field(metadata=figure("context"))

    sorts: ClassVar = {
        "name": "name",
        "architecture": "architecture",
        "parameters": "parameters",
        "active": "active_parameters",
        "kv": "kv_bytes_per_token",
        "context": "context_limit",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEntry:
    """One accelerator; peaks are dense.

    Args:
        name: its catalogue name.
        title: the product's name.
        memory_bytes: memory that a program can fill.
        memory_bandwidth_bytes_per_s: peak bandwidth of the memory.
        bf16_flop_per_s: peak in bf16, or in fp16 where it has no bf16.
        fp8_flop_per_s: peak in fp8; none where it has none.
        board_power_w: rated power; none where it is not known.
    """

    name: str = field(metadata=figure("GPU"))
    title: str = field(metadata=figure("product", rank=3))
    memory_bytes: int = field(metadata=figure("memory"))
    memory_bandwidth_bytes_per_s: float = field(metadata=figure("bandwidth"))
    bf16_flop_per_s: float | None = field(metadata=figure("bf16 peak"))
    fp8_flop_per_s: float | None = field(metadata=figure("fp8 peak", rank=1))
    board_power_w: float | None = field(metadata=figure("power, W", rank=2))

    sorts: ClassVar = {"name": "name", "memory": "memory_bytes", "bandwidth": "memory_bandwidth_bytes_per_s",
                       "bf16": "bf16_flop_per_s", "fp8": "fp8_flop_per_s", "power": "board_power_w"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelsReport(Report):
    """Models of the catalogue: names, and a row for each.

    ``of`` is how many models there are in all.
    """

    schema: str = "kvcalc.models/1"
    models: tuple[str, ...]
    rows: tuple[ModelEntry, ...]
    of: int

    listed: ClassVar = "rows"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GpusReport(Report):
    """Accelerators of the catalogue: names, and a row for each.

    ``of`` is how many accelerators there are in all.
    """

    schema: str = "kvcalc.gpus/1"
    gpus: tuple[str, ...]
    rows: tuple[GpuEntry, ...]
    of: int

    listed: ClassVar = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantRow:
    """One recipe.

    Args:
        recipe: its name.
        total_bytes: bytes of the file's tensors.
        bits_per_weight: bits of an element in the mean.
        mixture: matrices of each type, the most bytes first.
        needs_imatrix: whether the tool makes it only with an importance matrix.
        fits: whether weights, and the cache at the context, are within the memory; none where no memory is given.
        max_context: the most tokens of one sequence whose cache is within it beside the weights; 0 where it holds none.
    """

    recipe: str
    total_bytes: int
    bits_per_weight: float
    mixture: str
    needs_imatrix: bool
    fits: bool | None = None
    max_context: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QuantsReport(Report):
    """A model's file by every recipe, the largest first."""

    schema: str = "kvcalc.quants/1"
    model: str
    context: int
    memory_bytes: int | None
    rows: tuple[QuantRow, ...]
    notes: tuple[str, ...] = ()


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
