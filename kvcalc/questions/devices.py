"""This machine, by its own tools: ``kvcalc devices``, and the meaning of ``--device this``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.core.readers import number
from kvcalc.core.reports.machine import FoundDevice, FoundHost, MachineReport
from kvcalc.core.units import GIB
from kvcalc.questions.declared import Answer, Question, param
from kvcalc.sources import catalogue_hardware

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.machine.found import Machine
    from kvcalc.machine.outputs import Accelerator

__all__ = ["Devices", "this_machine"]

_MAX_TIMEOUT_S = 600
_ORDER = (
    "CUDA lists the fastest card first, nvidia-smi the first slot: CUDA_DEVICE_ORDER=PCI_BUS_ID makes llama.cpp's order"
    " this one"
)
_NO_SPEED = "dmidecode tells the memory's speed to root alone: sudo kvcalc devices, or --host ddr5-5600x2 says it"


class Devices(Question):
    """This machine's accelerators and memory, as its own tools tell them.

    nvidia-smi, rocm-smi, AMD's driver, sysctl, /proc and dmidecode are asked, those that are there; the names they
    print are looked up in the catalogue. --device this means what is listed here.

    Example: kvcalc devices
    """

    timeout_s: float = param("--timeout", help="Seconds that a tool may take.", read=number, default=10)

    def answer(self) -> Answer:
        """Return this machine."""
        return Answer(this_machine(timeout_s=self.timeout_s))


def this_machine(*, timeout_s: float = 10) -> MachineReport:
    """Return the accelerators and the host of this machine, with their profiles in the catalogue.

    What no tool tells is none; nothing is raised for a tool that is missing, fails or hangs.

    Args:
        timeout_s: seconds that a tool may take.

    Raises:
        InputError: no time.
    """
    from kvcalc.machine import System, found_machine

    if not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise InputError(f"--timeout must be above 0 and at most {_MAX_TIMEOUT_S}, not {timeout_s:g}")
    machine = found_machine(System(longest_s=timeout_s))
    devices = tuple(_device(each, tool, machine) for each, tool in machine.accelerators)
    host = _host(machine)
    notes = [f"{tool} did not answer in time: its information is missing" for tool in machine.silent]
    cards = {each.card or each.title for each in devices if each.tool == "nvidia-smi"}
    if len(cards) > 1:
        notes.append(_ORDER)
    notes += [f"{each.title} is not in the catalogue: its memory alone is known" for each in devices if not each.card]
    if not devices:
        notes.append("no GPU was found: nvidia-smi, rocm-smi, AMD's driver and sysctl tell of none")
    if host.memory_bandwidth_bytes_per_s is None and not any(each.unified for each in devices):
        notes.append(_NO_SPEED)
    return MachineReport(devices=devices, host=host, notes=tuple(notes))


def _device(each: Accelerator, tool: str, machine: Machine) -> FoundDevice:
    card = _card(each.title, each.memory_bytes)
    usable = machine.usable_bytes
    if card is not None and usable is None and card.vendor == "apple" and each.memory_bytes:
        usable = card.with_memory(each.memory_bytes).usable_memory_bytes
    return FoundDevice(
        title=each.title,
        card=None if card is None else card.name,
        memory_bytes=each.memory_bytes,
        used_bytes=each.used_bytes,
        usable_bytes=usable,
        memory_bandwidth_bytes_per_s=None if card is None else card.memory_bandwidth_bytes_per_s,
        unified=each.shares_host,
        pcie=each.pcie,
        driver=each.driver,
        tool=tool,
    )


def _card(title: str, memory_bytes: int | None) -> HardwareProfile | None:
    """Return the profile that a printed name means, of variants the one with that memory; none where it has none."""
    names = [title]
    if memory_bytes is not None:
        # a card of 16 GB prints 15.9 GiB or 16,380 MiB
        names.insert(0, f"{title} {round(memory_bytes / GIB)}GB")
    for name in names:
        try:
            return catalogue_hardware(name)
        except KvcalcError:
            continue
    return None


def _host(machine: Machine) -> FoundHost:
    card = _card(machine.cpu, None) if machine.cpu else None
    host = FoundHost(
        cpu=machine.cpu,
        card=None if card is None else card.name,
        threads=machine.threads,
        memory_bytes=machine.memory_bytes,
        used_bytes=machine.used_bytes,
    )
    modules = machine.modules
    if modules is not None:
        host = replace(
            host,
            memory_kind=modules.kind,
            memory_transfers_per_s=modules.transfers_per_s,
            memory_channels=modules.channels or None,
            memory_bandwidth_bytes_per_s=modules.bandwidth_bytes_per_s,
            bandwidth_from="dmidecode" if modules.bandwidth_bytes_per_s else "",
        )
    if host.memory_bandwidth_bytes_per_s is None and card is not None:
        host = replace(
            host, memory_bandwidth_bytes_per_s=card.memory_bandwidth_bytes_per_s, bandwidth_from=f"profile {card.name}"
        )
    return host
