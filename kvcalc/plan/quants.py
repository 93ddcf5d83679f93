"""A model's file by every recipe of llama.cpp: how large, and which of them a memory holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.reports.catalogue import QuantRow, QuantsReport
from kvcalc.core.search import largest
from kvcalc.core.units import bytes_text
from kvcalc.engines.llama_cpp import LlamaCppOptions, layout
from kvcalc.engines.llama_cpp.backends import MEMORY
from kvcalc.engines.llama_cpp.compute import compute_bytes
from kvcalc.engines.llama_cpp.devices import place_context
from kvcalc.engines.llama_cpp.placement import PlacementOptions, place
from kvcalc.engines.llama_cpp.quantised import quantised_file
from kvcalc.engines.llama_cpp.recipes import RECIPES
from kvcalc.engines.llama_cpp.weights import all_layers, model_weights, place_weights
from kvcalc.plan.contexts import check_context, default_context

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.llama_cpp.quantised import QuantisedFile

__all__ = ["quants_report"]

# Beyond what any model was made for; reached where the cache does not grow.
_LONGEST = 2**24
# Cells that a cache grows by.
_CELLS = 256


def quants_report(
    model: ModelProfile, *, memory_bytes: int | None = None, context: int | None = None, imatrix: bool = False
) -> QuantsReport:
    """Return the bytes of a model's file by every recipe, and what a memory holds beside it.

    Args:
        model: the model; what stands in a file of its own, as towers for images do, is left out.
        memory_bytes: a memory that weights and cache share.
        context: tokens of one sequence, whose cache is in 16 bits; the usual default where left out.
        imatrix: whether the files are made with an importance matrix.

    Raises:
        InputError: less than one token.
        UnsupportedError: a model whose tensors, or whose cache with a memory, are not known.
    """
    model = model.text_only("a file of its own")
    tokens = default_context(model) if context is None else context
    notes = check_context(model, tokens)
    files = {recipe: quantised_file(model, recipe, imatrix=imatrix) for recipe in RECIPES}
    device = None if memory_bytes is None else _Device(model, memory_bytes, imatrix=imatrix)
    rows = [_row(recipe, file, device, tokens=tokens, limit=model.context_limit) for recipe, file in files.items()]
    if device is not None:
        buffers = device.buffer(tokens)
        buffer_text = (
            f"compute buffers of {bytes_text(buffers)}" if buffers else "no compute buffers, which are not described"
        )
        notes += (
            f"all on one device, as kvcalc fit --device has it: cache, {buffer_text}, the token table on the host",
        )
    return QuantsReport(
        model=model.name,
        context=tokens,
        memory_bytes=memory_bytes,
        rows=tuple(sorted(rows, key=lambda row: -row.total_bytes)),
        notes=(*notes, *model.notes),
    )


class _Device:
    """A memory that holds a whole model, as ``fit --device`` counts it: table on the host, compute buffers beside.

    Args:
        model: the model.
        memory_bytes: the memory.
        imatrix: whether files are made with an importance matrix.
    """

    def __init__(self, model: ModelProfile, memory_bytes: int, *, imatrix: bool) -> None:
        self.model, self.memory_bytes, self.imatrix = model, memory_bytes, imatrix
        self.placement = place(PlacementOptions(), layers=all_layers(model), free_bytes=[memory_bytes])
        # buffers of a model that is on one device as a whole are those of any recipe
        self.any_weights = model_weights(model, next(iter(RECIPES)), imatrix=imatrix)
        self.buffers: dict[int, int] = {}

    def left(self, recipe: str) -> int:
        """Return the bytes that weights by a recipe leave."""
        weights = model_weights(self.model, recipe, imatrix=self.imatrix)
        return self.memory_bytes - (place_weights(self.model, weights, self.placement, [MEMORY]).by_place[0] or 0)

    def cache(self, tokens: int) -> int:
        """Return the bytes of the cache of one sequence of so many tokens."""
        return place_context(layout(self.model, LlamaCppOptions(context=tokens)), self.placement, [MEMORY])[0]

    def buffer(self, tokens: int) -> int:
        """Return the bytes of compute buffers for one sequence of so many tokens; none where they are not described."""
        tokens = max(1, tokens)
        if tokens not in self.buffers:
            options = LlamaCppOptions(context=tokens)
            try:
                size = compute_bytes(
                    self.model, self.placement, options, weights=self.any_weights, backends=[MEMORY]
                ).devices[0]
            except UnsupportedError:
                size = 0
            self.buffers[tokens] = size
        return self.buffers[tokens]

    def holds(self, left: int, tokens: int) -> bool:
        """Whether what weights leave holds cache and buffers of so many tokens."""
        return self.cache(tokens) + self.buffer(tokens) <= left

    def longest(self, left: int, limit: int) -> int:
        """Return the most tokens of one sequence, in steps of the cache's cells where it is less than the limit.

        Buffers are replayed for few lengths: the search takes them as linear, and its end is looked at again.
        """
        if left <= 0 or not self.holds(left, min(_CELLS, limit)):
            return 0
        if self.holds(left, limit):
            return limit
        smallest, largest_buffer = self.buffer(1), self.buffer(limit)

        def nearly(tokens: int) -> bool:
            return self.cache(tokens) + smallest + (largest_buffer - smallest) * tokens // limit <= left

        tokens_held = largest(nearly, limit)
        tokens_held = max(_CELLS, tokens_held - tokens_held % _CELLS)
        while tokens_held > _CELLS and not self.holds(left, tokens_held):
            tokens_held -= _CELLS
        while tokens_held + _CELLS < limit and self.holds(left, tokens_held + _CELLS):
            tokens_held += _CELLS
        return tokens_held


def _row(recipe: str, file: QuantisedFile, device: _Device | None, *, tokens: int, limit: int | None) -> QuantRow:
    fits, longest = None, None
    if device is not None:
        left = device.left(recipe)
        fits = device.holds(left, tokens)
        longest = device.longest(left, limit or _LONGEST)
    return QuantRow(
        recipe=recipe,
        total_bytes=file.total_bytes,
        bits_per_weight=file.bits_per_weight,
        mixture=file.mixture,
        needs_imatrix=file.needs_imatrix,
        fits=fits,
        max_context=longest,
    )
