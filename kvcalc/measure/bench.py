"""``kvcalc bench``: what this machine reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.reports.measure import BenchReport
from kvcalc.measure.calibrate import bench_rows, calibration_of, ceilings, noise_notes, today, weight_reading
from kvcalc.measure.library import told_memory
from kvcalc.measure.machine import probe_all
from kvcalc.measure.probes import Plan, Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.measure.library import Device

__all__ = ["bench_report", "measured_probes"]


def bench_report(
    device: Device, plan: Plan, *, progress: Callable[[str], None], against: HardwareProfile | None = None
) -> BenchReport:
    """Measure a device: the benchmarks, its ceilings, and the calibration fitted to them.

    What was measured before an interruption is kept.

    Args:
        device: what is measured.
        plan: how thoroughly.
        progress: told what is measured next.
        against: ceilings that bounds and calibration stand on; those reached here where left out.

    Raises:
        InputError: too little free memory.
        KeyboardInterrupt: before a ceiling was known.
    """
    probes, interrupted = measured_probes(device, plan, progress=progress)
    reached = ceilings(device, probes)
    hardware = against or reached
    complete = {probe.format for probe in probes if probe.kind == "attention"}
    calibration = calibration_of(device, hardware, probes) if complete else None
    notes = [*noise_notes(probes), *_note_of_versions(device)]
    if interrupted:
        notes.append("interrupted: the ceilings and the calibration stand on the rows that were done")
    return BenchReport(
        device=device.kind,
        title=device.title,
        threads=device.threads,
        versions=device.versions,
        date=today(),
        hardware=reached,
        gpu=hardware.name,
        calibration=calibration,
        rows=bench_rows(probes, hardware, calibration),
        weight_read_bytes_per_s=weight_reading(device, probes),
        interrupted=interrupted,
        notes=tuple(notes),
    )


def measured_probes(device: Device, plan: Plan, *, progress: Callable[[str], None]) -> tuple[Sequence[Probe], bool]:
    """Return benchmarks, and whether they were interrupted; an interruption before the first matrix is passed on."""
    probes: list[Probe] = []
    try:
        with told_memory("a benchmark", device):
            for probe in probe_all(device, plan, progress=progress):
                probes.append(probe)  # noqa: PERF402  what was measured is kept
    except KeyboardInterrupt:
        if not any(probe.kind == "matrix" for probe in probes):
            raise
        return probes, True
    return probes, False


def _note_of_versions(device: Device) -> tuple[str, ...]:
    if device.kind == "cuda":
        return ()
    return (f"measured on {device.threads} threads; OMP_NUM_THREADS sets another number",)
