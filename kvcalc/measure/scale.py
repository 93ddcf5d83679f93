"""Cutting a model down so that real shapes run on a small machine, and what a run needs in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from kvcalc.core.errors import InputError
from kvcalc.core.formats import FORMATS
from kvcalc.core.model import Attention, Latent, Mixture, Sliding
from kvcalc.core.model import Chunked as ChunkedAttention
from kvcalc.core.units import bytes_text
from kvcalc.core.workload import Formats
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import head_matrix, weight_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvcalc.core.model import Block, Mixer, Mlp, ModelProfile

__all__ = ["all_in", "check_memory", "fit_layers", "in_groups", "one_of_each", "run_bytes", "with_layers"]

_Cell = TypeVar("_Cell")

# What the loop keeps beside weights and cache: hidden states, scores, torch's own.
_BESIDE = 0.03
_MIN_BESIDE_BYTES = 64 * 2**20

_CHECK_WINDOW = 7
_CHECK_ROWS = 4096
_CHECK_SPARE_EXPERTS = 2


def with_layers(model: ModelProfile, layers: int) -> ModelProfile:
    """Return a model cut to so many layers, its kinds of layer in the shares they have in the whole.

    Raises:
        InputError: more layers than it has, or none.
    """
    if not 1 <= layers <= model.layers:
        raise InputError(f"--layers {layers}: {model.name} has {model.layers}", hint=f"from 1 to {model.layers}")
    if layers == model.layers:
        return model
    wanted = _shares(list(model.block_counts.values()), layers)
    left = dict(zip(model.block_counts, wanted, strict=True))
    kept = []
    for block in model.blocks:
        if left[block]:
            left[block] -= 1
            kept.append(block)
    return replace(model, blocks=tuple(kept), held_weight_bytes=None)


def _shares(counts: Sequence[int], total: int) -> list[int]:
    """Deal out ``total`` by largest remainder, one to each kind first, the most frequent kinds before others.

    >>> _shares([3, 45], 4), _shares([36, 12], 8), _shares([1, 9], 1)
    ([1, 3], [6, 2], [0, 1])
    """
    whole = sum(counts)
    order = sorted(range(len(counts)), key=lambda kind: -counts[kind])
    dealt = [0] * len(counts)
    for kind in order[:total]:
        dealt[kind] = 1
    while sum(dealt) < total:
        short = [counts[kind] * total / whole - dealt[kind] for kind in range(len(counts))]
        dealt[max(order, key=short.__getitem__)] += 1
    return dealt


def run_bytes(model: ModelProfile, formats: Formats, *, batch: int, context: int) -> int:
    """Return the memory that the loop needs at its fullest: weights, cache, scores, logits, and what lies beside them.

    A tied table is held a second time where it is prepacked, and so is, for a moment, the largest matrix.
    """
    cache_size = cache_bytes(model, context, formats)
    head = head_matrix(model)
    rows = 0 if head is None else head.outputs
    copy = 0 if head is None else formats.of("head").bytes(head.elements)
    beside = formats.hidden.bytes(batch * rows) + copy + batch * _scores_bytes(model, formats, context)
    needed = weight_bytes(model, formats) + batch * (cache_size.growing + cache_size.state) + beside
    return int(needed + max(_MIN_BESIDE_BYTES, _BESIDE * needed))


def _scores_bytes(model: ModelProfile, formats: Formats, context: int) -> int:
    """Return the bytes of one token's scores in the layer with most: in fp32, their shares, and those rounded."""
    largest = 0
    for mixer in model.mixers:
        if isinstance(mixer, Attention | Latent):
            span = context if mixer.span is None else min(context, mixer.span)
            largest = max(largest, mixer.heads * span)
    return int(2 * FORMATS["fp32"].bytes(largest) + formats.hidden.bytes(largest))


