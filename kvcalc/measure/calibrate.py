"""From micro-benchmarks to ceilings and to a calibration: few parameters, fitted to nothing but these."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kvcalc.core.calibration import MIN_SUM_SHARE, Calibration, Interval, Measured, Reach, kind_of
from kvcalc.core.hardware import HardwareProfile
from kvcalc.core.provenance import Source
from kvcalc.core.reports.measure import BenchRow
from kvcalc.core.search import least_near
from kvcalc.cost.estimate import OperatorTerms, operator_seconds
from kvcalc.cost.roofline import op_seconds
from kvcalc.measure.library import WIDEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvcalc.measure.library import Device
    from kvcalc.measure.probes import Probe

__all__ = ["bench_rows", "calibration_of", "ceilings", "drift", "noise_notes", "today", "weight_reading"]

ENGINE = "kvcalc-torch"

_NOISY = 0.3
_LOW, _HIGH = 0.1, 0.9
_MIN_SHARE, _MIN_CALL_S = 0.01, 1e-7
# What less of an overlap must earn.
_PULL = 0.002
_BOUNDS = {"sum_share": (MIN_SUM_SHARE, 1.0), "call_s": (_MIN_CALL_S, 1.0)}


def today() -> str:
    """Return the day of a measurement, ISO 8601."""
    return datetime.now(UTC).date().isoformat()


def _device_name(device: Device) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", device.title.lower()).strip("-") or device.kind
    return f"{words}-{device.threads}-threads" if device.threads else words


def ceilings(device: Device, probes: Iterable[Probe]) -> HardwareProfile:
    """Return the fastest rates that any repetition of any benchmark reached, as an accelerator profile.

    Bandwidth is that of streams and of matrices whose working set is several times the last-level cache; the peak of a
    format that of its fastest multiplication, and not below that of fp32: narrower numbers can be widened first.
    """
    bandwidth, peaks = 0.0, dict[str, float]()
    for probe in probes:
        fastest_s = probe.timing.least_s
        if _streams(probe, device):
            bandwidth = max(bandwidth, probe.op.compulsory_bytes / fastest_s)
        if probe.kind == "matrix":
            peaks[probe.format] = max(peaks.get(probe.format, 0.0), probe.op.flop / fastest_s)
    peaks = {name: max(peak, peaks.get(WIDEST, 0.0)) for name, peak in peaks.items()}
    versions = ", ".join(f"{name} {version}" for name, version in device.versions.items())
    note = f"kvcalc bench: fastest of repeated streams and multiplications; {versions}"
    return HardwareProfile(
        name=_device_name(device),
        title=f"{device.title}, measured",
        vendor="measured",
        architecture=device.architecture,
        memory_label_bytes=float(device.memory_bytes),
        memory_bytes=device.memory_bytes,
        memory_bandwidth_bytes_per_s=bandwidth,
        peak_flop_per_s=peaks,
        last_level_cache_bytes=device.last_level_cache_bytes or None,
        sources={"bench": Source(kind="measured", date=today(), note=note)},
        provenance={"default": "bench"},
        notes=("ceilings are those that a bench reached, not a datasheet's",),
    )


def weight_reading(device: Device, probes: Iterable[Probe]) -> float | None:
    """Return the bytes/s at which all threads read weights once, in sets beyond the caches; none without a read.

    A decode step of one sequence does nothing else with weights, in llama.cpp's processor path as here: each thread
    reads its rows once. It is the undisturbed rate of the fastest of reads and of matrices with one vector.
    """
    rates = [
        probe.op.compulsory_bytes / probe.timing.low_s
        for probe in probes
        if _streams(probe, device) and (probe.kind == "read" or (probe.kind == "matrix" and probe.batch == 1))
    ]
    return max(rates, default=None)


def _streams(probe: Probe, device: Device) -> bool:
    large = probe.working_set_bytes >= max(1, device.resident_bytes)
    return large and probe.kind in ("read", "write", "copy", "matrix")


def calibration_of(device: Device, hardware: HardwareProfile, probes: Sequence[Probe]) -> Calibration:
    """Fit the shares of the ceilings that operators reach to the benchmarks of matrices and attention.

    What a call takes that moves next to nothing stands, with all that is small in a layer, in ``layer_s``; what a call
    of some size takes beyond that in its kind's ``call_s``.
    """
    reach: dict[str, Reach] = {}
    quotients: list[tuple[bool, float]] = []
    for kind, unit in dict.fromkeys((kind_of(p.op), p.format) for p in probes if p.kind in ("matrix", "attention")):
        own = [p for p in probes if p.kind in ("matrix", "attention") and (kind_of(p.op), p.format) == (kind, unit)]
        own = [p for p in own if p.working_set_bytes >= device.resident_bytes]
        call_s = _call_s(probes, kind, unit)
        points = [_point(probe, hardware) for probe in own]
        if not points:
            continue
        fitted = reach[f"{kind}:{unit}"] = _fitted(points, call_s)
        quotients += [(c > m, t / _taken(c, m, fitted, call_s)) for c, m, t in points]
    reach["matrix"] = next(fitted for name, fitted in reach.items() if name.startswith("matrix"))
    return Calibration(
        name=f"{hardware.name}-{ENGINE}",
        engine=ENGINE,
        applies_to=(hardware.name,),
        reach=reach,
        memory_interval=_interval([quotient for compute, quotient in quotients if not compute]),
        compute_interval=_interval([quotient for compute, quotient in quotients if compute]),
        step_s=_least(probes, "step"),
        layer_s=_least(probes, "layer"),
        measured=Measured(
            device=device.title,
            date=today(),
            versions=device.versions,
            trained_on=("bench",),
            records=len(quotients),
            notes=("fitted to micro-benchmarks alone; the interval is their spread about it",),
        ),
    )


def _call_s(probes: Iterable[Probe], kind: str, unit: str) -> float:
    """Return the time of a call of a kind that moves next to nothing."""
    calls = [p.timing.low_s for p in probes if p.kind == "call" and (kind_of(p.op), p.format) == (kind, unit)]
    return min(calls, default=0.0)


def _point(probe: Probe, hardware: HardwareProfile) -> tuple[float, float, float]:
    """Time of a benchmark at the peak, at the bandwidth, and as measured."""
    compute = probe.op.flop / hardware.peak(probe.op.unit)
    memory = probe.op.moved_bytes / hardware.memory_bandwidth_bytes_per_s
    return compute, memory, probe.timing.low_s


def _taken(compute_s: float, memory_s: float, reach: Reach, call_s: float) -> float:
    return call_s + reach.call_s + operator_seconds(OperatorTerms(compute_s, memory_s, 1), reach)


def _fitted(points: Sequence[tuple[float, float, float]], call_s: float) -> Reach:
    """Return the shares and the call with the smallest mean square of the logarithm of estimate over measurement.

    Compute and memory are taken to overlap wholly unless the benchmarks say otherwise.
    """

    def loss(values: Mapping[str, float]) -> float:
        reach = Reach(**values)
        squares = sum(math.log(_taken(c, m, reach, call_s) / t) ** 2 for c, m, t in points)
        return squares / len(points) + _PULL * math.log(reach.sum_share / MIN_SUM_SHARE)

    compute, memory = (_bounded("", max(point[column] / point[2] for point in points)) for column in (0, 1))
    start = {"bandwidth_share": memory, "flop_share": compute, "sum_share": MIN_SUM_SHARE, "call_s": _MIN_CALL_S}
    shares = least_near(loss, start, bounded=_bounded)
    return Reach(**shares | {"call_s": shares["call_s"] if shares["call_s"] > _MIN_CALL_S else 0.0})


def _bounded(name: str, value: float) -> float:
    low, high = _BOUNDS.get(name, (_MIN_SHARE, 1.0))
    return min(high, max(low, value))


def _interval(quotients: list[float]) -> Interval:
    if not quotients:
        return Interval(low=1.0, high=1.0)
    ordered = sorted(quotients)
    low, high = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (_LOW, _HIGH))
    return Interval(low=min(1.0, low), high=max(1.0, high))


def _least(probes: Sequence[Probe], kind: str) -> float:
    """The benchmark's undisturbed time, the mean over formats."""
    times_s = [probe.timing.low_s for probe in probes if probe.kind == kind]
    return max(0.0, sum(times_s) / len(times_s)) if times_s else 0.0


