"""Models and accelerators of the catalogue: the answers of ``kvcalc models`` and ``kvcalc gpus``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from kvcalc.core.figures import figure
from kvcalc.core.reports.common import Report

__all__ = ["GpuEntry", "GpusReport", "ModelEntry", "ModelsReport"]


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