def fit_layers(model: ModelProfile, formats: Formats, *, batch: int, context: int, memory_bytes: int) -> ModelProfile:
    """Return a model with as many of its layers as fit into a memory.

    Raises:
        InputError: not even one does.
    """
    layers = _most_layers(model, lambda cut: run_bytes(cut, formats, batch=batch, context=context) <= memory_bytes)
    if not layers:
        needed = run_bytes(with_layers(model, 1), formats, batch=batch, context=context)
        raise InputError(
            f"one layer of {model.name} with {batch} x {context:,} tokens needs {bytes_text(needed)}, "
            f"more than {bytes_text(memory_bytes)}",
            hint="give a smaller model, batch or context, or --weights bf16",
        )
    return with_layers(model, layers)


def _most_layers(model: ModelProfile, fits: Callable[[ModelProfile], bool]) -> int:
    low, high = 0, model.layers + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(with_layers(model, middle)) else (low, middle)
    return low


def in_groups(cells: Sequence[_Cell], size_of: Callable[[_Cell], int], room: int) -> Iterator[list[_Cell]]:
    """Yield cells in groups that find room together; one that is too large for it stands alone.

    >>> list(in_groups([3, 4, 9, 1], lambda size: size, 8))
    [[3, 4], [9], [1]]
    """
    group: list[_Cell] = []
    taken = 0
    for cell in cells:
        size = size_of(cell)
        if group and taken + size > room:
            yield group
            group, taken = [], 0
        group.append(cell)
        taken += size
    if group:
        yield group


def all_in(name: str) -> Formats:
    """Return formats that are all the same."""
    format_ = FORMATS[name]
    return Formats(weights=format_, key=format_, value=format_, state=format_, activations=format_, hidden=format_)


def check_memory(
    model: ModelProfile, formats: Formats, *, batch: int, context: int, free_bytes: int, device: str
) -> None:
    """Refuse a run that would not fit, before anything is allocated.

    Raises:
        InputError: it needs more than is free; says how much, and how many layers would fit.
    """
    needed = run_bytes(model, formats, batch=batch, context=context)
    if needed <= free_bytes:
        return
    layers = _most_layers(model, lambda cut: run_bytes(cut, formats, batch=batch, context=context) <= free_bytes)
    room = (
        f"--layers {layers} would fit"
        if layers
        else "not even one layer would fit: give a smaller model, batch or context"
    )
    raise InputError(
        f"{model.name} in {formats.weights.name} with {batch} x {context:,} tokens needs {bytes_text(needed)} "
        f"of memory on {device}, where {bytes_text(free_bytes)} are free",
        hint=room,
    )


def one_of_each(model: ModelProfile) -> ModelProfile:
    """Return a small model with one layer of each kind, for the check of the loop itself.

    Layers keep their shapes; windows are short enough to be left, a mixture has few experts beside those it chooses,
    and there are few rows of logits.
    """
    head, tables = model.head, model.embeddings
    rows = min(_CHECK_ROWS, tables[0].rows)
    return replace(
        model,
        blocks=tuple(
            replace(block, mixers=tuple(map(_short, block.mixers)), mlp=_few(block.mlp)) for block in _kinds(model)
        ),
        embeddings=tuple(replace(table, rows=min(rows, table.rows)) for table in tables),
        head=None if head is None else replace(head, rows=rows),
        held_weight_bytes=None,
    )


def _kinds(model: ModelProfile) -> tuple[Block, ...]:
    return tuple(model.block_counts)


def _short(mixer: Mixer) -> Mixer:
    if isinstance(mixer, Sliding):
        return replace(mixer, window=min(mixer.window, _CHECK_WINDOW))
    if isinstance(mixer, ChunkedAttention):
        return replace(mixer, chunk=min(mixer.chunk, _CHECK_WINDOW))
    return mixer


def _few(mlp: Mlp | None) -> Mlp | None:
    if not isinstance(mlp, Mixture):
        return mlp
    return replace(mlp, experts=min(mlp.experts, mlp.experts_per_token + _CHECK_SPARE_EXPERTS))