def bench_rows(
    probes: Sequence[Probe], hardware: HardwareProfile, calibration: Calibration | None
) -> tuple[BenchRow, ...]:
    """Return benchmarks as rows of a report."""
    calls = {(kind, unit): _call_s(probes, kind, unit) for kind, unit in {(kind_of(p.op), p.format) for p in probes}}
    return tuple(_row(probe, hardware, calibration, calls[kind_of(probe.op), probe.format]) for probe in probes)


def _row(probe: Probe, hardware: HardwareProfile, calibration: Calibration | None, call_s: float) -> BenchRow:
    op, timing = probe.op, probe.timing
    measured = timing.low_s
    bound = op_seconds(op, hardware, None) if op.moved_bytes and probe.kind != "call" else None
    estimate = None
    if calibration is not None and probe.kind in ("matrix", "attention"):
        compute, memory, _ = _point(probe, hardware)
        estimate = _taken(compute, memory, calibration.reach_of(kind_of(op), probe.format), call_s)
    return BenchRow(
        kind=probe.kind,
        name=probe.name,
        format=probe.format,
        batch=probe.batch,
        context=probe.context,
        working_set_bytes=probe.working_set_bytes,
        moved_bytes=op.moved_bytes,
        flop=op.flop,
        predicted_kv_bytes=int(op.kv_read_bytes) if probe.kind == "attention" else None,
        allocated_kv_bytes=probe.allocated_kv_bytes,
        bound_s=bound,
        estimate_s=estimate,
        measured_s=measured,
        median_s=timing.median_s,
        samples_s=timing.samples_s,
        ratio=measured / bound if bound else None,
        bytes_per_s=op.moved_bytes / measured if op.moved_bytes and measured else None,
        flop_per_s=op.flop / measured if op.flop and measured else None,
    )


