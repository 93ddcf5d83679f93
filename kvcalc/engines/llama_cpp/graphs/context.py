"""The pieces that llama.cpp's architectures build their graphs from: inputs, norms, projections, attention, MLPs.

Source: llama.cpp commit 0c1e57098bba, ``src/llama-graph.cpp`` and ``src/llama-kv-cache.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.engines.llama_cpp.graphs.tensors import F16, F32, I32, I64, Graph, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.engines.llama_cpp.graphs.shapes import Attention, Batch, Cells, Homes
    from kvcalc.engines.llama_cpp.graphs.tensors import Type

__all__ = ["Context"]

# Rotation of keys and values before they are quantised: sizes are powers of 2 from here.
_ROTATION = 64


class Context(Graph):
    """A graph being built: the batch, the places of weights, and the layer that is built at the moment."""

    def __init__(self, batch: Batch, homes: Homes, *, hidden: int) -> None:
        super().__init__()
        self.batch = batch
        self.homes = homes
        self.hidden = hidden
        self.tokens = batch.tokens
        self.layer = 0
        self.shared: dict[int, Tensor] = {}
        self.weights: dict[tuple[int | None, str], Tensor] = {}
        self.positions: Tensor | None = None
        self.embedded: Tensor | None = None
        self.temperatures: Tensor | None = None
        self.outputs = self.given(I32, batch.outputs)

    # leaves

    def given(self, type_: Type, *ne: int) -> Tensor:
        """Return an input of the graph."""
        first, second, third, fourth = (*ne, 1, 1, 1)[:4]
        tensor = Tensor("none", type_, (first, second, third, fourth))
        tensor.given = True
        return tensor

    def weight(self, name: str, *ne: int, outside: bool = False) -> Tensor:
        """Return a weight of the current layer, or one outside the layers."""
        key = (None if outside else self.layer, name)
        if key in self.weights:
            return self.weights[key]
        home, type_ = self.homes.weight(*key)
        first, second, third, fourth = (*ne, 1, 1, 1)[:4]
        tensor = self.weights[key] = Tensor("none", type_, (first, second, third, fourth))
        tensor.home, tensor.weight = home, True
        tensor.repacked = self.homes.repacked(*key)
        return tensor

    def stored(self, type_: Type, *ne: int) -> Tensor:
        """Return a cache or a state of the current layer."""
        first, second, third, fourth = (*ne, 1, 1, 1)[:4]
        tensor = Tensor("none", type_, (first, second, third, fourth))
        tensor.home = self.homes.cache(self.layer)
        return tensor

    def position(self, per_token: int = 1) -> Tensor:
        """Return the positions of the batch's tokens."""
        if self.positions is None:
            self.positions = self.given(I32, self.tokens * per_token)
        return self.positions

    def temperature(self) -> Tensor:
        """Return an input of one number a token, by which queries are scaled (Llama 4)."""
        if self.temperatures is None:
            self.temperatures = self.given(F32, 1, 1, self.tokens)
        return self.temperatures

    def embedding(self, vocabulary: int, width: int) -> Tensor:
        """Return the embedded tokens; the input for vectors in their place is allocated too (``build_inp_embd``)."""
        table = self.weight("token_embd", self.hidden, vocabulary, outside=True)
        current = self.rows(table, self.given(I32, self.tokens))
        if width != self.hidden:
            current = Tensor("pad", F32, (width, self.tokens, 1, 1), (current,))
        self.expand(current)
        self.expand(self.given(F32, width, self.tokens))
        self.embedded = current
        if width != self.hidden:
            current = self.view(current, (self.hidden, self.tokens), (4, current.nb[1]))
            self.expand(current)
        return current

    # norms and projections

    def norm(self, current: Tensor, name: str = "", *, kind: str = "rms_norm", bias: bool = False) -> Tensor:
        """Return a norm, scaled where it has a name and shifted where it has a bias (``build_norm``)."""
        outside = name == "output_norm"
        width = current.ne[0]
        current = self.like(kind, current)
        if name and not outside and self.homes.pinned is not None:
            current.backend = self.homes.pinned(self.layer)
        if name:
            current = self.like("mul", current, self.weight(name, width, outside=outside))
        if bias:
            current = self.like("add", current, self.weight(f"{name}.bias", width, outside=outside))
        return current

    def linear(self, name: str, current: Tensor, width: int, *, bias: bool = False) -> Tensor:
        """Return a projection of a layer, with its bias."""
        result = self.matmul(self.weight(name, current.ne[0], width), current)
        return self.like("add", result, self.weight(f"{name}.bias", width)) if bias else result

    def rope(self, current: Tensor, *, factors: int = 0, per_token: int = 1) -> Tensor:
        """Return rotated heads; with factors they are a weight of half the rotated width."""
        scale = self._factors(factors) if factors else None
        return self.like("rope", current, self.position(per_token), scale)

    def _factors(self, count: int) -> Tensor:
        """Return the rotary factors, of which all layers in one place share a copy."""
        home, _ = self.homes.weight(self.layer, "rope_freqs")
        factors = self.weight("rope_freqs", count)
        return self.shared.setdefault(home, factors)

    def heads(self, current: Tensor, width: int, count: int) -> Tensor:
        """Return a projection as heads."""
        return self.reshape(current, width, count, self.tokens)

    def unary(self, current: Tensor) -> Tensor:
        """Return an activation of one argument."""
        return self.like("unary", current)

    # MLPs

    def ffn(self, current: Tensor, width: int, kind: str, *, suffix: str = "", bias: bool = False) -> Tensor:
        """Return an MLP (``build_ffn``).

        Args:
            current: its input.
            width: its inner width.
            kind: ``gated`` for gate and up, ``fused`` for both in one matrix, ``plain`` for up and an activation,
                ``squared`` for up and a squared one.
            suffix: end of its weights' names.
            bias: whether its projections have biases.
        """
        hidden = current.ne[0]
        up = self.linear(f"ffn_up{suffix}", current, 2 * width if kind == "fused" else width, bias=bias)
        if kind == "gated":
            current = self.gated(self.linear(f"ffn_gate{suffix}", current, width), up)
        elif kind == "fused":
            current = self.gated(up)
        else:
            current = self.unary(up)
            if kind == "squared":
                current = self.like("sqr", current)
        return self.linear(f"ffn_down{suffix}", current, hidden, bias=bias)

    # attention over a cache

    def cached(self, cells: Cells, shape: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return attention of a query over the cache, after the new keys and values were stored in it."""
        if turn := self._key_rotation(cells, shape):
            query, key = self._turned(query, turn), self._turned(key, turn)
        back = self._value_rotation(cells, shape)
        if back:
            value = self._turned(value, back)
        for tensor in (query, key, value) if cells.windowed else (query, value, key):
            self.expand(tensor)
        keys, values = self._store(cells, shape, key, value)
        current = self.attend(shape, query, keys, values, self.mask(cells))
        return self._turned(current, back) if back else current

    def reread(self, cells: Cells, shape: Attention, query: Tensor, *, source: int) -> Tensor:
        """Return attention of a query over the cache of another layer."""
        if turn := self._key_rotation(cells, shape):
            query = self._turned(query, turn)
        back = self._value_rotation(cells, shape)
        self.expand(query)
        layer, self.layer = self.layer, source
        keys = self.stored(self.batch.key, shape.key * shape.kv_heads, cells.cells, self.batch.streams)
        values = self._values(cells, shape)
        self.layer = layer
        view = self._transposed if self.batch.transposed else self._heads_of
        read = view(values, shape.value, shape.kv_heads)
        current = self.attend(shape, query, self._heads_of(keys, shape.key, shape.kv_heads), read, self.mask(cells))
        return self._turned(current, back) if back else current

    def mask(self, cells: Cells) -> Tensor:
        """Return the mask over a cache's cells."""
        if cells.mask is None:
            streams = self.batch.streams
            kind = F16 if self.batch.flash else F32
            cells.mask = self.given(kind, cells.cells, self.tokens // streams, 1, streams)
        return cells.mask

    def attend(
        self,
        shape: Attention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        values_up: Tensor | None = None,
    ) -> Tensor:
        """Return attention, fused or in steps (``build_attn_mha``); with ``values_up`` values are projected after."""
        streams, ne, nb = key.ne[3], query.ne, query.nb
        each = ne[2] // streams
        query = self.view(query, (ne[0], ne[1], each, streams), (nb[0], nb[1], nb[2], nb[2] * each))
        turned = value.nb[1] > value.nb[2]
        query, key, value = (self.permute(tensor, 0, 2, 1, 3) for tensor in (query, key, value))
        sinks = self.weight("attn_sinks", shape.heads) if shape.sinks else None
        if self.batch.flash:
            key, value = (self.cast(tensor, F16) if tensor.type is F32 else tensor for tensor in (key, value))
            current = self.attention(query, key, value, mask, sinks)
            if values_up is not None:
                current = self.matmul(values_up, self.permute(current, 0, 2, 1, 3))
                current = self.cont(self.permute(current, 0, 2, 1, 3))
            ne = current.ne
            current = self.reshape(current, ne[0] * ne[1], ne[2] * ne[3])
        else:
            scores = self.matmul(key, query)
            if shape.soft_cap:
                scores = self.like("scale", self.unary(self.like("scale", scores)))
            scores = self.like("soft_max", scores, mask, sinks)
            if not turned:
                value = self.cont(self.transpose(value))
            current = self.matmul(value, scores)
            if values_up is not None:
                current = self.matmul(values_up, current)
            current = self.permute(current, 0, 2, 1, 3)
            ne = current.ne
            current = self.cont(current, ne[0] * ne[1], ne[2] * ne[3])
        return self.expand(current)

    def store_keys(self, cells: Cells, key: Tensor, type_: Type) -> Tensor:
        """Store keys in the current layer's cache, and return the view of all that is there."""
        width, heads = key.ne[0], key.ne[1]
        keys = self.stored(type_, width * heads, cells.cells, self.batch.streams)
        if cells.key_index is None:
            cells.key_index = self.given(I64, self.tokens)
        flat = self.view(key, (width * heads, self.tokens), (4, key.nb[2]))
        self.expand(self.store(self._merged(keys), flat, cells.key_index))
        return self._heads_of(keys, width, heads)

    def _values(self, cells: Cells, shape: Attention) -> Tensor:
        """Return the current layer's cached values; transposed ones are as wide as the widest of any layer."""
        width = shape.kv_heads * shape.value
        stored = max(width, cells.widest) if self.batch.transposed else width
        return self.stored(self.batch.value, stored, cells.cells, self.batch.streams)

    def _store(self, cells: Cells, shape: Attention, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys = self.store_keys(cells, key, self.batch.key)
        values, width = self._values(cells, shape), shape.kv_heads * shape.value
        stored = values.ne[0]
        if cells.value_index is None:
            cells.value_index = self.given(I64, self.tokens * (stored if self.batch.transposed else 1))
        if not self.batch.transposed:
            flat = self.view(value, (width, self.tokens), (4, value.nb[2]))
            self.expand(self.store(self._merged(values), flat, cells.value_index))
            return keys, self._heads_of(values, shape.value, shape.kv_heads)
        whole = value.nb[2] == 4 * width
        flat = self.reshape(value, width, self.tokens) if whole else self.cont(value, width, self.tokens)
        if width < stored:
            flat = Tensor("pad", F32, (stored, self.tokens, 1, 1), (flat,))
        single = self.reshape(values, 1, values.elements)
        self.expand(self.store(single, self.reshape(flat, 1, flat.elements), cells.value_index))
        return keys, self._transposed(values, shape.value, shape.kv_heads)

    def _transposed(self, values: Tensor, width: int, heads: int) -> Tensor:
        """Return transposed values as heads."""
        stored, cells, streams = values.ne[:3]
        row = values.type.row(cells)
        strides = (values.type.size, row * width, row, row * stored)
        return self.view(values, (cells, heads, width, streams), strides)

    def _merged(self, cache: Tensor) -> Tensor:
        if cache.ne[2] == 1:
            return cache
        return self.reshape(cache, cache.ne[0], cache.ne[1] * cache.ne[2])

    def _heads_of(self, cache: Tensor, width: int, heads: int) -> Tensor:
        row = cache.type.row
        strides = (cache.type.size, row(width), row(cache.ne[0]), row(cache.ne[0] * cache.ne[1]))
        return self.view(cache, (width, heads, cache.ne[1], cache.ne[2]), strides)

    def _key_rotation(self, cells: Cells, shape: Attention) -> Tensor | None:
        if self.batch.key.block == 1 or shape.key % _ROTATION:
            return None
        if cells.key_rotation is None:
            size = 2 * _ROTATION
            while shape.key % size == 0:
                size *= 2
            cells.key_rotation = self.given(F32, size // 2, size // 2)
        return cells.key_rotation

    def _value_rotation(self, cells: Cells, shape: Attention) -> Tensor | None:
        if self.batch.value.block == 1 or shape.value % _ROTATION:
            return None
        if cells.value_rotation is None:
            cells.value_rotation = self.given(F32, _ROTATION, _ROTATION)
        return cells.value_rotation

    def _turned(self, current: Tensor, rotation: Tensor) -> Tensor:
        """Return heads multiplied with a rotation (``llama_mul_mat_hadamard``)."""
        size, ne = rotation.ne[0], current.ne
        flat = (size, current.elements // size)
        packed = current.nb == Tensor("none", current.type, ne).nb
        source = self.reshape(current, *flat) if packed else self.cont(current, *flat)
        return self.reshape(self.matmul(rotation, source), *ne)

    # recurrent states

    def states(self, state: Tensor, copies: tuple[Tensor, Tensor], read: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return the states of the batch's sequences (``build_rs``).

        Args:
            state: the layer's states, one row a sequence.
            copies: places of the states that are read, and of those that only move.
            read: the operation that reads rows at places.
        """
        size = state.ne[0]
        rows = self.reshape(state, size, state.ne[1])
        cleared = self.view(rows, (size,))
        zero = Tensor("scale", F32, cleared.ne, (cleared,))
        zero.root = state
        self.expand(zero)
        result = self.expand(read(rows, copies[0]))
        moved = self.rows(rows, copies[1])
        self.expand(self.copy(moved, self.view(state, (size, moved.ne[1]), (4, state.nb[1]))))
        return result
