"""What an accelerator is: its memory, its rates, its links. Peaks and sizes only; efficiencies live elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from kvcalc.core.provenance import Source
from kvcalc.core.units import label_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HardwareProfile", "Link"]

_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}

# Formats to fall back on, in order, where the hardware has no unit for one: the operands are widened.
_WIDER = {
    "int4": ("int8", "fp16", "bf16", "fp32"),
    "fp4": ("fp8", "fp16", "bf16", "fp32"),
    "fp6": ("fp8", "fp16", "bf16", "fp32"),
    "fp8": ("fp16", "bf16", "fp32"),
    "int8": ("fp16", "bf16", "fp32"),
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "tf32": ("fp32",),
    "fp32": ("tf32", "bf16"),
    "fp64": ("fp32",),
}


@cache
def _spellings(unit: str) -> tuple[tuple[str, str], ...]:
    """Return the keys of a format and of those that stand in for it, each also with the narrow accumulation."""
    return tuple((name, f"{name}_acc16") for name in (unit, *_WIDER.get(unit, ())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection to other accelerators.

    Args:
        name: what it is called.
        bytes_per_s: bandwidth of one accelerator in one direction, all its lanes together.
        latency_s: time of the shortest message, where known.
    """

    __pydantic_config__ = _STRICT
    name: str
    bytes_per_s: float
    latency_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """One accelerator, as its datasheet describes it.

    Args:
        name: catalogue name.
        title: the product's full name.
        vendor: who makes it.
        memory_label_bytes: memory as the box says, in SI bytes.
        memory_bandwidth_bytes_per_s: peak bandwidth of the memory.
        peak_flop_per_s: dense peak for each format. ``X_acc16`` is format X with 16-bit accumulation, where faster.
        memory_bytes: memory as the driver reports it, where known.
        last_level_cache_bytes: largest cache in front of the memory.
        links: ``scale_up`` (NVLink and the like) and ``scale_out`` (network or PCIe).
        board_power_w: rated power.
        price_per_hour_usd: rent, where given.
        architecture: the vendor's name of the generation.
        aliases: other names.
        sources: named sources.
        provenance: dotted field path to the name of its source; ``default`` covers the rest.
        notes: what a user should know.
    """

    __pydantic_config__ = _STRICT
    name: str
    title: str
    vendor: str
    memory_label_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_flop_per_s: Mapping[str, float]
    memory_bytes: int | None = None
    last_level_cache_bytes: int | None = None
    links: Mapping[str, Link] = field(default_factory=dict)
    board_power_w: float | None = None
    price_per_hour_usd: float | None = None
    architecture: str = ""
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def usable_memory_bytes(self) -> int:
        """Bytes that can be filled: as the driver reports them, else the label's.

        A label of 80 GB stands for 80 GiB of memory chips, of which the driver keeps a little.
        """
        return label_bytes(self.memory_label_bytes) if self.memory_bytes is None else self.memory_bytes

    def peak(self, unit: str) -> float:
        """Return the dense FLOP/s for a format: the fastest accumulation, a wider format where it has no unit for it.

        Args:
            unit: the arithmetic format of the multiplication, as `Format.unit` names it.

        >>> card = HardwareProfile(name="x", title="x", vendor="x", memory_label_bytes=1e9,
        ...     memory_bandwidth_bytes_per_s=1e12, peak_flop_per_s={"fp16": 1e14, "fp16_acc16": 2e14, "fp32": 1e13})
        >>> card.peak("bf16"), card.peak("fp32")
        (200000000000000.0, 10000000000000.0)
        """
        return self.peak_flop_per_s[self.peak_name(unit)]

    def peak_name(self, unit: str) -> str:
        """Return the key of the peak that a format runs at, as `peak` finds it."""
        peaks = self.peak_flop_per_s
        for name, narrow in _spellings(unit):
            if narrow in peaks and peaks[narrow] > peaks.get(name, 0):
                return narrow
            if name in peaks:
                return name
        return max(peaks, key=peaks.__getitem__)

    def link(self, gpus: int) -> Link | None:
        """Return the link that a group of that many accelerators of one host would use, if any is known."""
        name = self.link_name(gpus)
        return None if name is None else self.links[name]

    def link_name(self, gpus: int) -> str | None:
        """Return the key of the link that so many accelerators use, as `link` finds it."""
        known = (name for name in ("scale_up", "scale_out") if name in self.links)
        return None if gpus <= 1 else next(known, None)
