"""Machines as users write them: devices and host, PCIe, memory speed, shares and overrides of tensors."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, UnsupportedError, about
from kvcalc.core.readers import memory, number
from kvcalc.core.units import MIB, bytes_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.hardware import HardwareProfile, Link
    from kvcalc.core.reports.machine import MachineReport
    from kvcalc.engines.llama_cpp.overrides import Override
    from kvcalc.plan.local.setup import Host, LocalDevice, LocalSetup

__all__ = ["host_bandwidth_of", "is_amount", "link_of", "machine_of", "overrides_of", "shares_of"]

_AMOUNT = re.compile(r"\d[\d._]*\s*[kKMGT]?i?[bB]?")
_MODULES = re.compile(r"(?:lp)?ddr[345]x?-(?P<speed>\d{3,5})x(?P<channels>\d{1,2})")
_KIND = re.compile(r"(?:lp)?ddr")
_PCIE = re.compile(r"(?:gen)?(?P<generation>[1-7])\s*x\s*(?P<lanes>1|2|4|8|16)")
_SEVERAL = re.compile(r"(?P<count>[1-9]|1[0-6])\s*[x*]\s*(?P<card>\w.*)")
_BUFFER = re.compile(r"(?P<kind>[A-Za-z]+)(?P<number>\d+)(?:\[.*\])?")
_MODULE_BYTES, _MEGA = 8, 1_000_000
# Bytes a second of one lane in one direction by generation: transfers times coding. Source: PCI-SIG's base
# specifications (8b/10b up to the second generation, 128b/130b up to the fifth, FLITs of 242 in 256 bytes after it).
_LANE_BYTES_PER_S = {
    1: 2.5e9 / 10, 2: 5e9 / 10, 3: 8e9 * 128 / 130 / 8, 4: 16e9 * 128 / 130 / 8, 5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8, 7: 128e9 * 242 / 256 / 8,
}  # fmt: skip
# What a process on a GPU takes beside the engine's buffers, at the least.
_CONTEXT_BYTES = 200 * MIB
_THIS, _NO_DEVICE = "this", "cpu"


def machine_of(
    devices: Sequence[Any],
    *,
    memory_bytes: int | None = None,
    used: Sequence[Any] = (),
    pcie: str | None = None,
    host: str | None = None,
    host_memory: int | None = None,
    host_bandwidth: float | None = None,
) -> tuple[tuple[LocalDevice, ...], Host, tuple[str, ...]]:
    """Return devices, host, and what was assumed of them.

    Args:
        devices: names, memories, profiles, ``this`` or ``cpu``.
        memory_bytes: memory of the one device that was named, where it is another than its profile's.
        used: memory that other programs take of each device in order.
        pcie: PCIe of all devices, or of each.
        host: the host, as modules of memory or a processor's name.
        host_memory: its memory.
        host_bandwidth: the bandwidth of its memory.

    Raises:
        KvcalcError: what is not known or makes no sense.
    """
    from kvcalc.plan.local.setup import Host

    machine, spots = _this_machine(devices)
    if machine is None:
        spots = _named_devices(devices, memory_bytes)
    spots = [_of_memory(spot, host_memory, memory_bytes) for spot in spots]
    spots = _with_used(spots, used)
    links = _links(pcie, len(spots))
    if links:
        spots = [replace(spot, link=link) for spot, link in zip(spots, links, strict=True)]
    made = Host() if machine is None else _found_host(machine)
    if host is not None:
        if host_bandwidth is not None and host_bandwidth_of(host) is not None:
            what = "--host with modules and --host-bandwidth are two bandwidths"
            raise InputError(what, hint="give one of them", parameter="host-bandwidth")
        made = _named_host(host, made)
    shared = next((spot.hardware for spot in spots if spot.is_unified and spot.hardware is not None), None)
    if shared is not None:
        made = replace(
            made,
            memory_bytes=made.memory_bytes or max(shared.driver_memory_bytes, shared.usable_memory_bytes),
            bandwidth_bytes_per_s=made.bandwidth_bytes_per_s or shared.memory_bandwidth_bytes_per_s,
        )
    if host_memory is not None:
        made = replace(made, memory_bytes=host_memory)
    if host_bandwidth is not None:
        made = replace(made, bandwidth_bytes_per_s=host_bandwidth)
    notes = tuple(
        spot.hardware.memory_note for spot in spots if spot.hardware is not None and spot.hardware.memory_note
    )
    unified = (f"{shared.name}: device and host share one memory",) if shared is not None else ()
    return tuple(spots), made, (*dict.fromkeys(notes), *unified, *_part_notes(spots, memory_bytes))


def _check_one_machine(spots: Sequence[LocalDevice]) -> None:
    """Refuse devices that no one machine has.

    Raises:
        InputError: a device of unified memory beside another of unified memory, or Metal beside anything else.
    """
    unified = [spot for spot in spots if spot.is_unified]
    apple = any(spot.hardware is not None and spot.hardware.vendor == "apple" for spot in unified)
    if len(unified) > 1 or (apple and len(spots) > 1):
        names = " and ".join(spot.name for spot in spots)
        raise InputError(
            f"{names} are no one machine: the memory of {unified[0].name} is its host's",
            hint="give one device of unified memory",
            parameter="device",
        )


def _named_devices(devices: Sequence[Any], memory_bytes: int | None) -> list[LocalDevice]:
    """Return the devices that were named, which one machine can have."""
    if len(devices) > 1 and any(_is_cpu(each) for each in devices):
        raise InputError("--device cpu stands for no device", hint="give it alone", parameter="device")
    with about("device"):
        cards = [card for each in devices for card in _each_card(each)]
        spots = [_device(each, memory_bytes) for each in cards if not _is_cpu(each)]
    _check_one_machine(spots)
    return spots


def _each_card(device: Any) -> list[Any]:
    """Return a device as often as its name says: ``2xrtx-3090`` is two.

    >>> _each_card("2xrtx-3090"), _each_card("24GiB"), _each_card("rx-7900-xtx")
    (['rtx-3090', 'rtx-3090'], ['24GiB'], ['rx-7900-xtx'])
    """
    several = _SEVERAL.fullmatch(device.strip().lower()) if isinstance(device, str) else None
    return [device] if several is None else [several["card"]] * int(several["count"])


def _of_memory(spot: LocalDevice, host_bytes: int | None, memory_bytes: int | None) -> LocalDevice:
    """Return a device whose memory is the host's with as much of it as such a host leaves; others as they are.

    Args:
        spot: the device.
        host_bytes: memory of the host.
        memory_bytes: the part of it that the device may fill, where a setting of the system says so.

    Raises:
        InputError: a part that is more than the whole.
    """
    if host_bytes is None or spot.hardware is None or not spot.is_unified:
        return spot
    if memory_bytes is not None and memory_bytes > host_bytes:
        what = f"{spot.name} fills {bytes_text(memory_bytes)} of its host's {bytes_text(host_bytes)}"
        raise InputError(what, hint="--memory is the part of it that the GPU may fill", parameter="memory")
    with about("host-memory"):
        card = spot.hardware.with_memory(host_bytes)
    part = card.usable_memory_bytes if memory_bytes in (None, host_bytes) else memory_bytes
    return replace(spot, hardware=card, memory_bytes=min(host_bytes, part or host_bytes))


def _part_notes(spots: Sequence[LocalDevice], memory_bytes: int | None) -> list[str]:
    """Return a note on the part of a shared memory that the system gives its GPU, where that is a setting not given.

    Source: Linux commit f7ba887f606b ("drm/amdgpu: Adjust logic around GTT size"): half of the memory by default;
    "AMD RDNA3.5 system optimization" in ROCm's documentation: ``ttm.pages_limit`` raises it.
    """
    shared = [spot for spot in spots if spot.is_unified and spot.hardware and spot.hardware.vendor == "amd"]
    if not shared or memory_bytes is not None:
        return []
    half, whole = (bytes_text(shared[0].memory_bytes // parts) for parts in (2, 1))
    counted = f"{shared[0].name}: Linux lets the GPU fill half of the memory unless ttm.pages_limit says more"
    options = f"--memory {half} --host-memory {whole}".replace(" GiB", "GiB")
    return [f"{counted}; all {whole} are counted: {options} counts half"]


def _with_used(spots: Sequence[LocalDevice], used: Sequence[Any]) -> list[LocalDevice]:
    """Return devices with what other programs take of each in order."""
    taken = [memory(each, "used") for each in used]
    if len(taken) > len(spots):
        raise InputError(f"{len(taken)} times --used for {len(spots)} devices", parameter="used")
    for spot, size in zip(spots, taken, strict=False):
        if size > spot.memory_bytes:
            what = f"{bytes_text(size)} is more than the {bytes_text(spot.memory_bytes)} of {spot.name}"
            raise InputError(what, hint="--used is what other programs take of it", parameter="used")
    return [
        replace(spot, used_bytes=taken[index] if index < len(taken) else spot.used_bytes)
        for index, spot in enumerate(spots)
    ]


def is_amount(given: str) -> bool:
    """Say whether a device is given by its memory alone; a number without a unit may be the name of a card.

    >>> is_amount("24GiB"), is_amount("rtx-4090"), is_amount("24"), is_amount("3060")
    (True, False, True, False)
    """
    from kvcalc.profiles.resolve import resolve

    name = given.strip()
    return bool(_AMOUNT.fullmatch(name)) and not (name.isdigit() and resolve(name, "hardware") is not None)


def _is_cpu(given: Any) -> bool:
    return isinstance(given, str) and given.strip().lower() == _NO_DEVICE


def _device(given: Any, memory_bytes: int | None) -> LocalDevice:
    """Return one device."""
    from kvcalc.plan.local.setup import LocalDevice

    if isinstance(given, str) and is_amount(given.strip().removeprefix("-")):
        size = 0 if given.strip().startswith("-") else memory(given, "device")
        if not size:
            raise InputError("a device of no memory holds nothing", hint="--device cpu runs on the host alone")
        return LocalDevice(name=given.strip(), memory_bytes=size)
    from kvcalc.sources import load_hardware

    return _of_card(load_hardware(given, memory_bytes=memory_bytes))


def _of_card(card: HardwareProfile, *, used_bytes: int = 0) -> LocalDevice:
    from kvcalc.engines.llama_cpp.backends import BACKENDS
    from kvcalc.plan.local.setup import LocalDevice

    backend = BACKENDS.get(card.vendor)
    if backend is None or card.architecture in _PROCESSORS:
        raise UnsupportedError(
            f"{card.name} is no GPU that llama.cpp's described back ends run on",
            hint=f"a processor is --host {card.name}" if card.architecture in _PROCESSORS else "--device 24GiB",
        )
    return LocalDevice(
        name=card.name,
        memory_bytes=card.usable_memory_bytes,
        used_bytes=used_bytes,
        overhead_bytes=_CONTEXT_BYTES if card.vendor in ("nvidia", "amd") else 0,
        backend=backend,
        hardware=card,
    )


# Generations of processors, which are hosts and no devices.
_PROCESSORS = frozenset({
    "zen2", "zen3", "zen4", "zen5", "raptor-lake", "arrow-lake", "emerald-rapids", "sapphire-rapids", "granite-rapids",
})  # fmt: skip


def _this_machine(devices: Sequence[Any]) -> tuple[MachineReport | None, list[LocalDevice]]:
    """Return this machine and its devices, where they were asked for."""
    if not any(isinstance(each, str) and each.strip().lower() == _THIS for each in devices):
        return None, []
    if len(devices) > 1:
        raise InputError("--device this means all devices of this machine", hint="give it alone")
    from kvcalc.plan.local.setup import LocalDevice
    from kvcalc.questions.devices import this_machine
    from kvcalc.sources import load_hardware

    machine = this_machine()
    spots = []
    for each in machine.devices:
        if each.card is not None:
            card = load_hardware(each.card, memory_bytes=each.memory_bytes)
            spot = _of_card(card, used_bytes=each.used_bytes or 0)
            spots.append(replace(spot, memory_bytes=each.usable_bytes or spot.memory_bytes))
        elif each.memory_bytes:
            spots.append(LocalDevice(name=each.title, memory_bytes=each.memory_bytes, used_bytes=each.used_bytes or 0))
    return machine, spots


def _found_host(machine: MachineReport) -> Host:
    from kvcalc.plan.local.setup import Host

    host = machine.host
    return Host(
        memory_bytes=host.memory_bytes,
        used_bytes=host.used_bytes or 0,
        bandwidth_bytes_per_s=host.memory_bandwidth_bytes_per_s,
    )


def _named_host(given: str, host: Host) -> Host:
    """Return the host that modules of memory or a processor's name describe."""
    bandwidth = host_bandwidth_of(given)
    if bandwidth is not None:
        return replace(host, bandwidth_bytes_per_s=bandwidth)
    from kvcalc.sources import load_hardware

    with about("host"):
        card = load_hardware(given)
    return replace(host, name=card.name, hardware=card, bandwidth_bytes_per_s=card.memory_bandwidth_bytes_per_s)


