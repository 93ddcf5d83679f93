"""Kernels of serving engines on their own: what matrices, routed experts and sums over ranks reach."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.calibration import Reach
from kvcalc.core.cost_types import OpCost
from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.model import Mixture
from kvcalc.core.search import least_near
from kvcalc.core.units import MICROSECOND
from kvcalc.core.workload import Formats, Parallel
from kvcalc.cost.collectives import all_reduce
from kvcalc.cost.estimate import OperatorTerms, SumTerms, operator_seconds, sum_seconds
from kvcalc.cost.linear import experts_cost
from kvcalc.evidence.names import find_hardware
from kvcalc.evidence.together import largest_of, stacked_operators
from kvcalc.files import open_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.evidence.together import Array

__all__ = ["KernelTime", "collective_reach", "kernel_reach", "read_kernels"]

_STORED = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block128", "nvfp4": "nvfp4"}

_START = Reach(bandwidth_share=0.8, flop_share=0.5, call_s=1e-5, sum_share=0.8, padding_rows=8, activation_share=0.4)
_TIMES = ("call_s", "collective_s", "staged_s")
_LEAST = dict.fromkeys(_TIMES, 1e-7) | {"sum_share": 0.5, "padding_rows": 0.5, "bandwidth_share": 0.3}
_MOST = dict.fromkeys(_TIMES, 1e-3) | {"sum_share": 1.0, "padding_rows": 256}
_LEAST_SHARE, _MOST_SHARE = 0.02, 0.95
# A measurement counts no more than one that is off by this much of a factor of e.
_CAP = 1.0
_MIN_PULL = 1e-3
_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """A kernel's time on its own.

    Args:
        table: ``gemm``, ``moe`` or ``all_reduce``.
        system: the accelerator.
        engine: the engine whose kernel it is.
        version: its version.
        unit: arithmetic format.
        terms: what it computes and moves.
        reduced: of a sum over ranks, what it sends.
        measured_s: its time.
    """

    table: str
    system: str
    engine: str
    version: str
    unit: str
    terms: OperatorTerms
    reduced: SumTerms | None
    measured_s: float


def read_kernels(path: Path) -> tuple[KernelTime, ...]:
    """Return the kernel times of a table such as ``tests/evidence/serving_kernels.csv``."""
    with open_text(path) as text:
        return tuple(map(_kernel, csv.DictReader(text)))


def _kernel(row: Mapping[str, str]) -> KernelTime:
    hardware = find_hardware(row["system"])[0]
    operators = {"gemm": _product, "moe": _experts}
    operator = operators.get(row["table"])
    terms = OperatorTerms(0.0, 0.0, 1) if operator is None else _terms(operator(row), hardware)
    link = hardware.link(int(row["rows"])) if operator is None else None
    reduced = None
    if link is not None:
        sent = all_reduce(FORMATS["bf16"].bytes(int(row["columns"])), int(row["rows"]))
        reduced = SumTerms(1, sent.bytes / link.bytes_per_s, sent.direct_bytes / link.bytes_per_s)
    return KernelTime(
        table=row["table"],
        system=hardware.name,
        engine=row["engine"],
        version=row["version"],
        unit=row["unit"],
        terms=terms,
        reduced=reduced,
        measured_s=float(row["latency_us"]) * MICROSECOND,
    )


def _terms(op: OpCost, hardware: HardwareProfile) -> OperatorTerms:
    peak, bandwidth = hardware.peak(op.unit), hardware.memory_bandwidth_bytes_per_s
    return OperatorTerms(
        op.flop / peak, op.moved_bytes / bandwidth, 1, op.row_flop / peak, op.activation_bytes / bandwidth
    )


def _product(row: Mapping[str, str]) -> OpCost:
    rows, columns, inputs = (int(row[name]) for name in ("rows", "columns", "inputs"))
    return OpCost(
        name="gemm",
        part="mlp",
        unit=row["unit"],
        flop=2 * rows * columns * inputs,
        weight_bytes=parse_format(_STORED[row["dtype"]]).bytes(columns * inputs),
        activation_bytes=FORMATS["bf16"].bytes(rows * (inputs + columns)),
        row_flop=2 * columns * inputs,
    )


def _experts(row: Mapping[str, str]) -> OpCost:
    tokens, width, hidden, chosen, experts = (
        int(row[name]) for name in ("rows", "columns", "inputs", "chosen", "experts")
    )
    stored = parse_format(_STORED.get(row["dtype"], "mxfp4"))
    mixture = Mixture(experts=experts, experts_per_token=chosen, width=width)
    cost = experts_cost(
        mixture,
        name="experts",
        hidden=hidden,
        tokens=tokens,
        layers=1,
        formats=Formats(weights=stored),
        parallel=Parallel(),
        routing="expected",
    )
    return replace(cost, unit=row["unit"])


def kernel_reach(kernels: Iterable[KernelTime], *, table: str, system: str, engine: str, unit: str) -> Reach | None:
    """Return the reach that is nearest to the times of one kind of kernel, or none without any."""
    own = [
        each for each in kernels if (each.table, each.system, each.engine, each.unit) == (table, system, engine, unit)
    ]
    return _nearest(own) if own else None


def _nearest(kernels: Sequence[KernelTime]) -> Reach:
    import numpy as np

    names = ("call_s", "bandwidth_share", "flop_share", "sum_share", "padding_rows", "activation_share")
    start = {name: float(getattr(_START, name)) for name in names}

    terms = stacked_operators(each.terms for each in kernels)
    measured_s = np.array([each.measured_s for each in kernels])

    def loss(values: Mapping[str, float]) -> float:
        reach = Reach(**values)
        seconds: Array = reach.call_s + operator_seconds(terms, reach, most=largest_of)
        errors = np.minimum(_CAP, np.abs(np.log(seconds / measured_s)))
        moved = sum(abs(math.log(value / start[name])) for name, value in values.items())
        return float(errors.mean()) + _MIN_PULL * moved

    nearest = least_near(loss, start, bounded=_bounded)
    return Reach(**{name: float(f"{value:.{_DIGITS}g}") for name, value in nearest.items()})


def _bounded(name: str, value: float) -> float:
    return min(_MOST.get(name, _MOST_SHARE), max(_LEAST.get(name, _LEAST_SHARE), value))


def collective_reach(kernels: Iterable[KernelTime], base: Calibration, *, system: str) -> Calibration:
    """Return a calibration with the times and shares of sums over ranks that are nearest to an engine's own."""
    own = [each for each in kernels if (each.table, each.system, each.engine) == ("all_reduce", system, base.engine)]
    sums = [(each.reduced, each.measured_s) for each in own if each.reduced is not None]

    def loss(values: Mapping[str, float]) -> float:
        tried = replace(base, **values)  # type: ignore[arg-type]
        errors = (abs(math.log((tried.collective_s + sum_seconds(each, tried)) / taken)) for each, taken in sums)
        return sum(min(_CAP, error) for error in errors) / len(sums)

    start = {"collective_s": 5e-6, "direct_share": 0.2, "staged_s": 1e-5, "link_share": 0.6}
    nearest = least_near(loss, start, bounded=_bounded)
    return replace(base, **{name: float(f"{value:.{_DIGITS}g}") for name, value in nearest.items()})  # type: ignore[arg-type]
