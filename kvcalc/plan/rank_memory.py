"""Memory of a rank: the bytes of weights and cache on the fullest of a deployment's accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import ceil_div
from kvcalc.cost.parameters import weight_bytes
from kvcalc.cost.sharding import rank_cache_bytes, rank_weight_bytes

if TYPE_CHECKING:
    from kvcalc.plan.deployment import Deployment

__all__ = [
    "draft_weights",
    "held_weight_bytes",
    "logical_cache",
    "memory_needed",
    "rank_tokens",
    "rank_weights",
]


def held_weight_bytes(deployment: Deployment) -> int:
    """Return the bytes of all weights: the file's own where the model was read from one and no format was asked for."""
    weights = deployment.model.held_weight_bytes
    if weights is not None and deployment.own_weights:
        return weights
    return weight_bytes(deployment.model, deployment.formats)


def rank_weights(deployment: Deployment) -> int:
    """Return the bytes of weights on the fullest rank."""
    if deployment.parallel.gpus == 1:
        return held_weight_bytes(deployment)
    return rank_weight_bytes(deployment.model, deployment.formats, deployment.parallel)


def memory_needed(deployment: Deployment, *, tokens: int, batch: int) -> int:
    """Return the bytes that weights and cache need on the fullest rank; no engine's overhead is in it."""
    return rank_weights(deployment) + draft_weights(deployment) + logical_cache(deployment, tokens=tokens, batch=batch)


def draft_weights(deployment: Deployment) -> int:
    """Return the bytes of the draft's weights on a rank."""
    draft = deployment.draft
    return 0 if draft is None else draft.weight_bytes(deployment.formats, deployment.parallel)


def logical_cache(deployment: Deployment, *, tokens: int, batch: int) -> int:
    """Return the bytes that a batch's tokens need on the fullest rank, those of the draft's layers among them."""
    formats, parallel = deployment.formats, deployment.parallel
    tokens = rank_tokens(deployment, tokens)
    own = rank_cache_bytes(deployment.model, formats, parallel, tokens=tokens, batch=batch)
    drafted = deployment.draft and deployment.draft.cache(formats, parallel, tokens=tokens, batch=batch)
    return own + (drafted.total if drafted else 0)


def rank_tokens(deployment: Deployment, tokens: int) -> int:
    """Return the tokens of a sequence that the fullest rank caches: ranks of decode context parallelism share them."""
    return ceil_div(tokens, deployment.options.decode_context_parallel)