def host_bandwidth_of(given: str) -> float | None:
    """Return the peak of a host's memory by its modules: kind, transfers and channels of 64 bits; none for a name.

    Raises:
        InputError: a kind of memory without its transfers or channels, or with none of them.

    >>> host_bandwidth_of("ddr5-5600x2")
    89600000000.0
    """
    name = given.strip().lower()
    match = _MODULES.fullmatch(name)
    if match is None and _KIND.match(name) is None:
        return None
    if match is None or not int(match["speed"]) or not int(match["channels"]):
        hint = "kind-transfers x channels, as ddr5-5600x2, or a processor's name"
        raise InputError(f"{given[:40]!r} is no host", hint=hint, parameter="host")
    return float(int(match["speed"]) * _MEGA * int(match["channels"]) * _MODULE_BYTES)


def link_of(given: str) -> Link:
    """Return a PCIe link by generation and lanes, in one direction.

    Raises:
        InputError: no such link.

    >>> round(link_of("4x16").bytes_per_s / 1e9, 2)
    31.51
    """
    from kvcalc.core.hardware import Link

    match = _PCIE.fullmatch(given.strip().lower())
    if match is None:
        raise InputError(f"{given[:40]!r} is no PCIe link", hint="generation x lanes, as 4x16", parameter="pcie")
    generation, lanes = int(match["generation"]), int(match["lanes"])
    return Link(name=f"PCIe {generation}.0 x{lanes}", bytes_per_s=lanes * _LANE_BYTES_PER_S[generation])


