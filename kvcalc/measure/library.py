"""Torch, if it is installed, and the device that is measured."""

from __future__ import annotations

import os
import platform
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.units import bytes_text, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "FORMATS_MEASURED",
    "RESIDENT_TIMES",
    "Device",
    "check_format",
    "find_device",
    "require_torch",
    "told_memory",
    "torch_dtype",
]

INSTALL = "pip install 'kvcalc[torch]'"
FORMATS_MEASURED = ("bf16", "fp16", "fp32")
# The widest: what others can be widened to, and what results are compared in.
WIDEST = FORMATS_MEASURED[-1]

# What is smaller than so many times the last-level cache may be found in it in part.
RESIDENT_TIMES = 4

_NO_MEMORY = re.compile("out of memory|can't allocate memory|not enough memory", re.IGNORECASE)
_GPU_DRIVER = Path("/proc/driver/nvidia/version")
_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU_MEMORY = Path("/proc/meminfo")
_CPU_NAME = Path("/proc/cpuinfo")
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
_IDLE_LOAD = 0.25
# The first generation of GPUs, by the major number of its compute capability, that multiplies bf16.
_BF16_MAJOR = 8
_CONTAINER_USE = Path("/sys/fs/cgroup/memory.current")
_REQUESTED = "requested_bytes.all.current"


def require_torch() -> Any:
    """Return torch. Where nothing has loaded it yet and the machine is idle, its threads are bound to their cores.

    On a busy machine a bound thread would wait for its core while others are free.

    Raises:
        InputError: it is not installed.
    """
    if find_spec("torch") is None:
        raise InputError("bench and crosscheck run PyTorch, which is not installed", hint=INSTALL)
    if "torch" not in sys.modules and os.getloadavg()[0] < _IDLE_LOAD * (os.cpu_count() or 1):
        os.environ.setdefault("OMP_PROC_BIND", "true")
    try:
        import torch
    except (ImportError, OSError) as error:
        raise InputError(f"PyTorch is installed and does not load: {error}", hint=INSTALL) from error
    return torch


@contextmanager
def told_memory(what: str, device: Device) -> Iterator[None]:
    """Say in one line that memory ran out: on a GPU torch has an error for it, on a CPU a message.

    Args:
        what: what found no room.
        device: where.

    Raises:
        InputError: it ran out.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        own = isinstance(error, MemoryError | require_torch().OutOfMemoryError)
        if not own and not _NO_MEMORY.search(str(error)):
            raise
        raise InputError(
            f"{what} found no room on {device.kind}",
            hint=f"{bytes_text(device.free_bytes())} are free now; --fit-memory or --layers cut the model",
        ) from error


def torch_dtype(name: str) -> Any:
    """Return torch's type of a format.

    Raises:
        InputError: a format that is not measured.
    """
    torch = require_torch()
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    if name not in kinds:
        raise InputError(f"the decoder runs in {', '.join(kinds)}, not in {name}", hint="give --weights bf16")
    return kinds[name]


def check_format(name: str, device: Device) -> None:
    """Refuse a format that a GPU does not multiply itself: torch would widen each number first.

    Raises:
        InputError: bf16 on a generation before sm_80.

    Source: CUDA C++ Programming Guide, "Arithmetic Instructions": bfloat16 from compute capability 8.0 on.
    """
    generation = re.fullmatch(r"sm_(\d+)\d", device.architecture)
    if name == "bf16" and generation is not None and int(generation[1]) < _BF16_MAJOR:
        raise InputError(f"{device.title} ({device.architecture}) does not multiply bf16", hint="give --weights fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device that is measured.

    Args:
        kind: ``cpu`` or ``cuda``.
        title: the product's name.
        architecture: generation, for a calibration to apply to.
        memory_bytes: all of its memory.
        last_level_cache_bytes: largest cache in front of the memory; 0 where unknown.
        threads: threads that work on it; 0 on a GPU.
        versions: of torch, of the driver and of the system.
    """

    kind: str
    title: str
    architecture: str
    memory_bytes: int
    last_level_cache_bytes: int
    threads: int
    versions: Mapping[str, str]

    @property
    def resident_bytes(self) -> int:
        """Return the least size at which the last-level cache holds next to nothing of a working set."""
        return RESIDENT_TIMES * self.last_level_cache_bytes

    def free_bytes(self) -> int:
        """Return the memory that can be allocated now; what torch keeps of freed tensors is given back first."""
        if self.kind == "cuda":
            self.release()
            free: int = require_torch().cuda.mem_get_info()[0]
            return free
        available = _meminfo("MemAvailable")
        limit, used = _number(_CONTAINER_LIMIT), _number(_CONTAINER_USE)
        return available if limit is None or used is None else min(available, max(0, limit - used))

    def wait(self) -> None:
        """Wait until everything that was started on it is done."""
        if self.kind == "cuda":
            require_torch().cuda.synchronize()

    def requested_bytes(self) -> int | None:
        """Bytes that torch's allocator was asked for and still holds, before it rounds them up.

        None on a CPU, and where another allocator than torch's own was chosen, which does not tell.
        """
        if self.kind != "cuda":
            return None
        requested: int | None = require_torch().cuda.memory_stats().get(_REQUESTED)
        return requested

    def peak_bytes(self, *, reset: bool = False) -> int | None:
        """The most that torch's allocator had handed out since the last ``reset``, in bytes; none on a CPU."""
        if self.kind != "cuda":
            return None
        cuda = require_torch().cuda
        peak: int = cuda.max_memory_allocated()
        if reset:
            cuda.reset_peak_memory_stats()
        return peak

    def reserved_bytes(self) -> int | None:
        """Bytes that torch's allocator holds of the device, in use or kept for later; none on a CPU."""
        if self.kind != "cuda":
            return None
        reserved: int = require_torch().cuda.memory_reserved()
        return reserved

    def used_bytes(self) -> int | None:
        """Bytes of the device that are in use, by whatever program; none on a CPU."""
        if self.kind != "cuda":
            return None
        free, total = require_torch().cuda.mem_get_info()
        return int(total - free)

    def release(self) -> None:
        """Give cached memory back."""
        if self.kind == "cuda":
            require_torch().cuda.empty_cache()


