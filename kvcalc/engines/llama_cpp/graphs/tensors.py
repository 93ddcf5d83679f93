"""Tensors of a compute graph and the operations on them: shapes, strides and views, no values.

Source: llama.cpp commit 0c1e57098bba, ``ggml/src/ggml.c``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["F16", "F32", "I32", "I64", "Graph", "Shape", "Tensor", "Type"]

Shape = tuple[int, int, int, int]


class Type(NamedTuple):
    """Type of a tensor's elements.

    Args:
        name: its name.
        block: elements that are stored together.
        size: bytes of a block.
    """

    name: str
    block: int
    size: int

    def row(self, elements: int) -> int:
        """Return the bytes of a row.

        >>> Type("q8_0", 32, 34).row(64)
        68
        """
        return elements // self.block * self.size


F32, F16 = Type("fp32", 1, 4), Type("fp16", 1, 2)
I32, I64 = Type("int32", 1, 4), Type("int64", 1, 8)


class Tensor:
    """A tensor of the graph.

    Args:
        op: the operation that computes it; ``none`` for what is there before.
        ne: elements of each dimension, the row first.
        nb: bytes from one element of a dimension to the next.
        type: type of its elements.
        src: tensors it is computed from.
        root: the tensor whose memory it is a view of.
        home: backend in whose buffer it stands already (weights, caches); none where the allocator places it.
        weight: whether it is a weight: operations with weights run where these are.
        repacked: whether it is a weight in the host's own layout, which only the host computes with.
        given: whether it is an input of the graph.
        kept: whether it is an output, whose memory is never reused.
    """

    __slots__ = (
        "backend", "children", "given", "home", "kept", "nb", "ne", "number", "op", "repacked", "root", "seen", "src",
        "type", "views", "weight",
    )  # fmt: skip

    def __init__(
        self, op: str, type_: Type, ne: Shape, src: tuple[Tensor, ...] = (), *, nb: Shape | None = None
    ) -> None:
        self.op = op
        self.type = type_
        self.ne = ne
        if nb is None:
            row = type_.row(ne[0])
            plane = row * ne[1]
            nb = (type_.size, row, plane, plane * ne[2])
        self.nb: Shape = nb
        self.src: list[Tensor] = list(src)
        self.root: Tensor | None = None
        self.home: int | None = None
        self.weight = self.repacked = self.given = self.kept = self.seen = False
        self.backend = -1
        self.children = self.views = self.number = 0

    @property
    def elements(self) -> int:
        """Elements of all dimensions."""
        first, second, third, fourth = self.ne
        return first * second * third * fourth

    @property
    def bytes(self) -> int:
        """Bytes from its first element to its last."""
        ne, nb, block = self.ne, self.nb, self.type.block
        if 0 in ne:
            return 0
        size = self.type.size + (ne[0] - 1) * nb[0] if block == 1 else ne[0] * nb[0] // block
        return size + (ne[1] - 1) * nb[1] + (ne[2] - 1) * nb[2] + (ne[3] - 1) * nb[3]


class Graph:
    """A graph in the order in which it is computed: ``expand`` adds a tensor behind everything it needs.

    Args:
        nodes: computed tensors and views, in order.
        leaves: inputs, weights and caches, in the order they are first needed.
        begins: nodes that were there when each layer was begun.
    """

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self.begins: dict[int, int] = {}

    def expand(self, tensor: Tensor) -> Tensor:
        """Add a tensor and what it is computed from (``ggml_build_forward_expand``), and return it."""
        if not tensor.seen:
            tensor.seen = True
            for source in tensor.src:
                if not source.seen:
                    self.expand(source)
            (self.leaves if tensor.op == "none" else self.nodes).append(tensor)
        return tensor

    # what computes: one new tensor each

    def like(self, op: str, first: Tensor, *rest: Tensor | None) -> Tensor:
        """Return the result of an operation that has the shape of its first argument, laid out without gaps."""
        return Tensor(op, first.type, first.ne, (first, *[tensor for tensor in rest if tensor is not None]))

    def matmul(self, weight: Tensor, inputs: Tensor) -> Tensor:
        """Return a matrix product (``ggml_mul_mat``): rows of both are multiplied."""
        ne = (weight.ne[1], inputs.ne[1], inputs.ne[2], inputs.ne[3])
        return Tensor("mul_mat", F32, ne, (weight, inputs))

    def expert_matmul(self, weight: Tensor, inputs: Tensor, chosen: Tensor) -> Tensor:
        """Return the products with the matrices of the chosen experts (``ggml_mul_mat_id``)."""
        ne = (weight.ne[1], chosen.ne[0], inputs.ne[2], 1)
        return Tensor("mul_mat_id", F32, ne, (weight, inputs, chosen))

    def rows(self, table: Tensor, index: Tensor) -> Tensor:
        """Return rows of a table (``ggml_get_rows``)."""
        type_ = I32 if table.type is I32 else F32
        ne = (table.ne[0], index.ne[0], index.ne[1], index.ne[2])
        return Tensor("get_rows", type_, ne, (table, index))

    def store(self, table: Tensor, rows: Tensor, index: Tensor) -> Tensor:
        """Return a table after rows were written to it (``ggml_set_rows``): a view of the table."""
        result = Tensor("set_rows", table.type, table.ne, (rows, index, table), nb=table.nb)
        result.root = table.root or table
        return result

    def copy(self, source: Tensor, target: Tensor) -> Tensor:
        """Return a target after a source was copied into it (``ggml_cpy``)."""
        result = Tensor("cpy", target.type, target.ne, (source, target), nb=target.nb)
        result.root = target.root or target
        return result

    def cast(self, source: Tensor, type_: Type) -> Tensor:
        """Return a copy in another type (``ggml_cast``), which names itself among its sources."""
        result = Tensor("cpy", type_, source.ne, (source,))
        result.src.append(result)
        return result

    def cont(self, source: Tensor, *ne: int) -> Tensor:
        """Return a copy without gaps (``ggml_cont``), reshaped where a shape is given."""
        return Tensor("cont", source.type, _shape(ne) if ne else source.ne, (source,))

    def concat(self, first: Tensor, second: Tensor, dim: int) -> Tensor:
        """Return two tensors one behind the other along a dimension (``ggml_concat``)."""
        ne = tuple(size + (second.ne[at] if at == dim else 0) for at, size in enumerate(first.ne))
        return Tensor("concat", first.type, _shape(ne), (first, second))

    def gated(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """Return a gated activation (``ggml_glu``) of two tensors, or of the halves of one."""
        if up is not None:
            return Tensor("glu", gate.type, gate.ne, (gate, up))
        return Tensor("glu", gate.type, (gate.ne[0] // 2, *gate.ne[1:]), (gate,))

    def sum_rows(self, source: Tensor) -> Tensor:
        """Return the sum of each row (``ggml_sum_rows``)."""
        return Tensor("sum_rows", source.type, (1, *source.ne[1:]), (source,))

    def top(self, source: Tensor, count: int) -> Tensor:
        """Return the places of the largest of each row: a view of all places in order (``ggml_argsort_top_k``)."""
        order = Tensor("argsort", I32, source.ne, (source,))
        return self.view(order, (count, *order.ne[1:]), order.nb)

    def repeat(self, source: Tensor, *ne: int) -> Tensor:
        """Return copies of a tensor side by side (``ggml_repeat_4d``)."""
        return Tensor("repeat", source.type, _shape(ne), (source,))

    def attention(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, sinks: Tensor | None) -> Tensor:
        """Return fused attention (``ggml_flash_attn_ext``)."""
        ne = (value.ne[0], query.ne[2], query.ne[1], query.ne[3])
        sources = (query, key, value, mask) if sinks is None else (query, key, value, mask, sinks)
        return Tensor("flash_attn_ext", F32, ne, sources)

    # views: no memory of their own

    def view(self, source: Tensor, ne: Iterable[int], nb: Iterable[int] = (), *, op: str = "view") -> Tensor:
        """Return a view of another shape and stride (``ggml_view``); strides left out go on from those given."""
        shape = _shape(tuple(ne))
        row = source.type.size
        strides = [row, *list(nb)[1:]] if nb else [row]
        while len(strides) < len(shape):
            last = len(strides) - 1
            strides.append(source.type.row(shape[0]) if last == 0 else strides[last] * shape[last])
        first, second, third, fourth = strides
        result = Tensor(op, source.type, shape, (source,), nb=(first, second, third, fourth))
        result.root = source.root or source
        return result

    def reshape(self, source: Tensor, *ne: int) -> Tensor:
        """Return the same elements in another shape (``ggml_reshape``)."""
        result = Tensor("reshape", source.type, _shape(ne), (source,))
        result.root = source.root or source
        return result

    def permute(self, source: Tensor, *axes: int) -> Tensor:
        """Return the dimensions in another order (``ggml_permute``): ``axes[i]`` is the new place of dimension i."""
        ne, nb = [0] * 4, [0] * 4
        for old, new in enumerate(axes):
            ne[new], nb[new] = source.ne[old], source.nb[old]
        result = Tensor("permute", source.type, _shape(tuple(ne)), (source,), nb=_shape(tuple(nb)))
        result.root = source.root or source
        return result

    def transpose(self, source: Tensor) -> Tensor:
        """Return rows and columns exchanged (``ggml_transpose``)."""
        return self.permute(source, 1, 0, 2, 3)


def _shape(sizes: tuple[int, ...]) -> Shape:
    first, second, third, fourth = (*sizes, 1, 1, 1)[:4]
    return first, second, third, fourth
