"""A machine: devices beside a host, what joins them, and the least time of a pass that is spread over them."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from kvcalc.core.hardware import HardwareProfile
from kvcalc.core.records import dataclass
from kvcalc.cost.placed import HOST, placed_cost, placed_stages
from kvcalc.cost.roofline import stages_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.cost_types import PlacedStage, StepTime
    from kvcalc.core.hardware import Link
    from kvcalc.core.workload import TokenGroup
    from kvcalc.plan.local.sections import PlacedModel

__all__ = ["OFFLOADED_TOKENS", "Machine", "host_profile", "pass_stages", "pass_time", "yielding_host"]

# New tokens of a pass from which on a device computes with matrices of the host. Source: llama.cpp commit
# 0c1e57098bba, ``ggml_backend_cuda_device_offload_op`` (``GGML_OP_OFFLOAD_MIN_BATCH``).
OFFLOADED_TOKENS = 32
# Share of a device's rates that its host is taken to have where both read one memory.
_YIELDING = 1 - 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Devices and host.

    Args:
        devices: rates of each device, in llama.cpp's order.
        host: rates of the host.
        links: what joins a device to the host.
    """

    devices: tuple[HardwareProfile, ...]
    host: HardwareProfile
    links: Mapping[int, Link] = field(default_factory=dict)

    @property
    def hardware(self) -> dict[int | None, HardwareProfile]:
        """Rates by place."""
        return {HOST: self.host, **dict(enumerate(self.devices))}


def host_profile(bandwidth_bytes_per_s: float, *, memory_bytes: int = 0, name: str = "host") -> HardwareProfile:
    """Return a host of which the memory alone is known: its FLOP take no time, so that a bound stays one."""
    return HardwareProfile(
        name=name,
        title=name,
        vendor="",
        memory_label_bytes=memory_bytes,
        memory_bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        peak_flop_per_s={"fp32": float("inf")},
        memory_bytes=memory_bytes,
    )


def yielding_host(device: HardwareProfile, host: HardwareProfile) -> HardwareProfile:
    """Return the host of a device that reads the same memory, a hair slower than the device: a tie goes to that.

    Args:
        device: a device of unified memory.
        host: its host; as it is where its memory is the slower one.

    >>> yielding_host(host_profile(100e9), host_profile(100e9)).memory_bandwidth_bytes_per_s
    99999900000.0
    >>> yielding_host(host_profile(100e9), host_profile(60e9)).memory_bandwidth_bytes_per_s
    60000000000.0
    """
    if host.memory_bandwidth_bytes_per_s < device.memory_bandwidth_bytes_per_s:
        return host
    return replace(
        device,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * _YIELDING,
        peak_flop_per_s={name: rate * _YIELDING for name, rate in device.peak_flop_per_s.items()},
    )


def pass_stages(placed: PlacedModel, groups: Sequence[TokenGroup], machine: Machine) -> tuple[PlacedStage, ...]:
    """Return the stages of a pass over the machine, one after another.

    From `OFFLOADED_TOKENS` new tokens on, the first device computes with the host's matrices, which cross its link.
    """
    tokens = sum(group.tokens for group in groups)
    offloads = bool(machine.devices) and placed.placement.op_offload and tokens >= OFFLOADED_TOKENS
    cost = placed_cost(
        placed.model,
        groups,
        placed.sections,
        outer=placed.outer,
        output=placed.placement.output,
        computing=placed.placement.used[0] if offloads else HOST,
    )
    return tuple(placed_stages(cost, machine.hardware, machine.links))


def pass_time(placed: PlacedModel, groups: Sequence[TokenGroup], machine: Machine) -> StepTime:
    """Return the least time of a pass over the machine; ``latency_s`` is that of one pass from first to last layer."""
    return stages_time(pass_stages(placed, groups, machine))
