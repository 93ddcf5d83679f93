"""The accelerators and the host of a machine: the answer of ``kvcalc devices``."""

from __future__ import annotations

from dataclasses import dataclass

from kvcalc.core.reports.common import Report

__all__ = ["FoundDevice", "FoundHost", "MachineReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDevice:
    """An accelerator of a machine.

    Args:
        title: its name as its tool prints it.
        card: its profile in the catalogue; none where it has none.
        memory_bytes: its memory as its tool prints it; none where it was not told.
        used_bytes: of that, in use now.
        usable_bytes: what programs can fill at most, where the system says so.
        memory_bandwidth_bytes_per_s: peak of the memory, of the profile.
        unified: whether its memory is the host's.
        pcie: generation and lanes of its slot at most, as ``4x16``.
        driver: version of its driver.
        tool: the tool that told of it.
    """

    title: str
    card: str | None
    memory_bytes: int | None
    used_bytes: int | None = None
    usable_bytes: int | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    unified: bool = False
    pcie: str = ""
    driver: str = ""
    tool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHost:
    """A machine's processor and memory.

    Args:
        cpu: the processor's name.
        card: its profile in the catalogue; none where it has none.
        threads: threads that it runs at once.
        memory_bytes: its memory.
        used_bytes: of that, in use now.
        memory_kind: kind of the memory's modules, as ``DDR5``.
        memory_transfers_per_s: the speed that they are run at.
        memory_channels: channels that have a module.
        memory_bandwidth_bytes_per_s: peak of the memory; none where neither modules nor a profile tell it.
        bandwidth_from: what tells the bandwidth: ``dmidecode``, or the profile's name.
    """

    cpu: str
    card: str | None
    threads: int | None
    memory_bytes: int | None
    used_bytes: int | None = None
    memory_kind: str = ""
    memory_transfers_per_s: float | None = None
    memory_channels: int | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    bandwidth_from: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MachineReport(Report):
    """The accelerators and the host of a machine, in the order its tools list them."""

    schema: str = "kvcalc.devices/1"
    devices: tuple[FoundDevice, ...]
    host: FoundHost
    notes: tuple[str, ...] = ()
