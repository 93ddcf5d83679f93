"""The table of ``kvcalc devices``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import TRANSFERS_PER_MT, bytes_text, rate_text
from kvcalc.render.layout import Column, Grid, Text
from kvcalc.render.tables import heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.machine import FoundHost, MachineReport
    from kvcalc.render.layout import Part

__all__ = ["parts"]

_UNKNOWN = "-"


def parts(report: MachineReport) -> list[Part]:
    """Return the accelerators, the host and the notes."""
    count = len(report.devices)
    printed: list[Part] = [heading(f"{count or 'no'} accelerator{'s' * (count != 1)}, {_host(report.host)}")]
    if report.devices:
        rows = [
            [
                each.card or _UNKNOWN,
                each.title,
                _size(each.memory_bytes),
                _size(each.used_bytes),
                _rate(each.memory_bandwidth_bytes_per_s),
                "the host's memory" if each.unified else f"PCIe {each.pcie}" if each.pcie else "",
            ]
            for each in report.devices
        ]
        names = ("card", "as printed", "memory", "in use", "bandwidth", "link")
        right = ("memory", "in use", "bandwidth")
        columns = [Column(name, justify="right" if name in right else "left") for name in names]
        printed += [Text(), Grid(columns, rows)]
    return [*printed, *note_lines(report.notes)]


def _host(host: FoundHost) -> str:
    """Name the processor, the memory and how fast it is, in a line."""
    memory = "memory unknown" if host.memory_bytes is None else f"{bytes_text(host.memory_bytes)} of memory"
    used = "" if host.used_bytes is None else f", {bytes_text(host.used_bytes)} in use"
    kind = host.memory_kind
    if kind and host.memory_transfers_per_s:
        kind += f"-{host.memory_transfers_per_s / TRANSFERS_PER_MT:.0f}"
        kind += f", {host.memory_channels} channels" if host.memory_channels else ""
    speed = _rate(host.memory_bandwidth_bytes_per_s)
    remark = "; ".join(filter(None, (kind, "" if speed == _UNKNOWN else f"{speed} ({host.bandwidth_from})")))
    return f"{host.cpu or 'processor unknown'}: {memory}{used}{f' ({remark})' if remark else ''}"


def _size(size: int | None) -> str:
    return _UNKNOWN if size is None else bytes_text(size)


def _rate(rate: float | None) -> str:
    return _UNKNOWN if rate is None else rate_text(rate)