def drift(before: Sequence[Probe], after: Sequence[Probe]) -> float:
    """Return the change of the middle benchmark between two runs, as a share: 0.1 is ten in a hundred either way."""
    later = {probe.key: probe.timing.low_s for probe in after}
    quotients = sorted(
        later[probe.key] / probe.timing.low_s
        for probe in before
        if probe.key in later and probe.kind in ("read", "matrix", "attention")
    )
    if not quotients:
        return 0.0
    middle = quotients[len(quotients) // 2]
    return max(middle, 1 / middle) - 1


def noise_notes(probes: Sequence[Probe]) -> tuple[str, ...]:
    """Return a note where the repetitions of a benchmark are too far apart to trust."""
    timed = [probe for probe in probes if probe.kind in ("read", "matrix", "attention")]
    once = [probe for probe in timed if len(probe.timing.samples_s) == 1]
    if once:
        return (f"{len(once)} of {len(timed)} benchmarks were made once: more --rounds would tell their spread",)
    noisy = [probe for probe in timed if probe.timing.spread > _NOISY]
    if len(noisy) * 4 <= len(timed):
        return ()
    spreads = (
        f"in {len(noisy)} of {len(timed)} benchmarks the middle repetition took {_NOISY:.0%} more than the undisturbed"
    )
    return (f"the machine was busy: {spreads}; measure again on a quiet machine",)
