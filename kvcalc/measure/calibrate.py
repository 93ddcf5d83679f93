"""From micro-benchmarks to ceilings and to a calibration: few parameters, fitted to nothing but these."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from itertools import pairwise, product
from typing import TYPE_CHECKING

from kvcalc.core.calibration import Calibration, Interval, Measured, Reach, kind_of
from kvcalc.core.hardware import HardwareProfile
from kvcalc.core.provenance import Source
from kvcalc.core.reports.measure import BenchRow
from kvcalc.cost.roofline import op_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.measure.library import Device
    from kvcalc.measure.machine import Probe

__all__ = ["bench_rows", "calibration_of", "ceilings", "drift", "noise_notes", "today"]

ENGINE = "kvcalc-torch"

# A step whose traffic is below so many times the last-level cache may find part of it there.
RESIDENT_TIMES = 4

_NOISY = 0.3
_LOW, _HIGH = 0.1, 0.9
_STEPS = 4
_LEAST_SHARE, _MOST_SHARE = 0.01, 1.0


def today() -> str:
    """Return the day of a measurement, ISO 8601."""
    return datetime.now(UTC).date().isoformat()


def _device_name(device: Device) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", device.title.lower()).strip("-") or device.kind
    return f"{words}-{device.threads}-threads" if device.threads else words


def ceilings(device: Device, probes: Iterable[Probe]) -> HardwareProfile:
    """Return the fastest rates that any repetition of any benchmark reached, as an accelerator profile.

    Bandwidth is that of streams and of matrices whose working set is several times the last-level cache; the peak of a
    format that of its fastest multiplication.
    """
    bandwidth, peaks = 0.0, dict[str, float]()
    for probe in probes:
        least = probe.timing.least_s
        if _streams(probe, device):
            bandwidth = max(bandwidth, probe.op.compulsory_bytes / least)
        if probe.kind == "matrix":
            peaks[probe.format] = max(peaks.get(probe.format, 0.0), probe.op.flop / least)
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


def _streams(probe: Probe, device: Device) -> bool:
    large = probe.working_set_bytes >= max(1, RESIDENT_TIMES * device.last_level_cache_bytes)
    return large and probe.kind in ("read", "write", "copy", "matrix")


def calibration_of(device: Device, hardware: HardwareProfile, probes: Sequence[Probe]) -> Calibration:
    """Return what operators reach of the ceilings, fitted to the benchmarks of matrices and attention.

    A call's own time is taken off each and stands, with all that is small in a layer, in ``layer_s``.
    """
    reach: dict[str, Reach] = {}
    quotients: list[tuple[bool, float]] = []
    for kind, unit in dict.fromkeys((kind_of(p.op), p.format) for p in probes if p.kind in ("matrix", "attention")):
        own = [p for p in probes if p.kind in ("matrix", "attention") and (kind_of(p.op), p.format) == (kind, unit)]
        own = [p for p in own if p.working_set_bytes >= RESIDENT_TIMES * device.last_level_cache_bytes]
        call = min((p.timing.low_s for p in probes if p.kind == "call" and p.format == unit), default=0.0)
        points = [_point(probe, hardware, call) for probe in own]
        if not points:
            continue
        found = _fitted(points)
        reach[f"{kind}:{unit}"] = found
        quotients += [(c > m, t / _reached(c, m, found)) for c, m, t in points]
    reach["matrix"] = next(found for name, found in reach.items() if name.startswith("matrix"))
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


def _point(probe: Probe, hardware: HardwareProfile, call_s: float) -> tuple[float, float, float]:
    """Time of a benchmark at the peak, at the bandwidth, and as measured, less a call's own."""
    compute = probe.op.flop / hardware.peak(probe.op.unit)
    memory = probe.op.moved_bytes / hardware.memory_bandwidth_bytes_per_s
    measured = probe.timing.low_s
    return compute, memory, max(measured - call_s, measured / 2)


def _reached(compute: float, memory: float, reach: Reach) -> float:
    return max(compute / reach.flop_share, memory / reach.bandwidth_share)


def _fitted(points: Sequence[tuple[float, float, float]]) -> Reach:
    """Return the two shares that leave the smallest sum of squared logarithms of estimate over measurement."""
    memory_shares = _candidates(memory / measured for _, memory, measured in points)
    flop_shares = _candidates(compute / measured for compute, _, measured in points)
    candidates = (Reach(bandwidth_share=m, flop_share=f) for m, f in product(memory_shares, flop_shares))
    return min(candidates, key=lambda found: sum(math.log(_reached(c, m, found) / t) ** 2 for c, m, t in points))


def _candidates(implied: Iterable[float]) -> list[float]:
    """Return the shares that single points imply, and the steps between them."""
    found = sorted({min(_MOST_SHARE, max(_LEAST_SHARE, share)) for share in implied})
    return [
        low * (high / low) ** (step / _STEPS) for low, high in pairwise([*found, found[-1]]) for step in range(_STEPS)
    ]


def _interval(quotients: list[float]) -> Interval:
    if not quotients:
        return Interval(low=1.0, high=1.0)
    ordered = sorted(quotients)
    low, high = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (_LOW, _HIGH))
    return Interval(low=min(1.0, low), high=max(1.0, high))


def _least(probes: Sequence[Probe], kind: str) -> float:
    """The benchmark's undisturbed time, the mean over formats."""
    found = [probe.timing.low_s for probe in probes if probe.kind == kind]
    return max(0.0, sum(found) / len(found)) if found else 0.0


def bench_rows(
    probes: Sequence[Probe], hardware: HardwareProfile, calibration: Calibration | None
) -> tuple[BenchRow, ...]:
    """Return benchmarks as rows of a report."""
    return tuple(_row(probe, hardware, calibration) for probe in probes)


def _row(probe: Probe, hardware: HardwareProfile, calibration: Calibration | None) -> BenchRow:
    op, timing = probe.op, probe.timing
    measured = timing.low_s
    bound = op_seconds(op, hardware, None) if op.moved_bytes and probe.kind != "call" else None
    estimate = None
    if calibration is not None and probe.kind in ("matrix", "attention"):
        compute, memory, _ = _point(probe, hardware, 0.0)
        estimate = _reached(compute, memory, calibration.reach_of(kind_of(op), probe.format))
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
    """Return how far the middle benchmark moved between two runs, as a share: 0.1 is ten in a hundred either way."""
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
    noisy = [probe for probe in timed if probe.timing.spread > _NOISY]
    if len(noisy) * 4 <= len(timed):
        return ()
    found = (
        f"in {len(noisy)} of {len(timed)} benchmarks the middle repetition took {_NOISY:.0%} more than the undisturbed"
    )
    return (f"the machine was busy: {found}; measure again on a quiet machine",)
