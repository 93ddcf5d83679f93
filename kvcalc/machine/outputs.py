"""The outputs of nvidia-smi, rocm-smi, sysctl, system_profiler, vm_stat, dmidecode and /proc, as figures."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from typing import Any

from kvcalc.core.units import KIB, MIB, TRANSFERS_PER_MT

__all__ = [
    "NVIDIA_FIELDS",
    "Accelerator",
    "MemoryModules",
    "amd_accelerators",
    "apple_gpu_cores",
    "cpu_name",
    "linux_memory",
    "mac_used_bytes",
    "memory_modules",
    "nvidia_accelerators",
]

# ``nvidia-smi --query-gpu=``, in this order, as ``csv,noheader,nounits``.
NVIDIA_FIELDS = (
    "index", "name", "memory.total", "memory.used", "driver_version", "pcie.link.gen.max", "pcie.link.width.max",
)  # fmt: skip
_SPEED = re.compile(r"(\d{2,6}) (?:MT/s|MHz)")
_SIZE = re.compile(r"(\d{1,7}) ([MGT])i?B")
_CHANNEL = re.compile(r"^(?P<before>.*?)chan(?:nel)?[ _-]?(?P<name>[a-z0-9]+)", re.IGNORECASE)
_SLOT = re.compile(r"^(?P<before>.*?)dimm[ _-]?(?P<name>[a-z])[ _-]?\d", re.IGNORECASE)
_PAGES = re.compile(r"^(Pages active|Pages wired down|Pages occupied by compressor): +(\d{1,15})\.", re.MULTILINE)
_CORES = re.compile(r"^\d+th Gen +| +(?:\d+-Cores?(?: Processor)?|CPU @ .*|with .*|w/ .*)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A GPU as a tool prints it.

    Args:
        title: its name.
        memory_bytes: its memory; none where it shares the host's and the tool does not say.
        used_bytes: of that, in use now.
        driver: version of the driver; empty where it is not told.
        pcie: generation and lanes of its slot at most, as ``4x16``; empty where they are not told.
        shares_host: whether its memory is the host's.
    """

    title: str
    memory_bytes: int | None
    used_bytes: int | None = None
    driver: str = ""
    pcie: str = ""
    shares_host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModules:
    """The modules of the host's memory.

    Args:
        kind: as ``DDR5``.
        transfers_per_s: the speed that they are run at.
        modules: how many there are.
        channels: channels with a module; 0 where their names do not tell.
        bandwidth_bytes_per_s: peak of these channels together; none where they are not told.
    """

    kind: str
    transfers_per_s: float
    modules: int
    channels: int
    bandwidth_bytes_per_s: float | None


def nvidia_accelerators(text: str) -> list[Accelerator]:
    """Return the GPUs that nvidia-smi lists with `NVIDIA_FIELDS`; one without memory of its own shares the host's.

    >>> nvidia_accelerators("0, NVIDIA GeForce RTX 4090, 24564, 507, 550.163.01, 4, 16")[0].used_bytes // 2**20
    507
    >>> nvidia_accelerators("0, NVIDIA GB10, [N/A], [N/A], 580.126.09, [N/A], [N/A]")[0].shares_host
    True
    """
    accelerators = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(NVIDIA_FIELDS) or not row[0].strip().isdigit():
            continue
        _, title, total, used, driver, generation, lanes = (cell.strip() for cell in row)
        link = f"{generation}x{lanes}" if generation.isdigit() and lanes.isdigit() else ""
        memory = _mib(total)
        accelerators.append(
            Accelerator(
                title=title,
                memory_bytes=memory,
                used_bytes=_mib(used),
                driver="" if driver.startswith("[") else driver,
                pcie=link if memory else "",
                shares_host=not memory,
            )
        )
    return accelerators


def _mib(cell: str) -> int | None:
    return int(cell) * MIB if cell.isdigit() and int(cell) else None


def amd_accelerators(text: str) -> list[Accelerator]:
    """Return the GPUs that ``rocm-smi --showproductname --showmeminfo vram gtt --json`` lists.

    A processor's own GPU has next to no memory of its own: what it reaches of the host's (GTT) counts.

    >>> card = '{"card0": {"VRAM Total Memory (B)": "21458059264", "Card Series": "Radeon RX 7900 XT"}}'
    >>> amd_accelerators(card)[0].memory_bytes
    21458059264
    """
    start = text.find("{")
    try:
        data = json.loads(text[start:]) if start >= 0 else {}
    except ValueError:
        return []
    cards = [(name, data[name]) for name in data if name.startswith("card") and isinstance(data[name], dict)]
    cards.sort(key=lambda each: int(re.sub(r"\D", "", each[0]) or 0))
    return [each for _, card in cards if (each := _amd(card)) is not None]


