"""Our own placement: the fastest by the bound that every device holds, as options of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.cost.forward import section_ops
from kvcalc.cost.roofline import stage_seconds
from kvcalc.engines.llama_cpp.overrides import EXPERTS, HOST, Override
from kvcalc.engines.llama_cpp.placement import Placement, PlacementOptions
from kvcalc.plan.local.choice import Memories, Unit, chosen
from kvcalc.plan.local.machine import pass_time
from kvcalc.plan.local.sections import placed_model

if TYPE_CHECKING:
    from kvcalc.core.cost_types import OpCost
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import Block, ModelProfile
    from kvcalc.core.workload import Formats, TokenGroup
    from kvcalc.plan.local.choice import Choice
    from kvcalc.plan.local.machine import Machine

__all__ = ["LayerBytes", "Local", "Tried", "choose", "units_of"]

# Share of the best speed above which experts of the first layers are left on the host, as one number says it, rather
# than those of a list of layers.
_NEARLY = 0.99
_MAX_TRIED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes of a layer, or of the output, on a device.

    Args:
        plain: weights without routed experts, cache and states.
        experts: weights of routed experts.
    """

    plain: int
    experts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A placement, and the bytes that are taken with it.

    Args:
        options: its options.
        placement: the places of its layers.
        device_bytes: bytes of each device.
        shared_bytes: bytes of the host and of the devices that share its memory.
    """

    options: PlacementOptions
    placement: Placement
    device_bytes: tuple[int, ...]
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A model to be placed on a machine.

    Args:
        model: the model.
        by_layer: formats of each layer.
        outer: formats of embedding and head.
        machine: rates of devices and host.
        capacity_bytes: bytes that each device may take.
        layer_bytes: bytes of each layer, and last of the output.
        groups: the pass whose time counts.
        measure: returns places and bytes for options.
        shared_bytes: bytes that host and devices may take where they share one memory.
    """

    model: ModelProfile
    by_layer: Sequence[Formats]
    outer: Formats
    machine: Machine
    capacity_bytes: tuple[int, ...]
    layer_bytes: Sequence[LayerBytes]
    groups: Sequence[TokenGroup]
    measure: Callable[[PlacementOptions], Tried]
    shared_bytes: int | None = None

    def seconds(self, placement: Placement) -> float:
        """Return the least time of the pass with a placement."""
        placed = placed_model(self.model, self.by_layer, placement, outer=self.outer)
        return pass_time(placed, self.groups, self.machine).latency_s

    def devices_hold(self, tried: Tried) -> bool:
        """Whether no device takes more than it may."""
        return all(used <= capacity for used, capacity in zip(tried.device_bytes, self.capacity_bytes, strict=True))

    def shared_holds(self, tried: Tried) -> bool:
        """Whether host and devices take no more than they may where they share one memory."""
        return self.shared_bytes is None or tried.shared_bytes <= self.shared_bytes


def choose(local: Local) -> Tried:
    """Return the fastest placement that all devices hold; everything on the host where none holds a layer.

    Where device and host share one memory, that must hold both; where it holds no placement, one that the devices would
    hold is returned.

    Compute buffers depend on the placement in steps: the search is repeated with those of the placement that it ended
    with, from that with all on the devices and from that with all experts on the host.

    Args:
        local: model and machine.
    """
    units = units_of(local)
    everything = PlacementOptions()
    starts = [everything, PlacementOptions(cpu_moe=True)] if local.model.is_mixture else [everything]
    best: Tried | None = None
    best_seconds = float("inf")
    beyond: Tried | None = None
    known: set[PlacementOptions] = set()
    for start in starts:
        options = start
        while options not in known and len(known) < _MAX_TRIED:
            known.add(options)
            tried = local.measure(options)
            if local.devices_hold(tried) and not local.shared_holds(tried):
                beyond = beyond or tried
            elif local.devices_hold(tried):
                seconds = local.seconds(tried.placement)
                if seconds < best_seconds:
                    best, best_seconds = tried, seconds
                if options is everything and _are_alike(local.machine.devices):
                    return tried
            options = _as_options(local, units, _fixed(local, tried))
    if best is not None:
        return best
    on_host = local.measure(PlacementOptions(gpu_layers=0))
    return on_host if beyond is None or local.shared_holds(on_host) else beyond


def _are_alike(devices: Sequence[HardwareProfile]) -> bool:
    """Whether no layer is faster on one device than on another."""
    return len({device.name for device in devices}) <= 1


def _fixed(local: Local, tried: Tried) -> tuple[int, ...]:
    """Return the bytes that each device takes beside its layers in a placement: compute buffers and the like."""
    placement = tried.placement
    left = list(tried.device_bytes)
    for layer, sizes in enumerate(local.layer_bytes):
        home = placement.of_layer(layer)
        if home is not HOST:
            left[home] -= sizes.plain
        experts = placement.of_tensor(f"blk.{layer}.ffn_up_exps.weight", home)
        if experts is not HOST:
            left[experts] -= sizes.experts
    return tuple(max(0, rest) for rest in left)


