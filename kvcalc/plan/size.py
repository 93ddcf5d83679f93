"""Bytes of the cache per token, per sequence and in total, and of the weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.reports.size import GridCell, KvSize, PerGpu, SizeReport, WeightSize
from kvcalc.cost.cache import affine_segments, cache_bytes
from kvcalc.cost.parameters import active_parameters, parameters
from kvcalc.cost.sharding import rank_cache_bytes
from kvcalc.plan.contexts import (
    asked_context,
    check_batch,
    check_context,
    trained_context,
    usual_context,
    usual_context_notes,
)
from kvcalc.plan.deployment import started
from kvcalc.plan.formats import format_names
from kvcalc.plan.loaded import loaded_weights
from kvcalc.plan.rank_memory import held_weight_bytes, rank_tokens, rank_weights

if TYPE_CHECKING:
    from kvcalc.core.reports.size import Reserved
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment

__all__ = ["size_report"]

_GRID_CONTEXTS = (1024, 4096, 8192, 32768, 131072)
_GRID_BATCHES = (1, 8, 32)


def size_report(
    deployment: Deployment,
    *,
    context: int | None = None,
    batch: int = 1,
    engine: str | None = None,
    options: EngineOptions | None = None,
) -> SizeReport:
    """Return the bytes of cache and weights.

    Args:
        deployment: model, formats and parallel sizes.
        context: tokens of each sequence.
        batch: sequences.
        engine: an engine whose reservation is wanted too.
        options: its options.

    Raises:
        InputError: a batch or context below one, or an engine that is not known.
        UnsupportedError: a model that the engine's memory model does not describe.
    """
    deployment = started(deployment, engine, options)
    model, formats = deployment.model, deployment.formats
    tokens = _tokens(deployment, asked_context(deployment, context))
    notes = (*(() if context is not None else usual_context_notes(deployment)), *check_context(model, tokens))
    check_batch(batch)
    before, after = cache_bytes(model, tokens, formats), cache_bytes(model, tokens + 1, formats)
    per_sequence = before.growing + before.state
    kv = KvSize(
        bytes_per_token=after.growing - before.growing,
        bytes_per_sequence=per_sequence,
        state_bytes_per_sequence=before.state,
        cross_bytes_per_sequence=before.cross,
        total_bytes=batch * per_sequence,
        affine=tuple(
            {
                "from_tokens": segment.from_tokens,
                "base_bytes": segment.base_bytes,
                "bytes_per_token": segment.bytes_per_token,
            }
            for segment in affine_segments(model, formats)
        ),
    )
    parts = parameters(model)
    weights = WeightSize(
        parameters=sum(parts.values()),
        active_parameters=active_parameters(model),
        total_bytes=held_weight_bytes(deployment),
        parts=parts,
    )
    shared = rank_tokens(deployment, tokens)
    reserved, assumed, reserve_notes = _reserved(deployment, tokens, batch)
    return SizeReport(
        model=model.name,
        architecture=model.architecture,
        context=tokens,
        batch=batch,
        formats=format_names(formats),
        kv=kv,
        weights=weights,
        per_gpu=PerGpu(
            gpus=deployment.parallel.gpus,
            kv_bytes=rank_cache_bytes(model, formats, deployment.parallel, tokens=shared, batch=batch),
            weight_bytes=rank_weights(deployment),
            loaded_weight_bytes=None if deployment.engine is None else loaded_weights(deployment),
        ),
        reserved=reserved,
        assumed=assumed,
        grid=_grid(deployment, tokens),
        notes=(*notes, *reserve_notes, *deployment.all_notes),
    )


def _tokens(deployment: Deployment, context: int | None) -> int:
    """Return the context that is asked for, which llama.cpp may be told as its own option."""
    if context is not None:
        return context
    options = deployment.options
    if deployment.engine == "llama.cpp" and options.ctx_size is not None:
        return options.ctx_size or trained_context(deployment.model)
    return usual_context(deployment)


def _reserved(deployment: Deployment, tokens: int, batch: int) -> tuple[Reserved | None, str, tuple[str, ...]]:
    """Return the engine's reservation, the defaults that move it, and notes; nothing without an engine."""
    if deployment.engine is None:
        return None, "", ()
    from kvcalc.plan.room import assumed_text

    def reserved(options: EngineOptions) -> Reserved:
        start = replace(deployment, options=options).start(max_model_len=tokens)
        return start.pool.reserved(context=tokens, batch=batch)

    start = deployment.start(max_model_len=tokens)
    moved = assumed_text(start, lambda options: reserved(options).total_bytes)
    return reserved(start.options), moved, start.pool.notes


def _grid(deployment: Deployment, context: int) -> tuple[GridCell, ...]:
    model, formats = deployment.model, deployment.formats
    limit = max(context, model.context_limit or _GRID_CONTEXTS[-1])
    contexts = sorted({context, *(tokens for tokens in _GRID_CONTEXTS if tokens <= limit)})
    cells = []
    for tokens in contexts:
        cache = cache_bytes(model, tokens, formats)
        cells += [
            GridCell(context=tokens, batch=batch, total_bytes=batch * (cache.growing + cache.state))
            for batch in _GRID_BATCHES
        ]
    return tuple(cells)