def _amd(card: dict[str, Any]) -> Accelerator | None:
    keys = {name.lower(): str(value) for name, value in card.items()}
    own, own_used = _bytes(keys, "vram total memory (b)"), _bytes(keys, "vram total used memory (b)")
    host, host_used = _bytes(keys, "gtt total memory (b)"), _bytes(keys, "gtt total used memory (b)")
    if own is None:
        return None
    shares = _is_processors(_amd_title(keys), own, host)
    return Accelerator(
        title=_amd_title(keys),
        memory_bytes=own + (host or 0) if shares else own,
        used_bytes=(own_used or 0) + (host_used or 0) if shares else own_used,
        shares_host=shares,
    )


def _is_processors(title: str, own_bytes: int, host_bytes: int | None) -> bool:
    """Whether an AMD GPU is part of a processor: by its name, or because it reaches far more of the host's memory."""
    named = re.search(r"radeon (?:\d{3}m|80\d0s|graphics)|strix|phoenix|raphael|rembrandt|renoir", title.lower())
    return named is not None or (host_bytes is not None and host_bytes > 4 * own_bytes)


def _amd_title(keys: dict[str, str]) -> str:
    named = (keys.get(key, "") for key in ("card series", "device name", "card model"))
    return next((name for name in named if name and name.upper() != "N/A"), "AMD GPU")


def _bytes(keys: dict[str, str], name: str) -> int | None:
    return int(keys[name]) if keys.get(name, "").isdigit() else None


def apple_gpu_cores(text: str) -> int | None:
    """Return the cores of Apple's GPU, as ``system_profiler SPDisplaysDataType -json`` has them.

    >>> apple_gpu_cores('{"SPDisplaysDataType": [{"sppci_model": "Apple M4 Max", "sppci_cores": "40"}]}')
    40
    """
    try:
        listed = json.loads(text).get("SPDisplaysDataType", [])
        cores = [str(each.get("sppci_cores", "")) for each in listed]
    except (ValueError, AttributeError, TypeError):
        return None
    return next((int(each) for each in cores if each.isdigit()), None)


def mac_used_bytes(text: str) -> int | None:
    """Return the memory that macOS has in use, as ``vm_stat`` counts pages: active, wired and compressed."""
    size = re.search(r"page size of (\d{3,6}) bytes", text)
    pages = [int(count) for _, count in _PAGES.findall(text)]
    return None if size is None or not pages else int(size[1]) * sum(pages)


def linux_memory(text: str) -> tuple[int | None, int | None]:
    r"""Return the host's memory and what is in use of it, as ``/proc/meminfo`` has them.

    >>> linux_memory("MemTotal:       127600748 kB\nMemFree: 1 kB\nMemAvailable:   118566368 kB")
    (130663165952, 9251205120)
    """
    sizes = {name: int(size) * KIB for name, size in re.findall(r"^(\w+): +(\d{1,15}) kB", text, re.MULTILINE)}
    total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
    return total, None if total is None or available is None else total - available


def cpu_name(text: str) -> str:
    r"""Return the processor's name, as ``/proc/cpuinfo`` has it.

    >>> cpu_name("model name\t: AMD Ryzen 9 7950X 16-Core Processor")
    'AMD Ryzen 9 7950X'
    """
    match = re.search(r"^model name\s*: *(.{1,120})$", text, re.MULTILINE)
    return "" if match is None else _CORES.sub("", match[1].strip())


def memory_modules(text: str) -> MemoryModules | None:
    """Return the modules that ``dmidecode -t memory`` lists; none where it lists none with a speed.

    The speed is the configured one, as the controller runs them; the peak is that of the channels that have a module.
    """
    modules: list[tuple[str, float, int, str]] = []
    for block in re.split(r"\n\s*\n", text):
        lines = (line.partition(":") for line in block.splitlines() if ":" in line)
        keys = {name.strip(): value.strip() for name, _, value in lines}
        speed = _SPEED.search(keys.get("Configured Memory Speed", "") or keys.get("Configured Clock Speed", ""))
        if not _SIZE.match(keys.get("Size", "")) or speed is None:
            continue
        width = re.match(r"\d{1,4}", keys.get("Data Width", ""))
        channel = _channel(keys.get("Bank Locator", "")) or _channel(keys.get("Locator", ""))
        modules.append(
            (keys.get("Type", ""), TRANSFERS_PER_MT * float(speed[1]), int(width[0]) if width else 0, channel)
        )
    if not modules:
        return None
    rate = min(speed for _, speed, _, _ in modules)
    widths: dict[str, int] = {}
    for _, _, bits, channel in modules:
        widths[channel] = max(bits, widths.get(channel, 0))
    is_told = "" not in widths and all(widths.values())
    return MemoryModules(
        kind=modules[0][0],
        transfers_per_s=rate,
        modules=len(modules),
        channels=len(widths) if is_told else 0,
        bandwidth_bytes_per_s=rate * sum(widths.values()) / 8 if is_told else None,
    )


def _channel(locator: str) -> str:
    """Return the channel that a module's place names, with the processor before it; empty where it names none."""
    match = _CHANNEL.match(locator) or _SLOT.match(locator)
    return "" if match is None else f"{match['before'].strip(' _-')} {match['name']}"
