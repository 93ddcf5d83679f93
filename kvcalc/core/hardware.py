"""Accelerators: memory, rates, links. Peaks and sizes only; efficiencies live elsewhere."""

from __future__ import annotations

from dataclasses import field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.provenance import Source
from kvcalc.core.records import dataclass
from kvcalc.core.units import MIB, bytes_text, label_bytes, label_of_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HardwareProfile", "Link", "MemoryShare"]

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
_INTEGERS = ("int4", "int8")

# What CUDA's total is short of nvidia-smi's: 224 MiB (V100) to 767 MiB (A100), 0.4 % on the largest cards. Source: the
# cards of the catalogue for which both are known.
_MIN_CUDA_RESERVE, _MAX_CUDA_RESERVE, _MAX_CUDA_RESERVE_SHARE = 224 * MIB, 768 * MIB, 0.004


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
        gpus: accelerators that it joins at most; any number where left out.
    """

    __pydantic_config__ = _STRICT
    name: str
    bytes_per_s: float
    latency_s: float | None = None
    gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShare:
    """The share of a unified memory that the GPU may fill.

    Args:
        from_label_bytes: size on the box, in SI bytes, from which on it holds.
        least_share: under the oldest system that is known.
        most_share: under the newest.
    """

    __pydantic_config__ = _STRICT
    from_label_bytes: float
    least_share: float
    most_share: float


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
        memory_bytes: memory as the driver reports it (``nvidia-smi``), where known.
        runtime_memory_bytes: memory as a program sees it (CUDA's or HIP's total), where known: what engines divide.
        runtime_memory_shares: share of a unified memory that the GPU may fill, by the memory's size.
        unified_memory: whether its memory is the host's, too.
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
    runtime_memory_bytes: int | None = None
    runtime_memory_shares: tuple[MemoryShare, ...] = ()
    unified_memory: bool = False
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
    def driver_memory_bytes(self) -> int:
        """Memory as the driver reports it, else the label's: "80 GB" stands for 80 GiB of memory chips."""
        return label_bytes(self.memory_label_bytes) if self.memory_bytes is None else self.memory_bytes

    @property
    def usable_memory_bytes(self) -> int:
        """Bytes that a program can fill: the least that its runtime reports, as `usable_memory_range` has it."""
        return self.usable_memory_range[0]

    @property
    def usable_memory_range(self) -> tuple[int, int]:
        """The least and the most bytes that CUDA, HIP or Metal let a program fill; equal where they are known.

        >>> mac = HardwareProfile(name="x", title="x", vendor="apple", memory_label_bytes=32e9,
        ...     memory_bandwidth_bytes_per_s=1e11, peak_flop_per_s={"fp16": 1e13},
        ...     runtime_memory_shares=(MemoryShare(from_label_bytes=0, least_share=2 / 3, most_share=0.75),))
        >>> [size // MIB for size in mac.usable_memory_range]
        [21845, 24576]
        """
        total = self.driver_memory_bytes
        if self.runtime_memory_bytes is not None:
            return self.runtime_memory_bytes, self.runtime_memory_bytes
        shares = [share for share in self.runtime_memory_shares if self.memory_label_bytes >= share.from_label_bytes]
        if shares:
            return int(shares[-1].least_share * total), int(shares[-1].most_share * total)
        if self.vendor == "nvidia":
            reserve = max(_MAX_CUDA_RESERVE, int(_MAX_CUDA_RESERVE_SHARE * total))
            return total - reserve, total - _MIN_CUDA_RESERVE
        return total, total

    @property
    def memory_note(self) -> str:
        """Name the size taken for a program's memory where that is not known exactly; nothing where it is."""
        low, high = map(bytes_text, self.usable_memory_range)
        if self.runtime_memory_bytes is not None:
            return ""
        if self.runtime_memory_shares:
            total = bytes_text(self.driver_memory_bytes)
            return f"{self.name}: Metal lets a program fill {low} of {total}, newer systems up to {high}"
        if low != high:
            return f"{self.name}: usable memory under CUDA is not known; {low} to {high} by comparison with other cards"
        if self.memory_bytes is None:
            return f"{self.name}: memory size from the label, in GiB; the driver's share of it is not known"
        return ""

    def with_memory(self, memory_bytes: int) -> HardwareProfile:
        """Return the accelerator with another amount of memory, as unified memories and laptops have.

        Args:
            memory_bytes: memory as the driver reports it; what the runtime keeps of it stays the same, and no program
                sees more than that.

        Raises:
            InputError: no memory, or less than the runtime keeps.
        """
        seen = self.runtime_memory_bytes
        if seen is not None:
            seen = min(memory_bytes, seen + memory_bytes - self.driver_memory_bytes)
        if memory_bytes <= 0 or (seen is not None and seen <= 0):
            raise InputError(f"memory must be more than {self.name} keeps for itself, not {bytes_text(memory_bytes)}")
        return replace(
            self,
            memory_label_bytes=label_of_bytes(memory_bytes),
            memory_bytes=memory_bytes,
            runtime_memory_bytes=seen,
        )

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
        """Return the key of the peak that a format runs at, as `peak` finds it.

        Integers run in a wider format where that is faster: some accelerators have few units for them.
        """
        peaks = self.peak_flop_per_s
        if unit in _INTEGERS:
            known = [key for keys in _spellings(unit) for key in keys if key in peaks]
            return max(known or peaks, key=peaks.__getitem__)
        for name, narrow in _spellings(unit):
            if narrow in peaks and peaks[narrow] > peaks.get(name, 0):
                return narrow
            if name in peaks:
                return name
        return max(peaks, key=peaks.__getitem__)

    def link(self, gpus: int) -> Link | None:
        """Return the link over which so many accelerators exchange what each of them holds, if any is known.

        More than the scale-up link joins exchange over scale-out links. Those of one domain share the work: together
        they send and receive what crosses once, so that the rate of each is that of all the domain's scale-out links,
        but no more than its own scale-up link has.

        >>> card = HardwareProfile(name="x", title="x", vendor="x", memory_label_bytes=1e9,
        ...     memory_bandwidth_bytes_per_s=1e12, peak_flop_per_s={"fp16": 1e14},
        ...     links={"scale_up": Link(name="up", bytes_per_s=4e11, gpus=8),
        ...            "scale_out": Link(name="out", bytes_per_s=2.5e10)})
        >>> [card.link(gpus).bytes_per_s for gpus in (2, 8, 16)]
        [400000000000.0, 400000000000.0, 200000000000.0]
        """
        name = self.link_name(gpus)
        if name is None:
            return None
        link, inside = self.links[name], self.links.get("scale_up")
        if name == "scale_up" or inside is None:
            return link
        count = inside.gpus or 1
        rate = min(inside.bytes_per_s, count * link.bytes_per_s)
        return replace(link, name=f"{count} x {link.name}", bytes_per_s=rate)

    def link_name(self, gpus: int) -> str | None:
        """Return the key of the link that so many accelerators use, as `link` finds it."""
        if gpus <= 1:
            return None
        inside = self.links.get("scale_up")
        if inside is not None and gpus <= (inside.gpus or gpus):
            return "scale_up"
        return "scale_out" if "scale_out" in self.links else None
