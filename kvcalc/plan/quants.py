"""A model's file by every recipe of llama.cpp: how large, and which of them a memory holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.reports.quants import QuantRow, QuantsReport
from kvcalc.core.search import largest
from kvcalc.engines.llama_cpp.quantised import quantised_file
from kvcalc.engines.llama_cpp.recipes import RECIPES
from kvcalc.plan.deployment import check_context, default_context, deploy

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.llama_cpp.quantised import QuantisedFile

__all__ = ["quants_report"]

# Beyond what any model was made for; reached where the cache does not grow.
_LONGEST = 2**24


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
    cache = None if memory_bytes is None else _cache(model)
    rows = [
        _row(recipe, file, cache, memory_bytes=memory_bytes, tokens=tokens, limit=model.context_limit)
        for recipe, file in files.items()
    ]
    if memory_bytes is not None:
        notes += ("the memory holds weights and cache; compute buffers take some hundred MiB more",)
    return QuantsReport(
        model=model.name,
        context=tokens,
        memory_bytes=memory_bytes,
        rows=tuple(sorted(rows, key=lambda row: -row.total_bytes)),
        notes=(*notes, *model.notes),
    )


def _cache(model: ModelProfile) -> Callable[[int], int]:
    """Return the bytes that llama.cpp sets aside for the cache of one sequence of so many tokens."""
    pool = deploy(model, engine="llama.cpp").start().pool
    return lambda tokens: pool.reserved(context=tokens, batch=1).total_bytes


def _row(
    recipe: str,
    file: QuantisedFile,
    cache: Callable[[int], int] | None,
    *,
    memory_bytes: int | None,
    tokens: int,
    limit: int | None,
) -> QuantRow:
    fits, longest = None, None
    if cache is not None and memory_bytes is not None:
        left = memory_bytes - file.total_bytes
        fits = cache(tokens) <= left
        longest = largest(lambda count: cache(count) <= left, limit or _LONGEST)
    return QuantRow(
        recipe=recipe,
        total_bytes=file.total_bytes,
        bits_per_weight=file.bits_per_weight,
        mixture=file.mixture,
        needs_imatrix=file.needs_imatrix,
        fits=fits,
        max_context=longest,
    )
