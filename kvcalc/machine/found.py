"""A machine put together from what its tools say."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.units import MIB
from kvcalc.machine.outputs import (
    NVIDIA_FIELDS,
    Accelerator,
    MemoryModules,
    amd_accelerators,
    apple_gpu_cores,
    cpu_name,
    linux_memory,
    mac_used_bytes,
    memory_modules,
    nvidia_accelerators,
)

if TYPE_CHECKING:
    from kvcalc.machine.tools import System

__all__ = ["Machine", "found_machine"]

_AMD = "0x1002"
_DRM = "sys/class/drm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as its tools describe it.

    Args:
        accelerators: its GPUs, each with the tool that told of it.
        cpu: the processor's name; empty where it is not told.
        threads: threads that it runs at once.
        memory_bytes: the host's memory.
        used_bytes: of that, in use now.
        modules: the modules of the memory.
        usable_bytes: what Metal lets programs fill, where a limit is set.
        silent: tools that did not answer in time.
    """

    accelerators: tuple[tuple[Accelerator, str], ...]
    cpu: str
    threads: int | None
    memory_bytes: int | None
    used_bytes: int | None
    modules: MemoryModules | None
    usable_bytes: int | None = None
    silent: tuple[str, ...] = ()


def found_machine(system: System) -> Machine:
    """Return a machine; what no tool tells is left out.

    Args:
        system: the system that is asked.
    """
    mac = _sysctl(system)
    return _mac(system, mac) if mac.get("hw.memsize", "").isdigit() else _linux(system)


def _sysctl(system: System) -> dict[str, str]:
    names = ("hw.memsize", "machdep.cpu.brand_string", "iogpu.wired_limit_mb")
    if system.text("proc/meminfo"):
        return {}
    # one by one: a name that is not known fails the whole line
    return {name: system.output("sysctl", "-n", name).strip() for name in names}


def _mac(system: System, settings: dict[str, str]) -> Machine:
    memory, cpu = int(settings["hw.memsize"]), settings["machdep.cpu.brand_string"]
    used = mac_used_bytes(system.output("vm_stat"))
    cores = apple_gpu_cores(system.output("system_profiler", "SPDisplaysDataType", "-json"))
    limit = settings["iogpu.wired_limit_mb"]
    accelerators = []
    if cpu.startswith("Apple"):
        title = cpu if cores is None else f"{cpu} {cores}-core"
        accelerators.append(
            (Accelerator(title=title, memory_bytes=memory, used_bytes=used, shares_host=True), "sysctl")
        )
    return Machine(
        accelerators=tuple(accelerators),
        cpu=cpu,
        threads=os.cpu_count(),
        memory_bytes=memory,
        used_bytes=used,
        modules=None,
        usable_bytes=int(limit) * MIB if limit.isdigit() and int(limit) else None,
        silent=tuple(system.silent),
    )


def _linux(system: System) -> Machine:
    nvidia = nvidia_accelerators(
        system.output("nvidia-smi", f"--query-gpu={','.join(NVIDIA_FIELDS)}", "--format=csv,noheader,nounits")
    )
    amd = amd_accelerators(system.output("rocm-smi", "--showproductname", "--showmeminfo", "vram", "gtt", "--json"))
    driver = [] if amd else _of_the_driver(system)
    memory, used = linux_memory(system.text("proc/meminfo"))
    accelerators = [
        *((each, "nvidia-smi") for each in nvidia),
        *((each, "rocm-smi") for each in amd),
        *((each, "amdgpu") for each in driver),
    ]
    return Machine(
        accelerators=tuple((_sharing(each, memory, used), tool) for each, tool in accelerators),
        cpu=cpu_name(system.text("proc/cpuinfo")),
        threads=os.cpu_count(),
        memory_bytes=memory,
        used_bytes=used,
        modules=memory_modules(system.output("dmidecode", "-t", "memory")),
        silent=tuple(system.silent),
    )


def _sharing(each: Accelerator, memory: int | None, used: int | None) -> Accelerator:
    """Return an accelerator with the host's memory as its own, where it has none that its tool tells."""
    if each.memory_bytes is not None:
        return each
    return Accelerator(
        title=each.title, memory_bytes=memory, used_bytes=used, driver=each.driver, pcie=each.pcie, shares_host=True
    )


def _of_the_driver(system: System) -> list[Accelerator]:
    """Return AMD's GPUs as their driver shows them where ROCm is not installed: memory, and a name where it has one."""
    accelerators = []
    for folder in system.folders_of(_DRM, "card[0-9]*/device"):
        if not re.fullmatch(rf"{_DRM}/card\d+/device", folder) or system.text(f"{folder}/vendor") != _AMD:
            continue
        sizes = [
            system.text(f"{folder}/mem_info_{name}") for name in ("vram_total", "vram_used", "gtt_total", "gtt_used")
        ]
        own, own_used, host, host_used = (int(size) if size.isdigit() else 0 for size in sizes)
        if not own:
            continue
        shares = host > 4 * own
        name = system.text(f"{folder}/product_name") or f"AMD GPU {system.text(f'{folder}/device')}"
        accelerators.append(
            Accelerator(
                title=name,
                memory_bytes=own + host if shares else own,
                used_bytes=own_used + host_used if shares else own_used,
                shares_host=shares,
            )
        )
    return accelerators
