"""The graph allocator: which memory each tensor of a split graph takes, and how much of it at the most.

Memory is given to the best fitting free block, the open end last, and is freed after a tensor's last reader; some
operations write over their argument.

Source: llama.cpp commit 0c1e57098bba, ``ggml/src/ggml-alloc.c``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.core.units import ceil_div
from kvcalc.engines.llama_cpp.graphs.tensors import F16

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.engines.llama_cpp.backends import Backend
    from kvcalc.engines.llama_cpp.graphs.scheduler import Schedule
    from kvcalc.engines.llama_cpp.graphs.tensors import Tensor

__all__ = ["Memory", "Requests", "peak_bytes", "requests"]

# Operations that may write over an argument of the same layout.
_IN_PLACE = frozenset({
    "fill", "scale", "add", "add_id", "sub", "mul", "div", "sqr", "sqrt", "log", "unary", "rope", "rms_norm", "clamp",
    "soft_max",
})  # fmt: skip
_OPEN = 2**62
# Tokens up to which CUDA's attention reads a cache of any type, and the alignment of what it is turned into.
_FEW_TOKENS, _HALVES_ALIGNMENT = 2, 128


class Memory:
    """Free blocks of one buffer, by address; the last one is open-ended.

    Args:
        alignment: bytes that sizes are rounded up to.

    >>> memory = Memory(32)
    >>> first, second = memory.take(100), memory.take(64)
    >>> memory.free(first, 100)
    >>> memory.take(32), memory.take(96), memory.peak
    (0, 32, 192)
    """

    def __init__(self, alignment: int) -> None:
        self.mask = alignment - 1
        self.blocks: list[list[int]] = [[0, _OPEN]]
        self.peak = 0

    def take(self, size: int) -> int:
        """Return the address of memory of that size: the smallest free block that holds it, the last of equal ones."""
        size = (size + self.mask) & ~self.mask
        blocks = self.blocks
        best, best_size = len(blocks) - 1, _OPEN
        for at in range(len(blocks) - 1):
            free = blocks[at][1]
            if size <= free <= best_size:
                best, best_size = at, free
        block = blocks[best]
        address = block[0]
        block[0] += size
        block[1] -= size
        if block[1] == 0:
            del blocks[best]
        self.peak = max(self.peak, address + size)
        return address

    def free(self, address: int, size: int) -> None:
        """Give memory back; blocks that touch become one."""
        size = (size + self.mask) & ~self.mask
        blocks, end = self.blocks, address + size
        for at, block in enumerate(blocks):
            if block[0] + block[1] == address:
                block[1] += size
                if at + 1 < len(blocks) and block[0] + block[1] == blocks[at + 1][0]:
                    block[1] += blocks[at + 1][1]
                    del blocks[at + 1]
                return
            if end == block[0]:
                block[0], block[1] = address, block[1] + size
                return
        # blocks of no size, of tensors of none, may stand out of order: the first one behind counts
        index = next((at for at, block in enumerate(blocks) if block[0] >= address), len(blocks))
        blocks.insert(index, [address, size])


@dataclass(slots=True)
class Requests:
    """Requests of a schedule to the allocator.

    Args:
        events: n to take memory for tensor n > 0, -n to give it back.
        sizes: backend and bytes of each tensor, by its number; the first stands for none.
        begins: place in ``events`` where each node's requests begin, by the node's place in the schedule.
    """

    events: list[int]
    sizes: list[tuple[int, int]]
    begins: list[int]


def requests(plan: Schedule, *, backends: Sequence[Backend]) -> Requests:
    """Return the requests of a schedule to the allocator, in order.

    Source: llama.cpp commit 0c1e57098bba, ``ggml_gallocr_alloc_graph_impl``.

    Args:
        plan: nodes and leaves, not allocated yet.
        backends: the back ends by number, the host's last.
    """
    run = _Run(backends)
    for leaf, backend in plan.leaves:
        run.allocate(leaf, backend)
    for node, backend in plan.nodes:
        if node.root is not None and node.op != "none":
            node.root.views += 1
        if node.given:
            run.allocate(node, backend)
        for source in node.src:
            source.children += 1
            if source.given:
                run.allocate(source, backend)
    asked = run.asked
    for node, backend in plan.nodes:
        asked.begins.append(len(asked.events))
        for source in node.src:
            run.allocate(source, backend)
        run.allocate(node, backend)
        for source in node.src:
            run.read(source)
    return asked


def peak_bytes(events: Iterable[int], sizes: Sequence[tuple[int, int]], *, alignments: Sequence[int]) -> list[int]:
    """Return the most memory that events take of each backend; the last one is the host.

    Args:
        events: as `Requests` has them.
        sizes: likewise.
        alignments: bytes that sizes are rounded up to on each backend.

    >>> peak_bytes([1, 2, -1, 3], [(0, 0), (0, 64), (0, 32), (0, 96)], alignments=[32])
    [192]
    """
    memories = [Memory(alignment) for alignment in alignments]
    addresses = [0] * len(sizes)
    for event in events:
        if event > 0:
            backend, size = sizes[event]
            addresses[event] = memories[backend].take(size)
        else:
            backend, size = sizes[-event]
            memories[backend].free(addresses[-event], size)
    return [memory.peak for memory in memories]


class _Run:
    """One pass over a schedule."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = backends
        self.asked = Requests([], [(0, 0)], [])

    def allocate(self, tensor: Tensor, backend: int) -> None:
        """Take memory for a tensor unless it has some; over an argument where that is allowed."""
        if tensor.number or tensor.root is not None or tensor.home is not None:
            return
        if tensor.op in _IN_PLACE:
            for source in tensor.src:
                if _may_reuse(tensor, source):
                    tensor.number, source.number = source.number, 0
                    return
        asked = self.asked
        tensor.number = len(asked.sizes)
        asked.sizes.append((backend, self._size(tensor, backend)))
        asked.events.append(tensor.number)

    def _size(self, tensor: Tensor, number: int) -> int:
        size, type_, backend = tensor.bytes, tensor.type, self.backends[number]
        if tensor.op == "flash_attn_ext" and backend.halves_cache:
            return _with_halves(tensor, size)
        beyond = tensor.ne[0] % backend.row
        if type_.block > 1 and beyond:
            size += type_.row(backend.row - beyond)
        return size

    def read(self, source: Tensor) -> None:
        """Count one reader less of a tensor, and give back what nobody reads any more."""
        source.children -= 1
        if source.children or source.views:
            return
        root = source.root
        if root is not None:
            root.views -= 1
            if root.views or root.children:
                return
            source = root
        if source.number and not source.kept:
            self.asked.events.append(-source.number)
            source.number = 0


def _with_halves(tensor: Tensor, size: int) -> int:
    """Return the bytes of fused attention's result with keys and values in 16 bits behind it.

    Source: llama.cpp commit 0c1e57098bba, ``ggml_cuda_flash_attn_ext_get_alloc_size``.
    """
    query, key, value = tensor.src[:3]
    if query.ne[1] <= _FEW_TOKENS:
        return size
    shared = value.root is not None and value.root is key.root
    for cached in (key,) if shared else (key, value):
        if cached.type.name != F16.name:
            size = ceil_div(size, _HALVES_ALIGNMENT) * _HALVES_ALIGNMENT + cached.elements * F16.size
    return size


def _may_reuse(tensor: Tensor, source: Tensor) -> bool:
    return (
        source.number > 0
        and not source.kept
        and source.children == 1
        and not source.views
        and source.ne == tensor.ne
        and source.nb == tensor.nb
        and source.type == tensor.type
    )
