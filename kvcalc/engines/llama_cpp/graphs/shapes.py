"""The sizes that a graph is built with: the micro-batch, heads, caches, and where weights stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.engines.llama_cpp.graphs.tensors import Tensor, Type

__all__ = ["Attention", "Batch", "Cells", "Homes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The micro-batch that a graph is reserved for.

    Args:
        tokens: tokens of all sequences.
        sequences: sequences, of equally many tokens.
        outputs: tokens whose logits are computed.
        streams: streams of the cache.
        flash: whether attention is fused.
        transposed: whether values are cached transposed, as they are where attention was never to be fused.
        key: type of cached keys.
        value: type of cached values.
    """

    tokens: int
    sequences: int
    outputs: int
    streams: int
    flash: bool
    transposed: bool
    key: Type
    value: Type


@dataclass(frozen=True, slots=True, kw_only=True)
class Homes:
    """Places of weights and caches, and types of weights.

    Args:
        weight: backend and type of a tensor, by its layer (none outside the layers) and its name there.
        cache: backend of a layer's cache and states.
        repacked: whether the host lays out a weight anew for its own kernels, by the same names.
        pinned: backend to which norms of a layer are fixed; none where the scheduler chooses.
    """

    weight: Callable[[int | None, str], tuple[int, Type]]
    cache: Callable[[int], int]
    repacked: Callable[[int | None, str], bool]
    pinned: Callable[[int], int] | None = None


@dataclass(slots=True)
class Cells:
    """A cache of the context: its cells, and the inputs that layers which use it share.

    Args:
        cells: cells of a stream.
        widest: elements of the widest layer's values, to which transposed values are padded.
        windowed: whether it is one of a pair, for layers with and without a window.
        mask: the attention mask; made when a layer needs it, as are the indices and rotations.
    """

    cells: int
    widest: int = 0
    windowed: bool = False
    mask: Tensor | None = None
    key_index: Tensor | None = None
    value_index: Tensor | None = None
    key_rotation: Tensor | None = None
    value_rotation: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Heads of a layer and what its attention does beside the usual.

    Args:
        heads: query heads.
        kv_heads: key-value heads.
        key: width of a query and key head.
        value: width of a value head.
        soft_cap: whether scores are capped before the softmax.
        sinks: whether each head has a learned sink.
    """

    heads: int
    kv_heads: int
    key: int
    value: int
    soft_cap: bool = False
    sinks: bool = False