def units_of(local: Local) -> list[Unit]:
    """Return bytes and times of each layer, and of the output, as the search takes them.

    Args:
        local: model and machine.
    """
    times = _Times(local)
    units = [
        times.unit(sizes, times.of_layer(block, formats))
        for block, formats, sizes in zip(local.model.blocks, local.by_layer, local.layer_bytes, strict=False)
    ]
    # layers that predict further tokens are placed too, but not run
    unused = Unit(bytes=0, seconds=(0.0,) * (len(local.machine.devices) + 1))
    units += [unused] * (len(local.layer_bytes) - 1 - len(units))
    output = section_ops(local.model, (), local.groups, local.outer, is_last=True)
    return [*units, times.unit(local.layer_bytes[-1], (times.seconds(output), ()))]


class _Times:
    """Times of layers on each device and last on the host, computed once for layers alike."""

    def __init__(self, local: Local) -> None:
        self.local = local
        self.places = [*local.machine.devices, local.machine.host]
        self.known: dict[tuple[int, int], tuple[tuple[float, ...], tuple[float, ...]]] = {}
        hidden = local.outer.hidden.bytes(local.model.hidden_size) * sum(group.tokens for group in local.groups)
        rates = [link.bytes_per_s for link in local.machine.links.values()]
        self.crossing_s = hidden / min(rates) if rates else 0.0

    def of_layer(self, block: Block, formats: Formats) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the times of a layer without its experts, and of these."""
        key = (id(block), id(formats))
        if key not in self.known:
            ops = section_ops(self.local.model, (block,), self.local.groups, formats)
            experts = [op for op in ops if op.part == "experts"]
            plain = [op for op in ops if op.part != "experts"]
            self.known[key] = self.seconds(plain), self.seconds(experts) if experts else ()
        return self.known[key]

    def seconds(self, ops: Sequence[OpCost]) -> tuple[float, ...]:
        """Return the least time of operators on each place."""
        return tuple(max(stage_seconds(ops, hardware, None)) for hardware in self.places)

    def unit(self, sizes: LayerBytes, times: tuple[tuple[float, ...], tuple[float, ...]]) -> Unit:
        """Return a unit of the search."""
        plain, experts = times
        if not experts:
            return Unit(bytes=sizes.plain + sizes.experts, seconds=plain)
        moved = (*experts[:-1], experts[-1] + 2 * self.crossing_s)
        return Unit(
            bytes=sizes.plain,
            seconds=plain,
            expert_bytes=sizes.experts,
            expert_seconds=moved,
            whole_host_seconds=experts[-1],
        )


def _as_options(local: Local, units: Sequence[Unit], fixed: tuple[int, ...]) -> PlacementOptions:
    """Return the best placement as options: ``n_cpu_moe`` where it is nearly as fast as a list of layers."""
    choice = chosen(units, Memories(capacity_bytes=local.capacity_bytes, fixed_bytes=fixed))
    split = tuple(map(float, choice.device_units)) if len(choice.device_units) > 1 and any(choice.device_units) else ()
    options = PlacementOptions(gpu_layers=sum(choice.device_units), tensor_split=split)
    if not choice.host_experts:
        return options
    layers = _first_layers(local, units, choice, fixed) or choice.host_experts
    # -ncmoe counts from the first layer of all: experts of layers on the host are there anyway
    if len(choice.device_units) == 1 and layers == tuple(
        layer for layer in range(choice.host_units, layers[-1] + 1) if _moves(units, layer)
    ):
        return replace(options, n_cpu_moe=layers[-1] + 1)
    listed = "|".join(map(str, layers))
    return replace(options, overrides=(Override(pattern=rf"blk\.({listed}){EXPERTS}"),))


def _moves(units: Sequence[Unit], layer: int) -> bool:
    return bool(units[layer].expert_bytes)


def _first_layers(local: Local, units: Sequence[Unit], choice: Choice, fixed: tuple[int, ...]) -> tuple[int, ...]:
    """Return the first layers of each device that leave their experts on the host at nearly the best speed.

    None where that costs: where experts differ in size, others may fill a device better.
    """
    homes = _homes(choice)
    room = [capacity - kept for capacity, kept in zip(local.capacity_bytes, fixed, strict=True)]
    for unit, home in zip(units, homes, strict=True):
        if home is not None:
            room[home] -= unit.bytes + unit.expert_bytes
    moved: list[int] = []
    for layer, (unit, home) in enumerate(zip(units, homes, strict=True)):
        if home is not None and unit.expert_bytes and room[home] < 0:
            room[home] += unit.expert_bytes
            moved.append(layer)
    seconds = sum(
        _seconds(unit, home, moved=layer in moved) for layer, (unit, home) in enumerate(zip(units, homes, strict=True))
    )
    return tuple(moved) if min(room) >= 0 and choice.seconds >= _NEARLY * seconds else ()


def _homes(choice: Choice) -> list[int | None]:
    homes: list[int | None] = [None] * choice.host_units
    for device, count in enumerate(choice.device_units):
        homes += [device] * count
    return homes


def _seconds(unit: Unit, home: int | None, *, moved: bool) -> float:
    if home is None:
        return unit.seconds[-1] + unit.whole_host_seconds
    experts = unit.expert_seconds[-1 if moved else home] if unit.expert_seconds else 0.0
    return unit.seconds[home] + experts