def find_device(name: str = "auto") -> Device:
    """Return the device of that name: ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.

    Raises:
        InputError: torch is not installed, no such device, or it is not there.
    """
    torch = require_torch()
    if name not in ("cpu", "cuda", "auto"):
        raise InputError(f"--device {name!r} is not a device", hint="cpu, cuda or auto")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        built = torch.version.cuda
        why = f"torch {torch.__version__} is a build without CUDA" if built is None else "torch finds no CUDA device"
        raise InputError(f"--device cuda: {why}", hint="use --device cpu, or install a CUDA build and its driver")
    return _cuda(torch) if there and name != "cpu" else _cpu(torch)


def _cuda(torch: Any) -> Device:
    properties = torch.cuda.get_device_properties(0)
    versions = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda), "driver": _driver(torch)}
    return Device(
        kind="cuda",
        title=properties.name,
        architecture=f"sm_{properties.major}{properties.minor}",
        memory_bytes=properties.total_memory,
        last_level_cache_bytes=getattr(properties, "L2_cache_size", 0),
        threads=0,
        versions=versions,
    )


def _driver(torch: Any) -> str:
    """Return the driver's version; where the system does not tell, that of CUDA which it is good for."""
    match = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", " ".join(_lines(_GPU_DRIVER)))
    if match is not None:
        return match[1]
    version = getattr(torch._C, "_cuda_getDriverVersion", None)  # noqa: SLF001  no public name
    return f"for CUDA {version()}" if version is not None else "not known"


def _cpu(torch: Any) -> Device:
    names = [line.partition(":")[2].strip() for line in _lines(_CPU_NAME) if line.startswith("model name")]
    title = names[0] if names else platform.processor() or platform.machine()
    capability = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "not known")()
    return Device(
        kind="cpu",
        title=title,
        architecture=f"cpu-{platform.machine()}-{capability.lower()}",
        memory_bytes=_meminfo("MemTotal"),
        last_level_cache_bytes=_largest_cache(),
        threads=torch.get_num_threads(),
        versions={"torch": str(torch.__version__), "system": f"{platform.system()} {platform.release()}"},
    )


def _largest_cache() -> int:
    sizes = [_lines(path / "size") for path in _CPU_CACHES.glob("index*")]
    return max((parse_bytes(f"{size[0].strip()}iB") for size in sizes if size), default=0)


def _meminfo(name: str) -> int:
    """Return a line of /proc/meminfo; what the system's configuration says where there is no such file."""
    for line in _lines(_CPU_MEMORY):
        if line.startswith(f"{name}:"):
            return parse_bytes(line.partition(":")[2].replace("kB", "KiB"))
    pages: int = os.sysconf("SC_PHYS_PAGES")
    return pages * os.sysconf("SC_PAGE_SIZE")


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
