"""Kernels as operators: a matrix product, or the attention of one decode step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.cost_types import OpCost, StepCost
from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.core.formats import FORMATS, Format, parse_format
from kvcalc.core.units import parse_rate
from kvcalc.evidence.cases import Case, Pass, Unusable
from kvcalc.evidence.names import find_hardware

if TYPE_CHECKING:
    from kvcalc.evidence.record import Record

__all__ = ["kernel_case"]

# Formats of the matrix and of what it is multiplied with; `sq` is SmoothQuant, 8-bit integers on both sides.
_GEMM = {
    "bfloat16": ("bf16", "bf16"),
    "float16": ("fp16", "fp16"),
    "fp8": ("fp8", "fp8"),
    "fp8_e4m3fn": ("fp8", "fp8"),
    "fp8_block": ("fp8_block128", "fp8"),
    "sq": ("int8", "int8"),
    "int8_wo": ("int8", "bf16"),
    "int4_wo": ("int4", "bf16"),
    "nvfp4": ("nvfp4", "nvfp4"),
}


def kernel_case(record: Record) -> Case | Unusable:
    """Return a kernel's record as one operator on an accelerator, or why it cannot be used."""
    if record.note.startswith("suspect"):
        return Unusable(status="excluded", reason="the file it stands in is corrupt or unexplained (suspect_file)")
    variants = find_hardware(record.hardware)
    if not variants:
        return Unusable(status="no profile", reason=f"no profile of the accelerator {record.hardware!r}")
    try:
        op, narrow = _gemm(record) if record.phase == "gemm" else (_attention(record), None)
        measured_s = _seconds(record, op.flop)
    except KvcalcError as error:
        return Unusable(status="excluded", reason=error.what)
    return Case(
        record=record,
        variants=variants,
        passes=(_alone(op),),
        measured_s=measured_s,
        narrow=(_alone(narrow),) if narrow is not None else (),
    )


def _seconds(record: Record, flop: float) -> float:
    if record.unit.lower().endswith("flop/s"):
        return flop / parse_rate(f"{record.value}{record.unit}")
    return record.seconds_per_token


def _alone(op: OpCost) -> Pass:
    return Pass(cost=StepCost(rank_kinds=((1, ((op,),)),), tokens=1))


def _gemm(record: Record) -> tuple[OpCost, OpCost | None]:
    """Return m x k times k x n: every operand read once, the product written once; and in the weights' own units."""
    m, n, k = _sizes(record, "m", "n", "k")
    printed = record.weights or ""
    stored, moved = (parse_format(name) for name in _GEMM.get(printed, (printed, printed)))
    unit = (stored if stored.bytes_per_element > moved.bytes_per_element else moved).unit
    op = OpCost(
        name="gemm",
        part="mlp",
        unit=unit,
        flop=2 * m * n * k,
        weight_bytes=stored.bytes(n * k),
        io_bytes=moved.bytes(m * k) + FORMATS["bf16"].bytes(m * n),
    )
    narrow = None if stored.unit == unit else OpCost(name="gemm", part="mlp", unit=stored.unit, flop=op.flop,
                                                     weight_bytes=op.weight_bytes, io_bytes=op.io_bytes)  # fmt: skip
    return op, narrow


def _attention(record: Record) -> OpCost:
    """Return one query for each sequence over its past: the cache read once, queries in and results out."""
    heads, kv_heads, dim, past, new = _sizes(record, "heads", "kv_heads", "head_dim", "past", "new")
    batch, tokens = record.batch or 1, min(past + new, record.shape.get("window") or past + new)
    cache, query = _format(record.kv), _format(record.weights)
    return OpCost(
        name="attention",
        part="cache",
        unit=query.unit,
        flop=batch * tokens * heads * 4 * dim,
        kv_read_bytes=cache.bytes(batch * tokens * kv_heads * 2 * dim),
        io_bytes=query.bytes(2 * batch * heads * dim),
    )


def _sizes(record: Record, *names: str) -> tuple[int, ...]:
    missing = [name for name in names if not record.shape.get(name)]
    if missing:
        raise InputError(f"the kernel's {missing[0]} was not printed")
    return tuple(record.shape[name] for name in names)


def _format(printed: str | None) -> Format:
    return parse_format({"bfloat16": "bf16"}.get(printed or "", printed or ""))
