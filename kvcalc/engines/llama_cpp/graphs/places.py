"""Places of weights and caches under a placement, as numbers of the scheduler's backends."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.core.formats import parse_format
from kvcalc.core.identity import ById
from kvcalc.engines.llama_cpp.backends import CPU, is_repacked
from kvcalc.engines.llama_cpp.graphs.repeats import find_runs
from kvcalc.engines.llama_cpp.graphs.scheduler import Backends
from kvcalc.engines.llama_cpp.graphs.shapes import Homes
from kvcalc.engines.llama_cpp.graphs.tensors import F16, F32, Type
from kvcalc.engines.llama_cpp.overrides import HOST
from kvcalc.engines.llama_cpp.weights import FIRST_LAYER_TENSORS, INPUT_TENSORS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from kvcalc.engines.llama_cpp.backends import Backend
    from kvcalc.engines.llama_cpp.graphs.repeats import Run
    from kvcalc.engines.llama_cpp.placement import Placement
    from kvcalc.engines.llama_cpp.weights import Weight

__all__ = ["Places", "stored_type"]

_TABLE, _LAYER = "token_embd", "blk."
# Matrices that no recipe quantises, and that a model's tensors stand for together.
_HALVES = frozenset({"altup_proj", "altup_router", "altup_unembd_proj", "laurel_l", "laurel_r", "per_layer_model_proj"})


@lru_cache(maxsize=64)
def stored_type(name: str) -> Type:
    """Return the type of that name, as formats are named.

    >>> stored_type("q8_0")
    Type(name='q8_0', block=32, size=34)
    """
    form = parse_format(name)
    if form.name == "fp32":
        return F32
    return Type(form.name, form.block_elements, form.block_bytes)


class _LayerTensors(NamedTuple):
    """The tensors of a layer: their names behind the layer's number, and their types."""

    names: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@lru_cache(maxsize=64)
def _names_by_layer(weights: ById[Mapping[str, Weight]]) -> Mapping[int, _LayerTensors]:
    """Return names and types of each layer's tensors."""
    by_layer: dict[int, list[tuple[str, str]]] = {}
    for name, weight in weights.value.items():
        if name.startswith(_LAYER):
            _, number, rest = name.split(".", 2)
            by_layer.setdefault(int(number), []).append((rest, weight.kind))
    return {number: _LayerTensors(*zip(*sorted(tensors), strict=True)) for number, tensors in by_layer.items()}


class Places:
    """Places of weights and caches, as numbers of backends: the devices in use in order, then the host.

    Args:
        placement: the placement.
        weights: the tensors of the file, by name.
        backends: the back end of each device.
    """

    def __init__(self, placement: Placement, weights: ById[Mapping[str, Weight]], backends: Sequence[Backend]) -> None:
        self.placement = placement
        self.weights = weights
        self.numbers = {device: number for number, device in enumerate(placement.used)}
        self.host = len(self.numbers)
        self.backends = [*(backends[device] for device in placement.used), CPU]
        self.repacks = not any(backend.pins_host for backend in backends)

    def homes(self, *, fixed: bool = False) -> Homes:
        """Return the places as a graph asks for them; norms are fixed to their layers if wanted."""
        return Homes(
            weight=self.weight,
            cache=lambda layer: self._number(self.placement.of_cache(layer)),
            repacked=self.repacked,
            pinned=self.layer if fixed else None,
        )

    @property
    def all(self) -> Backends:
        """The backends of the context."""
        return Backends(devices=self.host, op_offload=self.placement.op_offload, copies=self.placement.copies)

    def runs(self, kinds: Sequence[Hashable]) -> tuple[Run, ...]:
        """Return the runs of layers that repeat, given what sort each is; the last layer is in none."""
        names = _names_by_layer(self.weights)
        return find_runs([(kind, *self._kind(number, names)) for number, kind in enumerate(kinds[:-1])])

    def signature(self, kinds: Sequence[Hashable], layers: Sequence[int], *, once: bool = False) -> Hashable:
        """Return a key of the graph of some layers: placements with the same key have alike graphs.

        Args:
            kinds: the sort of each layer.
            layers: the layers of the graph.
            once: whether layers that are alike in a row count as one.
        """
        names, placed = _names_by_layer(self.weights), self.placement
        outside: tuple[int | None, ...] = ()
        if placed.overrides:
            outside = tuple(placed.of_tensor(name, HOST) for name in self.weights.value if not name.startswith(_LAYER))
        alike: Iterable[Hashable] = ((kinds[number], self._kind(number, names)) for number in layers)
        return (
            tuple(each for each, _ in groupby(alike)) if once else tuple(alike),
            (placed.layers[0], placed.output, outside),
            (self.all, tuple(self.backends), self.repacks),
            placed.gpu_layers > len(placed.layers),
        )

    def _kind(self, number: int, names: Mapping[int, _LayerTensors]) -> tuple[Hashable, ...]:
        """Return a layer's places and, where the host has some of its tensors, their types."""
        home, stored = self.placement.layers[number], names.get(number, _LayerTensors())
        places: tuple[int | None, ...] = ()
        if self.placement.overrides:
            places = self.placement.of_layer_tensors(number, stored.names)
        types = stored if HOST in (home, *places) else ()
        return home, self.placement.of_cache(number), places, types

    def moves_only(self, prefix: str) -> bool:
        """Whether all tensors of layers that overrides move have names of one beginning."""
        placed, names = self.placement, _names_by_layer(self.weights)
        if not placed.overrides:
            return True
        stored = {number: names.get(number, _LayerTensors()).names for number in range(len(placed.layers))}
        layers = {(home, stored[at], placed.of_layer_tensors(at, stored[at])) for at, home in enumerate(placed.layers)}
        return all(
            device == home or name.startswith(prefix)
            for home, tensors, places in layers
            for name, device in zip(tensors, places, strict=True)
        )

    def layer(self, number: int) -> int:
        """Return the backend of a layer."""
        return self._number(self.placement.layers[number])

    def weight(self, layer: int | None, name: str) -> tuple[int, Type]:
        """Return the backend and the type of a weight; most that the tensors do not name are in 32 bits."""
        home, stored = self._found(layer, name)
        if stored is None:
            return self._number(home), F16 if name in _HALVES else F32
        return self._number(home), stored_type(stored.kind)

    def repacked(self, layer: int | None, name: str) -> bool:
        """Whether a weight is on the host in the host's own layout."""
        home, stored = self._found(layer, name)
        if home is not HOST or stored is None or not self.repacks or name == _TABLE:
            return False
        return is_repacked(stored.tensor, stored.kind)

    def _found(self, layer: int | None, name: str) -> tuple[int | None, Weight | None]:
        """Return the place of a weight, and the file's tensor; a tied head is the table's."""
        stored = name if name.endswith((".bias", ".scale")) else f"{name}.weight"
        home = self.placement.output if layer is None else self.placement.layers[layer]
        if layer is not None:
            stored = f"blk.{layer}.{stored}"
        elif stored in INPUT_TENSORS:
            home = HOST
        elif name.startswith(FIRST_LAYER_TENSORS):
            home = self.placement.layers[0]
        elif name == "output" and stored not in self.weights.value:
            stored = f"{_TABLE}.weight"
        return self.placement.of_tensor(stored, home), self.weights.value.get(stored)

    def _number(self, home: int | None) -> int:
        return self.host if home is HOST else self.numbers[home]