def _links(given: str | None, devices: int) -> list[Link]:
    if given is None:
        return []
    links = [link_of(each) for each in given.split(",")]
    if len(links) not in (1, devices):
        raise InputError(f"{len(links)} PCIe links for {devices} devices", hint="one for all or each", parameter="pcie")
    return links * devices if len(links) == 1 else links


def shares_of(given: str | None) -> tuple[float, ...]:
    """Return the shares of ``--tensor-split``, separated by commas or slashes as llama.cpp takes them.

    Raises:
        InputError: no such list.

    >>> shares_of("2,1"), shares_of("3/1")
    ((2.0, 1.0), (3.0, 1.0))
    """
    if given is None:
        return ()
    with about("tensor-split"):
        return tuple(number(each, "tensor-split") for each in re.split(r"[,/]+", given.strip()))


def overrides_of(given: Sequence[str], setup: LocalSetup) -> tuple[Override, ...]:
    """Return the overrides of ``--override-tensor``: ``pattern=CPU``, ``pattern=CUDA1``, several with commas.

    Raises:
        InputError: no such override, or a device that is not there.
    """
    from kvcalc.engines.llama_cpp.overrides import Override

    made = []
    with about("override-tensor"):
        for each in (part for text in given for part in text.split(",")):
            pattern, equals, buffer = each.partition("=")
            if not equals or not pattern or not buffer:
                raise InputError(f"{each[:80]!r} is no override", hint="pattern=buffer, as exps=CPU")
            made.append(Override(pattern=pattern, device=_device_of(buffer, setup)))
    return tuple(made)


def _device_of(buffer: str, setup: LocalSetup) -> int | None:
    """Return the device that a buffer's name stands for; none for the host."""
    if buffer.upper() == "CPU":
        return None
    match = _BUFFER.fullmatch(buffer)
    names = _names(setup)
    if match is None:
        raise InputError(f"{buffer[:40]!r} is no buffer", hint=f"buffers: {', '.join(names)}")
    kind, index = match["kind"].lower(), int(match["number"])
    alike = [spot for spot, device in enumerate(setup.devices) if device.backend.device.lower() == kind]
    places = alike or list(range(len(setup.devices)))
    if index >= len(places):
        raise InputError(f"there is no device {buffer[:40]!r}", hint=f"buffers: {', '.join(names)}")
    return places[index]


def _names(setup: LocalSetup) -> list[str]:
    from kvcalc.plan.local.command import buffer_name

    return ["CPU", *(buffer_name(setup, index) for index in range(len(setup.devices)))]
