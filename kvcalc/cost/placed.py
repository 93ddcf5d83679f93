"""A pass over unlike devices: operators where weights, experts and cache stand, and what crosses links.

The operators are those of `kvcalc.cost.forward`; here they are only sorted by place.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from kvcalc.core.cost_types import OpCost, PlacedStage
from kvcalc.core.model import Mixture
from kvcalc.core.records import dataclass
from kvcalc.cost.forward import section_ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvcalc.core.hardware import HardwareProfile, Link
    from kvcalc.core.model import Block, ModelProfile
    from kvcalc.core.workload import Formats, Routing, TokenGroup

__all__ = ["HOST", "PlacedCost", "Section", "placed_cost", "placed_stages"]

# The place that is no device; devices are numbers from 0.
HOST: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Consecutive layers that stand alike.

    Args:
        blocks: the layers.
        formats: number formats of these layers.
        home: the place of their matrices and norms.
        cache: the place of their cache and states, where attention is computed.
        experts: the place of their routed experts.
    """

    blocks: tuple[Block, ...]
    formats: Formats
    home: int | None
    cache: int | None
    experts: int | None


@dataclass(slots=True, kw_only=True)
class PlacedCost:
    """A pass by place.

    Args:
        ops: operators of each place.
        crossings: for each device, hidden states that cross its link, one waiting for the other.
        layers: layers of each place; one whose experts stand elsewhere is that of its matrices.
        tokens: new tokens of the pass.
    """

    ops: dict[int | None, list[OpCost]] = field(default_factory=dict)
    crossings: dict[int, list[OpCost]] = field(default_factory=dict)
    layers: dict[int | None, int] = field(default_factory=dict)
    tokens: int = 0

    def add(self, device: int | None, ops: Iterable[OpCost]) -> None:
        """Add operators to a place."""
        self.ops.setdefault(device, []).extend(ops)


def placed_cost(
    model: ModelProfile,
    groups: Sequence[TokenGroup],
    sections: Sequence[Section],
    *,
    outer: Formats,
    output: int | None,
    computing: int | None = HOST,
    routing: Routing = "expected",
) -> PlacedCost:
    """Return the operators of a pass by place, and the hidden states that cross links between them.

    Args:
        model: the model.
        groups: the sequences of the pass.
        sections: all layers in order.
        outer: number formats of embedding and head.
        output: the place of the head; the embedding is the host's.
        computing: the device that computes with matrices of the host, whose weights cross its link; the host where
            left out.
        routing: which experts the tokens are taken to touch.

    Source: `kvcalc.cost.forward.forward_cost`, of which this is the same sum in another order.
    """
    tokens = sum(group.tokens for group in groups)
    cost = PlacedCost(tokens=tokens)
    for op in section_ops(model, (), groups, outer, is_first=True, is_last=True, routing=routing):
        if op.part == "embedding":
            cost.add(HOST, [op])
        else:
            _compute(cost, op, output, computing)
    for section in _merged(sections):
        cost.layers[section.home] = cost.layers.get(section.home, 0) + len(section.blocks)
        for op in section_ops(model, section.blocks, groups, section.formats, routing=routing):
            if op.part == "cache":
                cost.add(section.cache, [op])
            else:
                _compute(cost, op, section.experts if op.part == "experts" else section.home, computing)
    hidden_bytes = outer.hidden.bytes(model.hidden_size) * tokens
    at = HOST
    for section in sections:
        at = _cross_section(cost, section, at, computing, hidden_bytes)
    _cross(cost, at, _computed_at(output, computing), 1, hidden_bytes)
    return cost


def _merged(sections: Sequence[Section]) -> list[Section]:
    """Return sections that stand alike as one: for what operators cost, their order does not count."""
    alike: dict[tuple[int, int | None, int | None, int | None], list[Section]] = {}
    for section in sections:
        key = (id(section.formats), section.home, section.cache, section.experts)
        alike.setdefault(key, []).append(section)
    return [
        replace(each[0], blocks=tuple(block for section in each for block in section.blocks)) for each in alike.values()
    ]


def _computed_at(device: int | None, computing: int | None) -> int | None:
    return computing if device is HOST else device


def _compute(cost: PlacedCost, op: OpCost, device: int | None, computing: int | None) -> None:
    """Add an operator with weights where it is computed; weights of the host cross the link of a device."""
    if device is HOST and computing is not HOST:
        op = replace(op, link_bytes=op.link_bytes + op.weight_bytes)
    cost.add(_computed_at(device, computing), [op])


def _cross_section(
    cost: PlacedCost, section: Section, at: int | None, computing: int | None, hidden_bytes: float
) -> int | None:
    """Add what crosses links on the way through a section, which is entered from ``at``; return where it ends."""
    home, experts = (_computed_at(device, computing) for device in (section.home, section.experts))
    _cross(cost, at, home, 1, hidden_bytes)
    count = len(section.blocks)
    mixtures = sum(isinstance(block.mlp, Mixture) for block in section.blocks)
    for device, times in ((section.cache, count), (experts, mixtures)):
        _cross(cost, home, device, times, hidden_bytes)
        _cross(cost, device, home, times, hidden_bytes)
    return home


def _cross(cost: PlacedCost, start: int | None, end: int | None, times: int, hidden_bytes: float) -> None:
    device = end if end is not None else start
    if start == end or not times or device is None:
        return
    moved = times * hidden_bytes
    op = OpCost(
        name="crossing",
        part="interconnect",
        link_bytes=moved,
        collective_bytes=moved,
        collective_steps=times,
        calls=times,
    )
    cost.crossings.setdefault(device, []).append(op)


def placed_stages(
    cost: PlacedCost, hardware: Mapping[int | None, HardwareProfile], links: Mapping[int, Link]
) -> list[PlacedStage]:
    """Return the stages of a pass, for `kvcalc.cost.roofline.stages_time`: one a place, and one a link.

    Args:
        cost: operators by place.
        hardware: rates of each place.
        links: what joins each device to the host; a device without one has crossings that take no time.

    Source: the sum over places of a sequential pass, as pipeline stages in `kvcalc.cost.roofline.stages_time`.
    """
    stages = [
        PlacedStage(
            ops=tuple(ops),
            hardware=hardware[on],
            link=links.get(on) if on is not None else None,
            layers=cost.layers.get(on, 0),
            place=on,
        )
        for on, ops in cost.ops.items()
    ]
    crossings = [
        PlacedStage(ops=tuple(ops), hardware=hardware[device], link=links.get(device), place=device)
        for device, ops in cost.crossings.items()
    ]
    return stages + crossings
