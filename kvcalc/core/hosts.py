"""The host beside accelerators: rates of its memory and of the slots that cards sit in."""

from __future__ import annotations

import re

from kvcalc.core.errors import InputError
from kvcalc.core.units import parse_rate

__all__ = ["memory_bytes_per_s", "pcie_bytes_per_s"]

_TRANSFERS = re.compile(r"^\s*(?:lp)?ddr[345]x?\s*-\s*(\d{3,5})\s*x\s*(\d{1,2})\s*$", re.IGNORECASE)
_SLOT = re.compile(r"^\s*(?:pcie\s*)?([1-6])(?:\.0)?\s*x\s*(1|2|4|8|16)\s*$", re.IGNORECASE)
_CHANNEL_BYTES = 8
# Rate of one lane in one direction as if all its bits were data, by generation, and the share that its encoding
# leaves: 8 of 10 bits, 128 of 130, or 242 of the 256 bytes of a FLIT. Source: PCI-SIG, PCI Express Base Specification
# 1.1 to 6.0 (2.5, 5, 8, 16, 32 and 64 GT/s).
_BITS_A_BYTE = 8
_LANES = {
    1: ("2.5GB/s", 8 / 10),
    2: ("5GB/s", 8 / 10),
    3: ("8GB/s", 128 / 130),
    4: ("16GB/s", 128 / 130),
    5: ("32GB/s", 128 / 130),
    6: ("64GB/s", 242 / 256),
}
_MEMORY_HINT = "as ddr5-5600x2 (transfers of a second in millions, channels of 64 bit) or 80GB/s"


def memory_bytes_per_s(text: str) -> float:
    """Return the peak rate of a host's memory: transfers a second, times 8 bytes, times channels; or a rate as it is.

    Source: a channel is 64 bits wide (JEDEC JESD79-4, JESD79-5: two of 32 bits on a DDR5 module). LPDDR's channels are
    16 or 32 bits wide: 64 bits of them count as one.

    Raises:
        InputError: neither.

    >>> memory_bytes_per_s("ddr5-5600x2"), memory_bytes_per_s("80GB/s")
    (89600000000.0, 80000000000.0)
    """
    found = _TRANSFERS.match(text)
    if found is None:
        if re.match(r"^\s*(?:lp)?ddr", text, re.IGNORECASE):
            raise InputError(f"no memory {text[:60]!r}", hint=_MEMORY_HINT)
        return parse_rate(text)
    channels = int(found[2])
    if channels < 1:
        raise InputError(f"no memory of {channels} channels", hint=_MEMORY_HINT)
    return parse_rate(f"{found[1]}MB/s") * _CHANNEL_BYTES * channels


def pcie_bytes_per_s(text: str) -> float:
    """Return the rate of a PCI Express slot in one direction, from its generation and lanes; or a rate as it is.

    Source: PCI-SIG, PCI Express Base Specification: 2.5, 5, 8, 16, 32 and 64 GT/s a lane, less its encoding.

    Raises:
        InputError: neither.

    >>> [round(pcie_bytes_per_s(slot), -7) for slot in ("3x16", "4x16", "5.0x8", "25GB/s")]
    [15750000000.0, 31510000000.0, 31510000000.0, 25000000000.0]
    """
    found = _SLOT.match(text)
    if found is None:
        if not re.search(r"[a-z]/s\s*$", text, re.IGNORECASE):
            raise InputError(f"no slot {text[:60]!r}", hint="generation and lanes, as 4x16, or a rate, as 25GB/s")
        return parse_rate(text)
    transfers, share = _LANES[int(found[1])]
    return parse_rate(transfers) * share * int(found[2]) / _BITS_A_BYTE
