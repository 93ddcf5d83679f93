"""The split of a graph over backends: which one computes each node, and what is copied between them.

Source: llama.cpp commit 0c1e57098bba, ``ggml_backend_sched_split_graph`` (``ggml/src/ggml-backend.cpp``) and the
devices' rule of which operations on host weights they take over (``ggml_backend_cuda_device_offload_op``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.engines.llama_cpp.graphs.tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.engines.llama_cpp.graphs.tensors import Graph

__all__ = ["Backends", "Schedule", "schedule"]

_VIEWS = frozenset({"view", "reshape", "permute", "transpose"})
# Operations that are not put where their weights are, which are too small to decide it.
_FREE = frozenset({"rope", "flash_attn_ext"})
_THIRD = frozenset({"mul_mat_id", "rope"})
# Rows from which on a device takes over an operation on host weights.
_LARGE_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """The backends of a context: the devices in order, then the host.

    Args:
        devices: number of devices.
        op_offload: whether the first device computes large batches of operations on host weights.
        copies: copies kept of each input of a split.
    """

    devices: int
    op_offload: bool = True
    copies: int = 1

    @property
    def host(self) -> int:
        """The host's index: the last."""
        return self.devices


@dataclass(frozen=True, slots=True)
class Schedule:
    """Nodes and leaves in the order they are allocated, each with the backend it is allocated for.

    Args:
        nodes: nodes, the copies that a split reads before its first one.
        leaves: leaves.
        places: place of each of the graph's nodes among the nodes, that of the copies before it where there are some.
    """

    nodes: list[tuple[Tensor, int]]
    leaves: list[tuple[Tensor, int]]
    places: list[int]


def schedule(graph: Graph, backends: Backends) -> Schedule:
    """Split a graph over backends; the sources of its nodes become the copies that they read.

    Source: llama.cpp commit 0c1e57098bba, ``ggml_backend_sched_split_graph``.
    """
    for tensor in (*graph.leaves, *graph.nodes):
        if tensor.backend < 0:  # else it was fixed before
            tensor.backend = _where(tensor, backends)
    computed = [node for node in graph.nodes if node.op not in _VIEWS]
    _expand(computed, skip=backends.host)
    _expand(reversed(computed), skip=backends.host)
    _expand(computed, skip=None)
    _expand(reversed(computed), skip=None)
    for node in graph.nodes:
        if node.backend < 0 and node.root is not None:
            node.backend = node.root.backend
        for source in node.src:
            if source.backend < 0:
                source.backend = node.backend if source.root is None else source.root.backend
    return _Splitter(backends).split(graph)


def _where(tensor: Tensor, backends: Backends) -> int:
    """Return the backend that a tensor's buffer or weights ask for, -1 where nothing does."""
    home = tensor.home if tensor.root is None else tensor.root.home
    if home is not None:
        return home
    if tensor.given:
        return backends.host
    if tensor.op in _FREE:
        return -1
    for source in tensor.src:
        if source.weight and source.home is not None:
            on_host = source.home == backends.host and not source.repacked
            taken_over = on_host and backends.op_offload and backends.devices
            return 0 if taken_over and _batch(tensor) >= _LARGE_BATCH else source.home
    return -1


def _batch(tensor: Tensor) -> int:
    if tensor.op == "get_rows":
        return 0
    if tensor.op == "mul_mat":
        return tensor.ne[1]
    return tensor.ne[2] if tensor.op in _THIRD else tensor.ne[1] * tensor.ne[2] * tensor.ne[3]


def _expand(nodes: Iterable[Tensor], *, skip: int | None) -> None:
    """Give nodes without a backend that of the node before them, unless that is the one to skip."""
    current = -1
    for node in nodes:
        if node.backend >= 0:
            current = -1 if node.backend == skip else node.backend
        elif current >= 0:
            node.backend = current


def _readable(source: Tensor, backend: int) -> bool:
    """Whether a backend reads a tensor where it is."""
    root = source.root
    home = source.home if root is None else root.home
    if home is not None:
        return home == backend
    where = source.backend if source.backend >= 0 or root is None else root.backend
    return where == backend


class _Splitter:
    """Cuts the nodes into splits and lists the copies that each needs."""

    def __init__(self, backends: Backends) -> None:
        self.backends = backends
        self.copies: dict[tuple[int, int], list[Tensor]] = {}
        self.nodes: list[tuple[Tensor, int]] = []
        self.inputs: list[tuple[Tensor, int]] = []
        self.places: list[int] = []

    def split(self, graph: Graph) -> Schedule:
        current, start, inputs = -1, 0, 0
        splits: list[tuple[int, int, int]] = []  # backend, first node, first input
        for at, node in enumerate(graph.nodes):
            if node.op in _VIEWS:
                continue
            if current < 0:
                current = node.backend
            elif node.backend != current or (len(self.inputs) > inputs and self._new_weight(node, current)):
                splits.append((current, start, inputs))
                current, start, inputs = node.backend, at, len(self.inputs)
            self._read(node, current)
        splits.append((current, start, inputs))
        self._order(graph, splits)
        return Schedule(self.nodes, self._leaves(graph), self.places)

    def _new_weight(self, node: Tensor, current: int) -> bool:
        return any(source.weight and current not in (source.backend, source.home) for source in node.src)

    def _read(self, node: Tensor, current: int) -> None:
        for index, source in enumerate(node.src):
            if source.backend == current or _readable(source, current):
                continue
            key = (id(source), current)
            if key not in self.copies:
                self.copies[key] = [self._copy(source) for _ in range(self.backends.copies)]
                self.inputs.append((source, current))
            node.src[index] = self.copies[key][0]

    def _copy(self, source: Tensor) -> Tensor:
        copy = Tensor("none", source.type, source.ne, nb=source.nb)
        copy.given = copy.kept = self.backends.copies > 1
        return copy

    def _order(self, graph: Graph, splits: list[tuple[int, int, int]]) -> None:
        for at, (backend, start, first) in enumerate(splits):
            last = at + 1 == len(splits)
            end, stop = (len(graph.nodes), len(self.inputs)) if last else splits[at + 1][1:]
            begin = len(self.nodes)
            for source, _ in self.inputs[first:stop]:
                # kept until the copy is made: a view that nothing counts as one
                reader = Tensor("none", source.type, source.ne, (source,), nb=source.nb)
                reader.root = source.root or source
                self.nodes.append((reader, source.backend))
                self.nodes.append((self.copies[id(source), backend][0], backend))
            self.places += [begin, *range(len(self.nodes) + 1, len(self.nodes) + end - start)]
            self.nodes += [(node, node.backend) for node in graph.nodes[start:end]]

    def _leaves(self, graph: Graph) -> list[tuple[Tensor, int]]:
        leaves: list[tuple[Tensor, int]] = []
        if self.backends.copies > 1:
            for leaf in graph.leaves:
                if leaf.given:
                    leaves += [(copy, leaf.backend) for copy in self._input_copies(leaf)]
            for source, backend in self.inputs:
                leaves += [(copy, backend) for copy in self.copies[id(source), backend]]
        return leaves + [(leaf, leaf.backend) for leaf in graph.leaves]

    def _input_copies(self, leaf: Tensor) -> list[Tensor]:
        key = (id(leaf), leaf.backend)
        if key not in self.copies:
            leaf.kept = True
            self.copies[key] = [leaf, *[self._copy(leaf) for _ in range(self.backends.copies - 1)]]
        return self.copies[key]
