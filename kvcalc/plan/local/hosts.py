"""The hosts that speeds were measured on, and what to make of an estimate beyond them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import rate_text
from kvcalc.plan.local.machine import host_profile

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile

__all__ = ["FASTEST_BYTES_PER_S", "FASTEST_DESKTOP_BYTES_PER_S", "beyond_note", "slowed"]

# Peaks of memory of the fastest host that was measured, and of the fastest of no more than four channels: above these
# are two servers, with models of 235 B parameters and more. Source: tests/conformance/split_speeds.yaml, which
# the calibration of hosts is fitted to.
FASTEST_BYTES_PER_S, FASTEST_DESKTOP_BYTES_PER_S = 460.8e9, 102.4e9


def slowed(host: HardwareProfile) -> HardwareProfile | None:
    """Return a host as fast as the fastest that was measured, where it is faster than that; else none."""
    if host.memory_bandwidth_bytes_per_s <= FASTEST_BYTES_PER_S:
        return None
    return host_profile(FASTEST_BYTES_PER_S)


def beyond_note(bandwidth_bytes_per_s: float) -> str:
    """Return a note on an estimate for a host that is faster than desktops measured; empty for others."""
    if bandwidth_bytes_per_s <= FASTEST_DESKTOP_BYTES_PER_S:
        return ""
    asked, fastest = rate_text(bandwidth_bytes_per_s), rate_text(FASTEST_BYTES_PER_S)
    if bandwidth_bytes_per_s > FASTEST_BYTES_PER_S:
        return (
            f"the estimate is outside what was measured: the host's memory of {asked} is faster than the fastest of "
            f"{fastest}; its low end is for a host of {fastest}, and may still be too high"
        )
    return (
        f"hosts above {rate_text(FASTEST_DESKTOP_BYTES_PER_S)} were measured twice, with models of 235 B parameters "
        "and more: the estimate is outside what was measured for smaller ones, and may be too high"
    )
